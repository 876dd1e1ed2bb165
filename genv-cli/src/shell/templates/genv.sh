# genv in @SHELL@: runs the program, and lets it change this shell's variables and prompt.
# With this there is an alias to remove, without a complaint that a restricted shell could not redirect.
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
    \builtin command genv "$@"
}

# Runs the program with a pipe to this shell beside its own output, and evaluates what comes through it.
function __genv_call {
    @zsh@ \builtin emulate -L zsh
    \builtin local __genv_code='' __genv_status=0 __genv_pid __genv_rest __genv_kind=script
    # A subshell has a pid of its own, which $$ is not.
    IFS=' ' \builtin read -r __genv_pid __genv_rest </proc/self/stat || __genv_pid=$$
    if [[ $- == *i* ]]; then
        __genv_kind=interactive
        @zsh@ # Ctrl-C would end this function with 1. The user's trap is back after it.
        @zsh@ \builtin trap : INT
    fi
    {
        __genv_code=$(GENV_CALLER="@PROTOCOL@ @SHELL@ $__genv_pid $__genv_kind" \builtin command genv "$@" 9>&1 >&8 8>&-) || __genv_status=$?
    } 8>&1 || __genv_status=$?
    \builtin eval "$__genv_code"
    @zsh@ if [[ $__genv_status$__genv_kind == 130interactive ]]; then
    @zsh@     # It ends what was typed after this too, as with any program.
    @zsh@     \builtin trap - INT
    @zsh@     \builtin kill -INT $__genv_pid
    @zsh@ fi
    \builtin return "$__genv_status"
}

# The mark is found wherever others have put theirs before it meanwhile. It is put there again after they have made
# the prompt anew, and a prompt that begins with the same word as it is the user's.
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
        # What Python's virtual environments bring back when they are left.
        if [[ -n ${_OLD_VIRTUAL_PS1+set} ]]; then
            _OLD_VIRTUAL_PS1=${_OLD_VIRTUAL_PS1/'(genv) '/}
        fi
        \builtin unset -v __genv_prompted
    fi
}

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
    if [[ -n ${GENV_PREACTIVATE_ENVIRONMENT_NAME-} ]]; then
        \builtin set -- "$@" "--name=$GENV_PREACTIVATE_ENVIRONMENT_NAME"
    fi
    # For this shell, not for those started from it.
    \builtin unset -v GENV_PREACTIVATE GENV_PREACTIVATE_PROMPT GENV_PREACTIVATE_GPUS GENV_PREACTIVATE_GPU_MEMORY GENV_PREACTIVATE_ENVIRONMENT_NAME
    if [[ -z ${GENV_ENVIRONMENT_ID+set} ]]; then
        __genv_call "$@"
    fi
}

if [[ -n ${GENV_ENVIRONMENT_ID+set} ]]; then
    # A parent that exports its prompt has handed the mark on.
    if [[ $- == *i* && ${PS1-} == *'(genv) '* ]]; then
        __genv_prompted=1
    fi
    __genv_call shell --join || \builtin true
fi
if [[ ${GENV_PREACTIVATE-} == 1 ]]; then
    __genv_preactivate || \builtin true
fi
