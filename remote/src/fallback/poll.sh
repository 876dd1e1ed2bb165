# Prints the devices of this host, the processes that compute on them and, with genv 1.x, its environments.
# Arguments: GENV (yes or no), SUDO (yes or no), COLUMNS (of the devices).
# The comment of script.rs lists the characters that this file must not contain.
# Each section ends with a line that has its name and the exit code of its program. Output before the section begin is
# from the user's profile.
LC_ALL=C;
GENV_BYPASS=1;
export LC_ALL GENV_BYPASS;
exec </dev/null;
printf "\n#genv-remote begin 0\n";
uname -n;
date "+%s %z";
id -u;
printf "\n#genv-remote host %s\n" "$?";
nvidia-smi --query-gpu="$3" --format=csv,noheader,nounits;
printf "\n#genv-remote devices %s\n" "$?";
nvidia-smi --query-compute-apps=gpu_uuid,pid,used_gpu_memory --format=csv,noheader,nounits;
printf "\n#genv-remote processes %s\n" "$?";
if [ "$1" = yes ]; then
    if [ "$2" = yes ]; then
        genv=$(command -v genv);
        sudo -n "$genv" usage snapshot;
        code=$?;
        [ "$code" = 0 ] || printf "\ngenv-remote-sudo %s\t%s\t%s\n" "$code" "$(id -un)" "$genv usage snapshot";
    else
        genv usage snapshot;
        code=$?;
    fi;
    printf "\n#genv-remote usage %s\n" "$code";
fi;
printf "\n#genv-remote end 0\n"
