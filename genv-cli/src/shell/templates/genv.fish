# genv in @SHELL@: runs the program, which can change this shell's variables and prompt.
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
    __genv_find
    command $__genv_program $argv
end

# Finds the program that printed this code.
function __genv_find
    if builtin test -x @PROGRAM@
        builtin set --global __genv_program @PROGRAM@
    else
        if builtin test "$__genv_program" != genv
            builtin echo "genv: "@PROGRAM@" is missing, although it set up this shell: the genv of PATH runs instead. Open a new shell" >&2
        end
        builtin set --global __genv_program genv
    end
end

# Runs the program with an additional pipe to this shell, and evaluates the code from this pipe.
function __genv_call
    builtin set --local code 1
    builtin set --local --export GENV_CALLER "@PROTOCOL@ @SHELL@ $fish_pid script"
    if builtin status is-interactive
        builtin set GENV_CALLER "@PROTOCOL@ @SHELL@ $fish_pid interactive"
    end
    __genv_find
    begin
        # Ctrl-C ends this block, and the code stays 130.
        builtin set code 130
        command $__genv_program $argv 9>&1 >&8 8>&- | builtin source
        builtin set code $pipestatus[1]
    end 8>&1
    # Interrupts the rest of the command line too, as any interrupted program does.
    if builtin test $code = 130
        # fish has no kill of its own, and the program of that name may be missing.
        /bin/sh -c "kill -INT $fish_pid"
    end
    return $code
end

function __genv_prompt
    if builtin test "$argv[1]" = on
        if not builtin functions --query __genv_user_prompt; and builtin functions --query fish_prompt
            builtin functions --copy fish_prompt __genv_user_prompt
            function fish_prompt --description 'genv: the prompt, with a mark before it'
                # The user's prompt may show the status of the last command.
                builtin set --local code $status
                builtin echo -n '(genv) '
                __genv_status $code
                __genv_user_prompt
            end
        end
    else if builtin functions --query __genv_user_prompt
        # Other code may have replaced the prompt. Python's virtual environments restore the second one.
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

# __genv_watch STAMP FOLDER UPTIME FILE...: from now on each prompt compares the files with the stamp, and moves FOLDER to the
# front of PATH. After UPTIME (/proc/uptime) a prompt runs the program. FOLDER and UPTIME may be empty.
# Without arguments: stops all this.
function __genv_watch
    if builtin test (builtin count $argv) = 0
        if builtin set --query __genv_folder[1] _OLD_VIRTUAL_PATH
            builtin set --local IFS \n
            builtin set --global _OLD_VIRTUAL_PATH (__genv_without $__genv_folder $_OLD_VIRTUAL_PATH)
        end
        builtin set --erase --global __genv_stamp __genv_folder __genv_uptime __genv_files __genv_unset
    else
        builtin set --global __genv_stamp $argv[1]
        builtin set --global __genv_folder $argv[2]
        builtin set --global __genv_uptime $argv[3]
        builtin set --global __genv_files $argv[4..]
    end
end

# __genv_without ENTRY ENTRIES...: prints ENTRIES without ENTRY. With an empty IFS the caller would get one line of all of them.
function __genv_without
    for entry in $argv[2..]
        builtin test "$entry" = "$argv[1]"; or builtin echo -- $entry
    end
end

# Runs before each prompt. Starts a program only if a file is newer than the stamp, or if UPTIME is over.
function __genv_hook --on-event fish_prompt
    builtin set --local code $status
    if builtin set --query GENV_ENVIRONMENT_ID __genv_stamp
        if builtin test -n "$__genv_uptime"
            and builtin read --local --delimiter . seconds rest </proc/uptime
            and builtin test "$seconds" -ge "$__genv_uptime"
            # A program that fails must not run before each prompt.
            builtin set --global __genv_uptime ''
            __genv_call shell --prompt
        else
            for file in $__genv_files
                if builtin test $file -nt $__genv_stamp -o ! -e $__genv_stamp
                    __genv_call shell --prompt
                    break
                end
            end
        end
    end
    # The environment may have ended now.
    if builtin set --query __genv_stamp
        if builtin set --query CUDA_VISIBLE_DEVICES
            builtin set --erase --global __genv_unset
        else if not builtin set --query __genv_unset
            builtin set --global __genv_unset 1
            builtin echo "genv: CUDA_VISIBLE_DEVICES is not set: programs see all devices. 'genv attach --refresh' sets it" >&2
        end
        # Other code may have redefined the prompt.
        if builtin functions --query __genv_user_prompt; and not begin
                builtin functions fish_prompt
                builtin functions --query _old_fish_prompt; and builtin functions _old_fish_prompt
            end | builtin string match --quiet '*__genv_user_prompt*'
            builtin functions --erase __genv_user_prompt
            __genv_prompt on
        end
        if builtin test -n "$__genv_folder" -a "$PATH[1]" != "$__genv_folder"
            builtin set --local IFS \n
            builtin set --global --export PATH $__genv_folder (__genv_without $__genv_folder $PATH)
        end
    end
    return $code
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
    if builtin test -n "$GENV_PREACTIVATE_GPU_TYPE"
        builtin set --append arguments "--gpu-type=$GENV_PREACTIVATE_GPU_TYPE"
    end
    if builtin test -n "$GENV_PREACTIVATE_GPU_MEMORY_AT_LEAST"
        builtin set --append arguments "--gpu-memory-at-least=$GENV_PREACTIVATE_GPU_MEMORY_AT_LEAST"
    end
    if builtin test -n "$GENV_PREACTIVATE_ENVIRONMENT_NAME"
        builtin set --append arguments "--name=$GENV_PREACTIVATE_ENVIRONMENT_NAME"
    end
    # The variables are for this shell, and not for shells below it.
    builtin set --erase GENV_PREACTIVATE GENV_PREACTIVATE_PROMPT GENV_PREACTIVATE_GPUS GENV_PREACTIVATE_GPU_MEMORY GENV_PREACTIVATE_GPU_TYPE GENV_PREACTIVATE_GPU_MEMORY_AT_LEAST GENV_PREACTIVATE_ENVIRONMENT_NAME
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
