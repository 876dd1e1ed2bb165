if builtin set --query GENV_ENVIRONMENT_ID
    genv deactivate
end
builtin functions --erase genv __genv_call __genv_prompt __genv_status __genv_preactivate
builtin true
