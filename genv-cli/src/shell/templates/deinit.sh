if [[ -n ${GENV_ENVIRONMENT_ID+set} ]]; then genv deactivate || \builtin true; fi
\builtin unset -f genv __genv_call __genv_prompt __genv_preactivate
