# Sets genv up in fish when it is first used, and at once in an environment. Otherwise no program is started.
if set --query GENV_ENVIRONMENT_ID; or test "$GENV_PREACTIVATE" = 1
    command genv shell --init fish | source
else
    function genv --description 'Share the GPUs of a machine'
        functions --erase genv
        command genv shell --init fish | source
        genv $argv
    end
end
