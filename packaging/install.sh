#!/bin/sh
# Installs genv for the user who runs this; it needs no root.
#
# Usage: install.sh [--prefix FOLDER]               into FOLDER, else $PREFIX, else ~/.local; also over an older version
#        install.sh --uninstall [--prefix FOLDER]   removes what was installed, and nothing else
set -eu

say() { echo "genv: $*" >&2; }

# fail WHAT WHY NEXT
fail() {
    say "$1: $2. $3."
    exit 1
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
prefix=${PREFIX:-${HOME:+$HOME/.local}}
uninstall=
while [ $# -gt 0 ]; do
    case $1 in
        --prefix=*) prefix=${1#*=} ;;
        --prefix) prefix=${2-} && shift "$(($# > 1))" ;;
        --uninstall) uninstall=yes ;;
        -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit ;;
        *) say "cannot install: there is no option '$1'. See install.sh --help." && exit 2 ;;
    esac
    shift
done
case $prefix in
    /*) ;;
    *) say "cannot install into '$prefix': that is no absolute path. Name one with --prefix." && exit 2 ;;
esac
# What was installed here, a path a line.
list=$prefix/share/genv/installed

# remove PATH: a file of ours, what an interruption left of its next version, and folders that are empty without them.
remove() {
    rm -f -- "$prefix/$1" "$prefix/$1.new"
    (cd -- "$prefix" && rmdir -p -- "$(dirname -- "$1")" 2>/dev/null) || true
}

if [ -n "$uninstall" ]; then
    [ -e "$list" ] || fail "cannot uninstall" "nothing was installed in $prefix" "Name the folder with --prefix"
    while read -r path; do
        remove "$path"
    done <"$list"
    remove share/genv/installed
    say "removed from $prefix. Take out of your shell's start-up file what you added for genv"
    exit
fi

[ -x "$here/bin/genv" ] ||
    fail "cannot install" "this is not the folder that was unpacked" "Run install.sh where the tarball was unpacked"
# The machine's own loader says what is wrong, which is mostly the version of glibc.
if ! said=$("$here/bin/genv" --version 2>&1); then
    echo "$said" >&2
    fail "cannot install" "genv does not run here: it needs glibc @GLIBC@ or newer on @ARCH@, and this machine has $(getconf GNU_LIBC_VERSION 2>/dev/null || echo none) on $(uname -m)" \
        "Install it on a newer system, or build it there (README.md)"
fi
files=$(cd -- "$here" && find bin lib share ! -type d)
# What somebody else put there is not ours to replace: genv 1.x has a program of the same name.
echo "$files" | while read -r path; do
    [ ! -e "$prefix/$path" ] || grep -qsxF -- "$path" "$list" ||
        fail "cannot install into $prefix" "$prefix/$path is there, and is none of this genv's" \
            "Name another folder with --prefix, or remove it (genv 1.x: pip uninstall genv)"
done
mkdir -p -- "$prefix/share/genv" 2>/dev/null || true
[ -w "$prefix/share/genv" ] ||
    fail "cannot install into $prefix" "you may not write there" "Name another folder with --prefix"

# Each file appears at once, whole, also where the older one runs. The list comes first: what was begun can be removed.
touch "$list"
echo "$files" >"$list.new"
sort -u -- "$list" "$list.new" >"$list.both"
mv -f -- "$list.both" "$list"
while read -r path; do
    mkdir -p -- "$(dirname -- "$prefix/$path")"
    cp -dp -- "$here/$path" "$prefix/$path.new"
    mv -f -- "$prefix/$path.new" "$prefix/$path"
done <"$list.new"
while read -r path; do
    grep -qxF -- "$path" "$list.new" || remove "$path"
done <"$list"
mv -f -- "$list.new" "$list"

say "$said is installed in $prefix; $prefix/share/genv/install.sh --uninstall --prefix=$prefix removes it"
case :${PATH-}: in
    *":$prefix/bin:"*) ;;
    *) say "$prefix/bin is not on PATH: add it in your shell's start-up file" ;;
esac
cat >&2 <<TEXT
genv: in ~/.bashrc or ~/.zshrc:  eval "\$(genv shell --init)"
genv: without root it can do less:
genv:   genv-exporter sees which environment your own processes are in; those of others it calls unknown
genv:   genv-enforcer can end your own processes and no others
genv:   nothing is started by itself, and nothing runs as a user of its own
TEXT
[ -d /run/systemd/system ] || say "systemd does not run here: start genv-exporter by hand, or as a job of cron's @reboot"
[ -e /proc/driver/nvidia/version ] ||
    say "no NVIDIA driver is loaded here: until one is, there are no devices. 'genv doctor' tells more"
