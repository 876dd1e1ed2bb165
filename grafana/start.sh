#!/bin/sh
# Starts Grafana in its container. At the first start it also does what provisioning by files cannot:
# an admin's password that nobody knows, and a folder for the pages about people that asks for a login.
# Until that folder does, all of Grafana asks for one.
set -eu

data=${GF_PATHS_DATA:-/var/lib/grafana}
grafana=http://127.0.0.1:3000
folder=genv-private
password_file=$data/genv-admin-password
# The container is healthy only if this exists.
closed_file=$data/genv-private-closed

say() { echo "genv: $*" >&2; }

# The answer's status; 000 while there is none. The password goes through stdin: every user of the machine
# sees a program's arguments.
close_folder() {
    printf 'user = "admin:%s"\n' "$(printf %s "$password" | sed 's/[\\"]/\\&/g')" |
        curl --config - --silent --max-time 10 --output /dev/null --write-out '%{http_code}' \
            --header 'Content-Type: application/json' --data '{"items":[{"role":"Editor","permission":1}]}' \
            "$grafana/api/folders/$folder/permissions" || true
}

# Only once, so that an admin may decide otherwise in Grafana.
ask_for_login() {
    waited=0
    while status=$(close_folder) && [ "$status" != 200 ]; do
        if [ "$status" = 401 ]; then
            say "cannot close the folder of the pages about people: Grafana refuses the admin's password." \
                "Put the present one into GRAFANA_ADMIN_PASSWORD and run 'docker compose up -d'. Until then all pages" \
                "ask for a login"
            return 1
        fi
        waited=$((waited + 1))
        [ "$waited" != 60 ] || say "the folder of the pages about people is not closed yet: Grafana answers $status" \
            "(000: nothing). It is tried every second; see what Grafana says above"
        sleep 1
    done
    say "the pages about people ask for a login now"
}

if [ -n "${GRAFANA_ADMIN_PASSWORD:-}" ]; then
    password=$GRAFANA_ADMIN_PASSWORD
elif [ -s "$password_file" ]; then
    password=$(cat "$password_file")
elif [ ! -e "$data/grafana.db" ]; then
    password=$(head -c 18 /dev/urandom | base64)
    (umask 077 && printf '%s\n' "$password" >"$password_file")
else
    password=
fi
unset GRAFANA_ADMIN_PASSWORD
# Grafana takes it at its first start only.
[ -z "$password" ] || export GF_SECURITY_ADMIN_PASSWORD="$password"
[ ! -e "$password_file" ] || say "user admin; the password made at the first start:" \
    "docker compose exec grafana cat $password_file"

ended=
closed=
status=0
server=
stop() {
    stopped=yes
    [ -z "$server" ] || kill -TERM "$server" 2>/dev/null || :
}
trap 'ended=yes; stop' TERM INT
trap 'closed=yes; stop' USR1

# serve [ARGUMENT...]: until Grafana ends.
serve() {
    server=
    stopped=
    [ -z "$ended" ] || return 0
    /run.sh "$@" &
    server=$!
    # A signal came before its process was known.
    [ -z "$stopped" ] || stop
    status=127
    while
        stopped=
        code=0
        wait "$server" || code=$?
        # 127: the wait before has had the status.
        [ "$code" = 127 ] || status=$code
        # A signal ends a wait before Grafana has ended.
        [ -n "$stopped" ]
    do :; done
}

if [ ! -e "$closed_file" ]; then
    anonymous=${GF_AUTH_ANONYMOUS_ENABLED:-false}
    export GF_AUTH_ANONYMOUS_ENABLED=false
    { ask_for_login && kill -USR1 $$; } &
    serve "$@"
    if [ -z "$closed" ] || [ -n "$ended" ]; then
        exit "$status"
    fi
    touch "$closed_file"
    export GF_AUTH_ANONYMOUS_ENABLED="$anonymous"
fi
serve "$@"
exit "$status"
