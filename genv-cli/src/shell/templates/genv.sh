# genv in @SHELL@: runs the program, which can change this shell's variables and prompt.
# The first line makes sure that the alias exists: a restricted shell could not redirect an error of unalias.
\builtin alias genv=''
\builtin unalias genv

function genv {
    @zsh@ \builtin emulate -L zsh
    \builtin local __genv_word
    for __genv_word in "$@"; do
        case $__genv_word in
            activate | deactivate | attach | detach | config | shell | doctor)
                __genv_call "$@"
                \builtin return
                ;;
            # Options before the command, and the values of --color.
            -* | auto | always | never) ;;
            *) \builtin break ;;
        esac
    done
    __genv_find
    \builtin command "$__genv_program" "$@"
}

# Finds the program that printed this code. A restricted shell may only run programs of PATH.
function __genv_find {
    if [[ $- == *r* ]]; then
        __genv_program=genv
    elif [[ -x @PROGRAM@ ]]; then
        __genv_program=@PROGRAM@
    else
        if [[ ${__genv_program-} != genv ]]; then
            \builtin echo "genv: "@PROGRAM@" is missing, although it set up this shell: the genv of PATH runs instead. Open a new shell" >&2
        fi
        __genv_program=genv
    fi
}

# Runs the program with an additional pipe to this shell, and evaluates the code from this pipe.
function __genv_call {
    @zsh@ \builtin emulate -L zsh
    \builtin local __genv_code='' __genv_status=0 __genv_pid __genv_rest __genv_kind=script
    # In a subshell $$ is the pid of the parent shell.
    IFS=' ' \builtin read -r __genv_pid __genv_rest </proc/self/stat || __genv_pid=$$
    if [[ $- == *i* ]]; then
        __genv_kind=interactive
        if [[ $__genv_pid != "$$" ]]; then
            __genv_kind=subshell
        elif [[ -n ${__genv_stamp-} ]] && ! __genv_hooked; then
            __genv_kind=unhooked
        fi
        @zsh@ # Otherwise Ctrl-C would end this function with 1. zsh restores the user's trap after the function.
        @zsh@ \builtin trap : INT
    fi
    __genv_find
    {
        __genv_code=$(GENV_CALLER="@PROTOCOL@ @SHELL@ $__genv_pid $__genv_kind" \builtin command "$__genv_program" "$@" 9>&1 >&8 8>&-) || __genv_status=$?
    } 8>&1 || __genv_status=$?
    \builtin eval "$__genv_code"
    @zsh@ if [[ $__genv_status == 130 && $__genv_kind != script ]]; then
    @zsh@     # Interrupts the rest of the command line too, as any interrupted program does.
    @zsh@     \builtin trap - INT
    @zsh@     \builtin kill -INT "$__genv_pid"
    @zsh@ fi
    \builtin return "$__genv_status"
}

# Adds or removes the text (genv) in the prompt. Other code may have put text before it or redefined the prompt; then the
# text is added again. Without __genv_prompted the same text in the prompt is the user's.
function __genv_prompt {
    if [[ $1 == on ]]; then
        if [[ -n ${PS1+set} && (-z ${__genv_prompted-} || $PS1 != *'(genv) '*) ]]; then
            PS1="(genv) $PS1"
            __genv_prompted=1
        fi
    elif [[ -n ${__genv_prompted-} ]]; then
        if [[ -n ${PS1+set} ]]; then
            PS1=${PS1/'(genv) '/}
        fi
        # Python's virtual environments restore this prompt when they are left.
        if [[ -n ${_OLD_VIRTUAL_PS1+set} ]]; then
            _OLD_VIRTUAL_PS1=${_OLD_VIRTUAL_PS1/'(genv) '/}
        fi
        \builtin unset -v __genv_prompted
    fi
}

# __genv_watch STAMP FOLDER UPTIME FILE...: from now on each prompt compares the files with the stamp, and moves FOLDER to the
# front of PATH. After UPTIME (/proc/uptime) a prompt runs the program. FOLDER and UPTIME may be empty.
# Without arguments: stops all this.
function __genv_watch {
    @zsh@ \builtin emulate -L zsh
    if [[ $# == 0 ]]; then
        if [[ -n ${__genv_folder-} && -n ${_OLD_VIRTUAL_PATH+set} ]]; then
            _OLD_VIRTUAL_PATH=${_OLD_VIRTUAL_PATH/"$__genv_folder:"/}
        fi
        \builtin unset -v __genv_stamp __genv_folder __genv_uptime __genv_files __genv_unset
        __genv_unhook
    else
        __genv_stamp=$1 __genv_folder=$2 __genv_uptime=$3
        \builtin shift 3
        __genv_files=("$@")
        __genv_rehook
    fi
}

# Runs before each prompt, after all other hooks. Starts a program only if a file is newer than the stamp, or if UPTIME is over.
function __genv_hook {
    \builtin local __genv_last="$?" __genv_file __genv_now __genv_rest
    @zsh@ \builtin emulate -L zsh
    @bash@ # Other hooks may run a copy of this line, as starship does. The line itself runs after them: in no function, or in one
    @bash@ # of ble.sh.
    @bash@ if [[ ${FUNCNAME[1]-ble/} != ble[/-]* ]] && __genv_hooked; then
    @bash@     [[ $- == *e* ]] || \builtin return "$__genv_last"
    @bash@     \builtin return
    @bash@ fi
    if [[ -n ${GENV_ENVIRONMENT_ID+set} && -n ${__genv_stamp-} ]]; then
        if [[ -n $__genv_uptime ]] && IFS=. \builtin read -r __genv_now __genv_rest </proc/uptime &&
            ((__genv_now >= __genv_uptime)); then
            # A program that fails must not run before each prompt.
            __genv_uptime=''
            __genv_call shell --prompt || \builtin true
        else
            for __genv_file in "${__genv_files[@]}"; do
                if [[ $__genv_file -nt $__genv_stamp || ! -e $__genv_stamp ]]; then
                    __genv_call shell --prompt || \builtin true
                    \builtin break
                fi
            done
        fi
    fi
    # The environment may have ended now.
    if [[ -n ${__genv_stamp-} ]]; then
        if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
            \builtin unset -v __genv_unset
        elif [[ -z ${__genv_unset-} ]]; then
            __genv_unset=1
            \builtin echo "genv: CUDA_VISIBLE_DEVICES is not set: programs see all devices. 'genv attach --refresh' sets it" >&2
        fi
        if [[ -n ${__genv_prompted-} ]]; then
            __genv_prompt on
        fi
        if [[ -n $__genv_folder && $PATH: != "$__genv_folder:"* && $- != *r* ]]; then
            __genv_rest=:$PATH:
            __genv_rest=${__genv_rest/":$__genv_folder:"/:}
            __genv_rest=${__genv_rest#:}
            PATH=$__genv_folder:${__genv_rest%:}
        fi
        __genv_rehook
    fi
    # The next hook may show the last exit code. With errexit that code would end the shell.
    [[ $- == *e* ]] || \builtin return "$__genv_last"
}

@zsh@ function __genv_hooked {
@zsh@     [[ -n ${precmd_functions[(r)__genv_hook]-} ]]
@zsh@ }
@zsh@ function __genv_rehook {
@zsh@     \builtin typeset -ga precmd_functions
@zsh@     if [[ ${precmd_functions[-1]-} != __genv_hook ]]; then
@zsh@         precmd_functions=("${(@)precmd_functions:#__genv_hook}" __genv_hook)
@zsh@     fi
@zsh@ }
@zsh@ function __genv_unhook {
@zsh@     \builtin typeset -ga precmd_functions
@zsh@     precmd_functions=("${(@)precmd_functions:#__genv_hook}")
@zsh@     if [[ $#precmd_functions == 0 ]]; then
@zsh@         \builtin unset precmd_functions
@zsh@     fi
@zsh@ }
@bash@ # PROMPT_COMMAND is a string, or since 5.1 an array, whose elements bash runs one by one.
@bash@ # shellcheck disable=SC2128,SC2178
@bash@ function __genv_hooked {
@bash@     [[ ${PROMPT_COMMAND[*]-} == *__genv_hook* ]]
@bash@ }
@bash@ # shellcheck disable=SC2128,SC2178
@bash@ function __genv_rehook {
@bash@     \builtin local __genv_kind="${PROMPT_COMMAND[*]+${PROMPT_COMMAND@a}}" __genv_rest="${PROMPT_COMMAND[*]-}"
@bash@     # bash-preexec takes what runs after its last hook for the next command of the user.
@bash@     __genv_rest=${__genv_rest%__bp_interactive_mode}
@bash@     if [[ $__genv_rest == *__genv_hook || $__genv_rest == *__genv_hook? || $__genv_kind == *r* ]]; then
@bash@         \builtin return
@bash@     fi
@bash@     __genv_unhook
@bash@     if [[ $__genv_kind == *a* ]] && ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 501)); then
@bash@         if [[ ${PROMPT_COMMAND[-1]-} == __bp_interactive_mode ]]; then
@bash@             PROMPT_COMMAND[-1]=__genv_hook
@bash@             PROMPT_COMMAND+=(__bp_interactive_mode)
@bash@         else
@bash@             PROMPT_COMMAND+=(__genv_hook)
@bash@         fi
@bash@     elif [[ ${PROMPT_COMMAND-} == *$'\n'__bp_interactive_mode ]]; then
@bash@         PROMPT_COMMAND=${PROMPT_COMMAND%__bp_interactive_mode}__genv_hook$'\n'__bp_interactive_mode
@bash@     else
@bash@         PROMPT_COMMAND=${PROMPT_COMMAND:+$PROMPT_COMMAND$'\n'}__genv_hook
@bash@     fi
@bash@ }
@bash@ # shellcheck disable=SC2128,SC2178
@bash@ function __genv_unhook {
@bash@     \builtin local __genv_key __genv_text
@bash@     \builtin local -a __genv_rest
@bash@     __genv_rest=()
@bash@     if [[ ${PROMPT_COMMAND[*]+${PROMPT_COMMAND@a}} == *a* ]]; then
@bash@         for __genv_key in "${PROMPT_COMMAND[@]}"; do
@bash@             __genv_unhooked "$__genv_key"
@bash@             [[ $__genv_key == __genv_hook ]] || __genv_rest+=("$__genv_text")
@bash@         done
@bash@         PROMPT_COMMAND=(${__genv_rest[@]+"${__genv_rest[@]}"})
@bash@     elif [[ ${PROMPT_COMMAND-} == __genv_hook ]]; then
@bash@         \builtin unset -v PROMPT_COMMAND
@bash@     elif [[ ${PROMPT_COMMAND-} == *__genv_hook* ]]; then
@bash@         __genv_unhooked "$PROMPT_COMMAND"
@bash@         PROMPT_COMMAND=$__genv_text
@bash@     fi
@bash@ }
@bash@ # Sets __genv_text to commands without the hook. The hook gives way to : only where a command must be, since : hides $? from
@bash@ # the hooks after it.
@bash@ function __genv_unhooked {
@bash@     \builtin local __genv_behind="$1"
@bash@     __genv_text=''
@bash@     while [[ $__genv_behind == *__genv_hook* ]]; do
@bash@         __genv_text+=${__genv_behind%%__genv_hook*}
@bash@         __genv_behind=${__genv_behind#*__genv_hook}
@bash@         if [[ $__genv_text == *[[:alnum:]_./:=-] || $__genv_behind == [[:alnum:]_./:=-]* ]]; then
@bash@             # This is a part of another word.
@bash@             __genv_text+=__genv_hook
@bash@         elif [[ $__genv_behind == [';'$'\n']* && ($__genv_text == '' || $__genv_text == *[';'$'\n'] || $__genv_text == *'; ') ]]; then
@bash@             __genv_behind=${__genv_behind#?}
@bash@         elif [[ $__genv_behind == '' && $__genv_text == *$'\n' ]]; then
@bash@             __genv_text=${__genv_text%?}
@bash@         else
@bash@             __genv_text+=:
@bash@         fi
@bash@     done
@bash@     __genv_text+=$__genv_behind
@bash@ }

function __genv_preactivate {
    @zsh@ \builtin emulate -L zsh
    \builtin set -- activate
    if [[ ${GENV_PREACTIVATE_PROMPT-} == 0 ]]; then
        \builtin set -- "$@" --no-prompt
    fi
    if [[ -n ${GENV_PREACTIVATE_GPUS-} ]]; then
        \builtin set -- "$@" "--gpus=$GENV_PREACTIVATE_GPUS"
    fi
    if [[ -n ${GENV_PREACTIVATE_GPU_MEMORY-} ]]; then
        \builtin set -- "$@" "--gpu-memory=$GENV_PREACTIVATE_GPU_MEMORY"
    fi
    if [[ -n ${GENV_PREACTIVATE_GPU_TYPE-} ]]; then
        \builtin set -- "$@" "--gpu-type=$GENV_PREACTIVATE_GPU_TYPE"
    fi
    if [[ -n ${GENV_PREACTIVATE_GPU_MEMORY_AT_LEAST-} ]]; then
        \builtin set -- "$@" "--gpu-memory-at-least=$GENV_PREACTIVATE_GPU_MEMORY_AT_LEAST"
    fi
    if [[ -n ${GENV_PREACTIVATE_ENVIRONMENT_NAME-} ]]; then
        \builtin set -- "$@" "--name=$GENV_PREACTIVATE_ENVIRONMENT_NAME"
    fi
    # The variables are for this shell, and not for shells below it.
    \builtin unset -v GENV_PREACTIVATE GENV_PREACTIVATE_PROMPT GENV_PREACTIVATE_GPUS GENV_PREACTIVATE_GPU_MEMORY GENV_PREACTIVATE_GPU_TYPE GENV_PREACTIVATE_GPU_MEMORY_AT_LEAST GENV_PREACTIVATE_ENVIRONMENT_NAME
    if [[ -z ${GENV_ENVIRONMENT_ID+set} ]]; then
        __genv_call "$@"
    fi
}

if [[ -n ${GENV_ENVIRONMENT_ID+set} ]]; then
    # A parent shell that exports PS1 has passed on the text.
    if [[ $- == *i* && ${PS1-} == *'(genv) '* ]]; then
        __genv_prompted=1
    fi
    __genv_call shell --join || \builtin true
fi
if [[ ${GENV_PREACTIVATE-} == 1 ]]; then
    __genv_preactivate || \builtin true
fi
