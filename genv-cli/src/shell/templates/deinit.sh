if [[ -n ${GENV_ENVIRONMENT_ID+set} ]]; then genv deactivate || \builtin true; fi
\builtin unset -f genv __genv_find __genv_call __genv_prompt __genv_watch __genv_hook __genv_hooked __genv_rehook __genv_unhook __genv_preactivate
\builtin unset -v __genv_program
