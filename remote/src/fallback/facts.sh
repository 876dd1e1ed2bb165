# Reads lines from stdin: p PID or m PID for a process, u UID for a user.
# Prints a line for each process and each of its ancestors: pid, parent, start in ticks since boot, uid (- if real and
# effective uid differ), whether its environ is readable, and its command name. Prints the names of the users of the
# processes p, and of the users u.
# The comment of script.rs lists the characters that this file must not contain.
printf "\n#genv-remote begin 0\n";
hertz=$(getconf CLK_TCK 2>/dev/null || echo 100);
while read -r key value; do
    if [ "$key" = btime ]; then printf "boot %s %s\n" "$value" "$hertz"; fi;
done </proc/stat;
set -f;
seen=" ";
users=" ";
name() {
    case "$users" in *" $1 "*) return;; esac;
    users="$users$1 ";
    name=$(id -un "$1" 2>/dev/null) && printf "user %s %s\n" "$1" "$name";
};
while read -r kind number; do
    if [ "$kind" = u ]; then name "$number"; continue; fi;
    while [ "$number" -gt 0 ]; do
        case "$seen" in *" $number "*) break;; esac;
        seen="$seen$number ";
        line=;
        read -r line 2>/dev/null </proc/$number/stat || break;
        set -- ${line##*)};
        if [ "$#" -lt 20 ]; then
            line=$(tr "\n" " " 2>/dev/null </proc/$number/stat);
            set -- ${line##*)};
        fi;
        if [ "$#" -lt 20 ]; then break; fi;
        parent=$2;
        start=${20};
        user=-;
        environ=no;
        while read -r key real effective rest; do
            if [ "$key" = Uid: ]; then
                if [ "$real" = "$effective" ]; then user=$effective; fi;
                break;
            fi;
        done 2>/dev/null </proc/$number/status;
        if [ "$kind" = p ]; then
            if [ -r /proc/$number/environ ]; then environ=yes; fi;
        fi;
        comm=;
        read -r comm 2>/dev/null </proc/$number/comm;
        printf "process %s %s %s %s %s %s\n" "$number" "$parent" "$start" "$user" "$environ" "$comm";
        case "$kind$user" in p[0-9]*) name "$user";; esac;
        number=$parent;
    done;
done;
printf "\n#genv-remote facts 0\n"
