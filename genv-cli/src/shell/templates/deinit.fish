if builtin set --query GENV_ENVIRONMENT_ID
    genv deactivate
end
builtin functions --erase genv __genv_find __genv_call __genv_prompt __genv_status __genv_watch __genv_without __genv_hook __genv_preactivate
builtin set --erase --global __genv_program
builtin true
