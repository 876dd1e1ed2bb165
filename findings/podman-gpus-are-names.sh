#!/usr/bin/env bash
# Podman reads the value of --gpus as the names of GPUs, where Docker reads a number of GPUs.
#
# Guess:   Podman has Docker's options. On a machine with two GPUs, `podman run --gpus 1` is one GPU, `--gpus 2` is both, and
#          `--gpus device=0` is the first.
# Reality: Podman takes the value as a list of CDI names and puts nvidia.com/gpu= before each. `--gpus 1` is GPU 1, the second.
#          `--gpus 2` is an error on a machine with two GPUs, when the container is initialized: `podman create` accepts each
#          number. `--gpus device=0` is an error of `podman create`. Only `all` is the same in both programs.
# Version: Podman 5.4.2 of Debian 13.
# Source:  The manual page podman-run(1) names the value `all`, and no other.
# Users:   A script for Docker that asks for one GPU with `--gpus 1` always uses the second GPU under Podman, and fails on a
#          machine with one GPU. Write `--device nvidia.com/gpu=0`, which has one meaning in Podman and in Docker with CDI.
# Seen:    --gpus 1: GPU 1          --gpus 0,1: GPU 0 GPU 1
#          --gpus 2: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=2
#          --gpus device=0: stat nvidia.com/gpu=device=0: no such file or directory
#
# It needs an amd64 machine with APT and Debian's archive, and permission to create a user namespace. It needs neither root nor
# a GPU: Podman reads a CDI file with two GPUs and writes the container's configuration; no container runs.
set -euo pipefail
# shellcheck source=findings/debian.bash
. "$(dirname "$0")/debian.bash"

# podman ARGUMENT...: runs Podman with the loader and the libraries of Debian 13. Its state is in $folder.
podman() {
    local libraries=$folder/files/usr/lib/x86_64-linux-gnu
    "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$folder/files/usr/bin/podman" \
        --root "$folder/storage" --runroot /run/storage --storage-driver vfs "$@"
}

# check GPUS EXPECTED: creates a container, and compares the GPUs in its configuration, or the error.
check() {
    local container='' seen config
    if container=$(podman create --network none --ipc host --cgroups disabled --gpus "$1" --rootfs "$folder/root" true \
        2>"$folder/error"); then
        # The container's monitor is `true` here, so this command fails after it has written the configuration.
        podman init "$container" >"$folder/error" 2>&1 || true
    fi
    config=$folder/storage/vfs-containers/$container/userdata/config.json
    if [[ -n $container && -f $config ]]; then
        seen=$(grep -o 'GPU_[0-9]=given' "$config" | sort | sed 's/_/ /; s/=given//' | paste -sd ' ')
    else
        seen=$(tail -n 1 "$folder/error" | sed 's/^Error: //')
    fi
    printf -- '--gpus %s: %s\n' "$1" "$seen"
    [[ $seen == "$2" ]] || fail "--gpus $1 is not: $2"
}

# inside: all checks, in namespaces that hide this machine's /run and end with the script.
inside() {
    set -euo pipefail
    mount -t tmpfs tmpfs /run
    mkdir /run/cdi
    cat >/run/cdi/nvidia.json <<'JSON'
{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [
    {"name": "0", "containerEdits": {"env": ["GPU_0=given"]}},
    {"name": "1", "containerEdits": {"env": ["GPU_1=given"]}},
    {"name": "all", "containerEdits": {"env": ["GPU_0=given", "GPU_1=given"]}}]}
JSON
    podman --version
    check all 'GPU 0 GPU 1'
    check 1 'GPU 1'
    check 0,1 'GPU 0 GPU 1'
    check 2 'setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=2'
    check device=0 'stat nvidia.com/gpu=device=0: no such file or directory'
}

[[ ! -e /etc/cdi ]] || fail 'this machine has CDI files of its own; run this script where there are none'
debian_packages podman=5.4.2+ds1-2+b2 netavark=1.14.0-2 \
    libassuan9 libaudit1 libc6 libcap-ng0 libgpg-error0 libgpgme11t64 libpcre2-8-0 libseccomp2 libselinux1 libsqlite3-0 libsubid5
mkdir "$folder"/{home,root}
cat >"$folder/containers.conf" <<CONF
[engine]
cgroup_manager = "cgroupfs"
conmon_path = ["$(type -P true)"]
events_logger = "none"
helper_binaries_dir = ["$folder/files/usr/lib/podman"]
lock_type = "file"
runtime = "crun"
[engine.runtimes]
crun = ["$(type -P true)"]
CONF
export folder HOME=$folder/home CONTAINERS_CONF=$folder/containers.conf PODMAN_IGNORE_CGROUPSV1_WARNING=1
export -f fail podman check inside
unshare --user --map-root-user --mount --pid --fork --kill-child bash -c inside
echo 'As stated.'
