#!/usr/bin/env bash
# nvidia-smi writes its errors to stdout, where scripts read GPUs.
#
# Guess:   Without a driver, nvidia-smi writes an error to stderr and nothing to stdout. So this counts 0 GPUs:
#          nvidia-smi --query-gpu=index --format=csv,noheader | wc -l
# Reality: The error is on stdout, and stderr is empty. The pipe counts 2 GPUs, because the error has two lines. The error is
#          plain text with --format=csv and --xml-format, too. Only the exit code is reliable: 12 without the library
#          libnvidia-ml, 9 with the library and without a driver in the kernel.
# Version: nvidia-smi and libnvidia-ml1 550.163.01 of Debian 13 (non-free). nvidia-smi 535.261.03 of Debian 12 does the same.
# Source:  The manual page nvidia-smi(1), section RETURN VALUE, lists the codes 9 and 12. It does not name the stream.
# Users:   A monitor that reads only stdout reports GPUs that do not exist, and a log of stderr does not show why. Check the
#          exit code before you read stdout; in a pipe, this needs `set -o pipefail`.
# Seen:    no library: exit code 12, 2 lines on stdout, 0 bytes on stderr, 2 "GPUs" counted
#          no driver:  exit code 9, 2 lines on stdout, 0 bytes on stderr, 2 "GPUs" counted
#
# It needs an amd64 machine with APT and Debian's archive, and without NVIDIA's driver. It does not need root.
set -euo pipefail
# shellcheck source=findings/debian.bash
. "$(dirname "$0")/debian.bash"

# check NAME CODE LIBRARIES: runs nvidia-smi with the libraries of a folder.
check() {
    local name=$1 expected=$2 libraries=$3 option code lines count
    for option in --list-gpus --query-gpu=index,memory.used --query; do
        local command=("$nvidia_smi" "$option")
        [[ $option != --query-gpu=* ]] || command+=('--format=csv,noheader')
        [[ $option != --query ]] || command+=(--xml-format)
        code=0
        LD_LIBRARY_PATH=$libraries "${command[@]}" >"$folder/stdout" 2>"$folder/stderr" || code=$?
        lines=$(wc -l <"$folder/stdout")
        printf '%s: nvidia-smi %s: exit code %s, %s lines on stdout, %s bytes on stderr\n' \
            "$name" "${command[*]:1}" "$code" "$lines" "$(wc -c <"$folder/stderr")"
        [[ $code == "$expected" ]] || fail "the exit code is $code, not $expected"
        [[ ! -s $folder/stderr ]] || fail 'stderr is not empty'
        [[ $(head -n 1 "$folder/stdout") == NVIDIA-SMI* ]] || fail 'stdout does not begin with the error'
    done
    sed 's/^/    /' "$folder/stdout"
    count=$(LD_LIBRARY_PATH=$libraries "$nvidia_smi" --query-gpu=index --format=csv,noheader | wc -l) || true
    printf '%s: GPUs that "| wc -l" counts: %s\n' "$name" "$count"
    [[ $count == 2 ]] || fail "the pipe counts $count"
}

[[ ! -e /proc/driver/nvidia ]] || fail 'this machine has an NVIDIA driver; run this script where there is none'
debian_packages nvidia-smi=550.163.01-2 libnvidia-ml1=550.163.01-2
nvidia_smi=$(find "$folder/files" -name nvidia-smi -type f -perm -u+x)
library=$(find "$folder/files" -name libnvidia-ml.so.1)
printf 'Version: nvidia-smi %s\n' "$(grep -aoE '550\.[0-9]+\.[0-9]+' "$nvidia_smi" | head -n 1)"

check 'no library' 12 "$folder/apt/empty"
check 'no driver' 9 "${library%/*}"
echo 'As stated.'
