# genv in @SHELL@: runs the program, and lets it change this shell's variables and prompt.
function genv --description 'Share the GPUs of a machine'
    for word in $argv
        switch $word
            case activate deactivate attach detach config shell doctor
                __genv_call $argv
                return
            # Options before the command, and the values of --color.
            case '-*' auto always never
            case '*'
                break
        end
    end
    command genv $argv
end

# Runs the program with a pipe to this shell beside its own output, and evaluates what comes through it.
function __genv_call
    builtin set --local code 1
    builtin set --local --export GENV_CALLER "@PROTOCOL@ @SHELL@ $fish_pid script"
    if builtin status is-interactive
        builtin set GENV_CALLER "@PROTOCOL@ @SHELL@ $fish_pid interactive"
    end
    begin
        # Ctrl-C ends this block, and leaves this code.
        builtin set code 130
        command genv $argv 9>&1 >&8 8>&- | builtin source
        builtin set code $pipestatus[1]
    end 8>&1
    # It ends what was typed after this too, as with any program.
    if builtin test $code = 130
        command kill -INT $fish_pid
    end
    return $code
end

function __genv_prompt
    if builtin test "$argv[1]" = on
        if not builtin functions --query __genv_user_prompt; and builtin functions --query fish_prompt
            builtin functions --copy fish_prompt __genv_user_prompt
            function fish_prompt --description 'genv: the prompt, with a mark before it'
                # The prompt below may show the status of the last command.
                builtin set --local code $status
                builtin echo -n '(genv) '
                __genv_status $code
                __genv_user_prompt
            end
        end
    else if builtin functions --query __genv_user_prompt
        # Somebody else's prompt may have come meanwhile. The second is what Python's virtual environments bring back.
        for prompt in fish_prompt _old_fish_prompt
            if builtin functions $prompt | builtin string match --quiet '*__genv_user_prompt*'
                builtin functions --erase $prompt
                builtin functions --copy __genv_user_prompt $prompt
            end
        end
        builtin functions --erase __genv_user_prompt
    end
end

function __genv_status
    return $argv[1]
end

function __genv_preactivate
    builtin set --local arguments activate
    if builtin test "$GENV_PREACTIVATE_PROMPT" = 0
        builtin set --append arguments --no-prompt
    end
    if builtin test -n "$GENV_PREACTIVATE_GPUS"
        builtin set --append arguments "--gpus=$GENV_PREACTIVATE_GPUS"
    end
    if builtin test -n "$GENV_PREACTIVATE_GPU_MEMORY"
        builtin set --append arguments "--gpu-memory=$GENV_PREACTIVATE_GPU_MEMORY"
    end
    if builtin test -n "$GENV_PREACTIVATE_ENVIRONMENT_NAME"
        builtin set --append arguments "--name=$GENV_PREACTIVATE_ENVIRONMENT_NAME"
    end
    # For this shell, not for those started from it.
    builtin set --erase GENV_PREACTIVATE GENV_PREACTIVATE_PROMPT GENV_PREACTIVATE_GPUS GENV_PREACTIVATE_GPU_MEMORY GENV_PREACTIVATE_ENVIRONMENT_NAME
    if not builtin set --query GENV_ENVIRONMENT_ID
        __genv_call $arguments
    end
end

if builtin set --query GENV_ENVIRONMENT_ID
    __genv_call shell --join
end
if builtin test "$GENV_PREACTIVATE" = 1
    __genv_preactivate
end
builtin true
