# shellcheck shell=sh source=/dev/null
# genv in the shells of everybody: docs/shells.md. This file may be left behind when genv is removed.
[ ! -r /usr/share/genv/genv.sh ] || . /usr/share/genv/genv.sh
