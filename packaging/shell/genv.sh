# shellcheck shell=sh disable=SC3044 # typeset is reached by bash and zsh alone
# Sets genv up in bash and zsh when it is first used, and at once in an environment. Otherwise no program is started.
# Other shells, which read /etc/profile too, are left alone.
if [ -n "${BASH_VERSION-}${ZSH_VERSION-}" ] && ! typeset -f __genv_call >/dev/null; then
    if [ -n "${GENV_ENVIRONMENT_ID+set}" ] || [ "${GENV_PREACTIVATE-}" = 1 ]; then
        eval "$(command genv shell --init)"
    else
        genv() {
            unset -f genv
            eval "$(command genv shell --init)"
            genv "$@"
        }
    fi
fi
