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
export LC_ALL=C

folder=$(mktemp -d)
trap 'code=$?; rm -rf "$folder"; exit $((code != 0))' EXIT
# APT's sandbox user reads the folder too.
chmod 755 "$folder"

# fail WHAT: prints what is not as stated, and ends with 1.
fail() {
    printf 'Not as stated: %s\n' "$1" >&2
    exit 1
}

# debian_packages PACKAGE[=VERSION]...: downloads packages of Debian 13 and unpacks them into $folder/files.
# APT keeps its lists in $folder, takes Debian's archive from this machine's sources, and installs nothing.
debian_packages() {
    local archive package
    # shellcheck disable=SC2016 # APT's own variables
    archive=$(apt-get indextargets --format '$(CREATED_BY) $(ORIGIN) $(REPO_URI)' |
        sed -n '/security/d; s/^Packages Debian //p' | head -n 1)
    [[ -n $archive ]] || fail "this machine's APT has no Debian archive, or no lists of it: run apt-get update"
    mkdir -p "$folder"/apt/{lists/partial,cache/archives/partial,empty} "$folder/files"
    : >"$folder/apt/status"
    printf 'deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie main non-free\n' \
        "$archive" >"$folder/apt/sources.list"
    cat >"$folder/apt/apt.conf" <<CONF
Dir::State::lists "$folder/apt/lists";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt/cache";
Dir::Etc::SourceList "$folder/apt/sources.list";
Dir::Etc::SourceParts "$folder/apt/empty";
Dir::Etc::PreferencesParts "$folder/apt/empty";
APT::Architecture "amd64";
APT::Sandbox::User "$(id -un)";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
CONF
    export APT_CONFIG=$folder/apt/apt.conf
    apt-get -qq update
    (cd "$folder/apt/cache" && apt-get -qq download "$@")
    for package in "$folder"/apt/cache/*.deb; do
        dpkg-deb -x "$package" "$folder/files"
    done
}

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
