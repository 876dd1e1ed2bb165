#!/usr/bin/env bash
# An override file of Compose adds GPUs to a service. It does not replace them.
#
# Guess:   compose.yaml reserves GPU 0, and an override file reserves GPU 3 for the same service and driver. The override file
#          wins, as it does for `image` and for limits of memory: the service reserves GPU 3.
# Reality: The service reserves GPU 0 and GPU 3. `devices` is a list of requests, and Compose appends lists, also where driver
#          and capabilities are the same. After an override of all GPUs with GPU 3, the service reserves all GPUs, and GPU 3
#          again. The tag !override replaces the list.
# Version: Docker Compose 2.26.1 of Debian 13. Docker Compose 2.40.3 of Debian unstable does the same.
# Source:  Compose's reference, "Merge Compose files": sequences are appended; the tag !override replaces them.
# Users:   A service that was moved to a free GPU still asks for the old one, too. Write `devices: !override` in the override
#          file, and read `docker compose config` before `docker compose up`.
# Seen:    GPU 0, then GPU 3: 0 3          all GPUs, then GPU 3: all 3          GPU 0, then !override GPU 3: 3
#
# It needs an amd64 machine with APT and Debian's archive. It does not need root, Docker's engine, or a GPU.
set -euo pipefail
# shellcheck source=findings/debian.bash
. "$(dirname "$0")/debian.bash"

# service FILE DEVICES: writes a Compose file whose service reserves devices.
service() {
    cat >"$folder/$1" <<YAML
services:
  train:
    image: train
    deploy:
      resources:
        reservations:
          devices: $2
YAML
}

# check NAME EXPECTED FILE...: merges Compose files, and compares the GPUs of each reservation.
check() {
    local name=$1 expected=$2 file files=() gpus
    shift 2
    for file in "$@"; do
        files+=(--file "$folder/$file")
    done
    "$compose" --project-name lab "${files[@]}" config >"$folder/merged.yaml"
    # A request without device_ids has a count, and -1 is all.
    gpus=$(sed -n 's/^ *- "\([0-9]*\)"$/\1/p; s/^ *count: -1$/all/p' "$folder/merged.yaml" | paste -sd ' ')
    printf '%s: %s\n' "$name" "$gpus"
    [[ $gpus == "$expected" ]] || fail "$name: the service reserves $gpus, not $expected"
}

debian_packages docker-compose=2.26.1-4
compose=$(find "$folder/files" -name docker-compose -type f -perm -u+x)
export HOME=$folder
printf 'Version: %s\n' "$("$compose" version)"

service gpu-0.yaml '[{driver: nvidia, device_ids: ["0"], capabilities: [gpu]}]'
service all.yaml '[{driver: nvidia, count: all, capabilities: [gpu]}]'
service gpu-3.yaml '[{driver: nvidia, device_ids: ["3"], capabilities: [gpu]}]'
service only-gpu-3.yaml '!override [{driver: nvidia, device_ids: ["3"], capabilities: [gpu]}]'

check 'GPU 0, then GPU 3' '0 3' gpu-0.yaml gpu-3.yaml
sed -n '/devices:/,/image:/{/image:/d; s/^/    /; p}' "$folder/merged.yaml"
check 'all GPUs, then GPU 3' 'all 3' all.yaml gpu-3.yaml
check 'GPU 0, then !override GPU 3' '3' gpu-0.yaml only-gpu-3.yaml
echo 'As stated.'
