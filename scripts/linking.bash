# shellcheck shell=bash
# Sourced in the repository: has cargo link with Debian 11's glibc, which scripts/debian-tools has fetched before as
# glibc-2.31, so that programs run on older systems than this one.
glibc=$(readlink -m "${CARGO_TARGET_DIR:-target}")/tools/glibc-2.31/files
libraries=$(gcc -print-multiarch)
host=$(rustc -vV | sed -n 's/^host: //p')
flags=
for flag in "--sysroot=$glibc" "-B$glibc/usr/lib/$libraries" "-L$glibc/usr/lib/$libraries" "-L$glibc/lib/$libraries"; do
    flags+=${flags:+$'\x1f'}-Clink-arg=$flag
done
export CARGO_ENCODED_RUSTFLAGS=$flags "CFLAGS_${host//-/_}=--sysroot=$glibc"
