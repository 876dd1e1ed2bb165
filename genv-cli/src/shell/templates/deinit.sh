if [[ -n ${GENV_ENVIRONMENT_ID+set} ]]; then genv deactivate || \builtin true; fi
\builtin unset -f genv __genv_find __genv_call __genv_prompt __genv_watch __genv_hook __genv_hooked __genv_rehook __genv_unhook __genv_preactivate
\builtin unset -v __genv_program
if [[ -n ${BASH_VERSION-} ]]; then
    \builtin unset -f __genv_unhooked
    # A copy of PROMPT_COMMAND in a variable of another program may still name the hook.
    if [[ $(\builtin declare -p) == *__genv_hook* ]]; then
        function __genv_hook {
            \builtin local __genv_last="$?"
            [[ $- == *e* ]] || \builtin return "$__genv_last"
        }
    fi
fi
