//! Setting genv up, whatever a user has done to the shell before.

use anyhow::{Result, ensure};
use genv_tests::shell::{Account, Shell, installation, installed};

/// Options under which a careless script breaks, and names of the function's own commands that a user took.
fn habits(shell: Shell) -> Vec<String> {
    let common = [
        "",
        "genv() { command genv \"$@\"; }",
        "command() { echo hijacked; }; eval() { echo hijacked; }; unset() { echo hijacked; }; test() { echo hijacked; }; \
         export() { echo hijacked; }; return() { echo hijacked; }; set() { echo hijacked; }; true() { echo hijacked; }",
        "alias command='echo hijacked' eval='echo hijacked' unset='echo hijacked' local='echo hijacked' return='echo hijacked' \
         break='echo hijacked' builtin='echo hijacked' set='echo hijacked' true='echo hijacked' export='echo hijacked'",
        "alias genv='command genv'",
        "IFS=elh",
        "set -f",
        "set -C",
        "set -o pipefail",
        "set -eu -o pipefail",
    ];
    let own: &[&str] = match shell {
        Shell::Bash => &[
            "shopt -s expand_aliases; alias genv='genv ' command='echo hijacked' eval='echo hijacked' local='echo hijacked'",
            "set -o posix",
            "shopt -s failglob nocasematch extglob",
            "set -E; trap 'echo hijacked' ERR",
            "exec 8</dev/null 9</dev/null",
        ],
        Shell::Zsh => &[
            "setopt ksh_arrays sh_word_split rc_quotes no_unset err_exit warn_create_global",
            "setopt csh_junkie_quotes glob_subst null_glob extended_glob prompt_subst",
            "emulate ksh",
            "emulate sh",
        ],
        Shell::Fish => {
            return [
                "",
                "function genv; command genv $argv; end",
                "function functions; builtin echo hijacked; end; function printf; builtin echo hijacked; end",
                "function echo; builtin echo hijacked; end; function cat; builtin echo hijacked; end",
                "alias genv 'command genv'",
                "set -g code 7; set -g word x; set -g arguments y",
            ]
            .map(str::to_owned)
            .to_vec();
        }
    };
    common.iter().chain(own).map(|&habit| habit.to_owned()).collect()
}

const SET_UP: &str = "genv is set up in this shell. 'genv status' shows its environment, 'genv activate' starts one.\n";

#[test]
fn genv_is_set_up_whatever_the_user_did_before() -> Result<()> {
    for shell in Shell::ALL {
        for habit in habits(shell) {
            let account = Account::new()?;
            // The user's own line is not ours to protect.
            let setup = shell.setup().replace("eval", r"\builtin eval");
            let setup = setup.replace("(genv", r"(\builtin command genv");
            // Twice, as when a start-up file is read again.
            let show = "/bin/sh -c 'echo \"${GENV_ENVIRONMENT_ID-none} ${CUDA_VISIBLE_DEVICES-none}\"'";
            let script = format!(
                "{habit}\n{setup}\n{setup}\ngenv shell\n\
                 genv activate --id \"a'b\" --gpus 2\n{show}\ngenv detach --index 0\n{show}\ngenv deactivate\n{show}"
            );
            let (code, stdout, stderr) = account.script(shell.name(), &[], &script)?;
            let expected = format!("{SET_UP}a'b 0,1\na'b 1\nnone none\n");
            ensure!(
                (code, &*stdout, &*stderr) == (0, &*expected, ""),
                "{shell} after {habit:?}: {code} {stdout} {stderr}"
            );
        }
    }
    Ok(())
}

#[test]
fn the_hook_of_the_prompt_works_with_any_ifs() -> Result<()> {
    let path = "/bin/sh -c 'echo \"$PATH\"'";
    for shell in Shell::ALL {
        let (ifs, code) = match shell {
            Shell::Bash | Shell::Zsh => ("IFS=", "echo \"$?\""),
            Shell::Fish => ("set -g IFS ", "echo $status"),
        };
        for value in ["0", "a", ""] {
            let account = Account::new()?;
            let (setup, devices) = (shell.setup(), shell.set("CUDA_VISIBLE_DEVICES", "0"));
            let script = format!(
                "{setup}\n{ifs}'{value}'\n{devices}\n{path}\n__genv_watch stamp /shims '' /nonexistent\n\
                 false\n__genv_hook\n{code}\n{path}"
            );
            let (_, stdout, stderr) = account.script(shell.name(), &[], &script)?;
            let before = stdout.lines().next().unwrap_or_default();
            let expected = format!("{before}\n1\n/shims:{before}\n");
            ensure!((&*stdout, &*stderr) == (&*expected, ""), "{shell} with IFS={value:?}: {stdout} {stderr}");
        }
    }
    Ok(())
}

#[test]
fn output_can_be_captured_and_piped() -> Result<()> {
    for shell in Shell::ALL {
        let account = Account::new()?;
        let captured = match shell {
            Shell::Bash | Shell::Zsh => r#"text=$(genv shell); printf '%s|' "$text""#,
            Shell::Fish => "set text (genv shell); printf '%s|' $text",
        };
        let script = format!("{}\n{captured}\ngenv shell | cat\ngenv shell >/dev/null\ngenv shell >&2", shell.setup());
        let (code, stdout, stderr) = account.script(shell.name(), &[], &script)?;
        let expected = format!("{}|{SET_UP}", SET_UP.trim_end());
        ensure!((code, &*stdout, &*stderr) == (0, &*expected, SET_UP), "{shell}: {code} {stdout} {stderr}");
    }
    Ok(())
}

#[test]
fn nothing_stays_after_removal() -> Result<()> {
    let all = |shell| match shell {
        Shell::Bash => "set; alias; trap; shopt -p",
        Shell::Zsh => "typeset; functions; alias; trap; setopt",
        Shell::Fish => "set; functions -a",
    };
    for shell in Shell::ALL {
        let account = Account::new()?;
        let list = |file: &str| format!("{} >{file}", shell.block(all(shell)));
        // Listed once before, since listing alone loads functions and sets variables.
        let script =
            format!("{}\n{}\n{}\n{}\n{}", list("first"), list("before"), shell.setup(), shell.removal(), list("after"));
        let (code, stdout, stderr) = account.script(shell.name(), &[], &script)?;
        ensure!((code, &*stdout, &*stderr) == (0, "", ""), "{shell}: {code} {stdout} {stderr}");
        let read = |file| std::fs::read_to_string(account.home().join(file));
        let (before, after) = (read("before")?, read("after")?);
        let counters = "RANDOM SECONDS EPOCH SRANDOM _= BASH_LINENO BASHPID LINENO \
             status pipestatus TTYIDLE sysparams COLUMNS PIPESTATUS history";
        let kept = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| !counters.split(' ').any(|name| line.contains(name)));
            lines.map(str::to_owned).collect()
        };
        let (before, after) = (kept(&before), kept(&after));
        ensure!(
            before == after,
            "{shell} keeps {:?}",
            after.iter().filter(|line| !before.contains(line)).collect::<Vec<_>>()
        );
    }
    Ok(())
}

#[test]
fn other_shells_are_left_alone_and_a_shell_can_be_named() -> Result<()> {
    let account = Account::new()?;
    let script = r#"eval "$(genv shell --init)"; echo $?; genv shell; genv shell --init >init; wc -c <init"#;
    for options in [&[][..], &["-eu"]] {
        let (code, stdout, stderr) = account.script("dash", options, script)?;
        let expected = "0\ngenv is not set up in this shell. It works in bash, zsh and fish: start one of them\n0\n";
        ensure!((code, &*stdout, &*stderr) == (0, expected, ""), "{code} {stdout} {stderr}");
    }
    for shell in Shell::ALL {
        let (code, stdout, _) = account.script("dash", &[], &format!("genv shell --init {shell}"))?;
        ensure!(code == 0 && stdout.contains(&format!("# genv in {shell}")), "{stdout}");
    }
    let (code, _, stderr) = account.script("bash", &[], "genv shell --init csh")?;
    ensure!(code == 2 && stderr.contains("bash, zsh, fish"), "{stderr}");
    Ok(())
}

#[test]
fn the_function_runs_the_program_that_it_is_of_and_falls_back_to_path() -> Result<()> {
    let program = installation()?.join("bin/genv").display().to_string();
    for shell in Shell::ALL {
        let account = Account::new()?;
        let path = |folder: &str| match shell {
            Shell::Fish => format!("set -gx PATH {folder} $PATH"),
            Shell::Bash | Shell::Zsh => format!("export PATH={folder}:$PATH"),
        };
        // The program keeps the path of the link that was called. A later folder at the front of PATH, such as that of
        // a package of genv 1.x, must not replace it.
        let script = [
            format!(
                "mkdir own venv; ln -s {program} own/genv; printf '#!/bin/sh\necho older\n' >venv/genv; chmod +x venv/genv"
            ),
            path("$HOME/own"),
            shell.setup().to_owned(),
            path("$HOME/venv"),
            "genv envs query --query eid; genv activate --id a; genv deactivate; echo own".to_owned(),
            "rm own/genv venv/genv; genv envs query --query eid; genv activate --id a; genv deactivate; echo gone"
                .to_owned(),
        ];
        let (_, stdout, stderr) = account.script(shell.name(), &[], &script.join("\n"))?;
        ensure!(!stdout.contains("older"), "{shell}: {stdout}");
        ensure!(stdout.contains("own") && stdout.contains("gone"), "{shell}: {stdout}");
        let expected = format!(
            "genv: {}/own/genv is missing, although it set up this shell: the genv of PATH runs instead. Open a new shell\n",
            account.home().display()
        );
        ensure!(stderr == expected, "{shell}: {stderr}");
    }
    Ok(())
}

#[test]
fn a_program_below_the_function_does_not_speak_for_the_shell() -> Result<()> {
    let account = Account::new()?;
    let script = "GENV_CALLER='3 bash 1 interactive' genv shell --reattach";
    let (code, stdout, stderr) = account.script("bash", &[], script)?;
    ensure!((code, &*stdout) == (1, ""), "{code} {stdout}");
    let expected = "genv: cannot change this shell: genv is not set up in it. Run this line, and add it to ~/.bashrc:\n\n    eval \"$(genv shell --init)\"\n";
    ensure!(stderr == expected, "{stderr}");
    Ok(())
}

#[test]
fn a_hook_of_which_another_program_keeps_a_copy_runs_once_and_leaves_nothing_behind() -> Result<()> {
    let account = Account::new()?;
    // As liquidprompt and oh-my-posh, a hook follows; as starship, the former hooks run within a hook.
    let script = r##"
unset GENV_ENVIRONMENT_ID
CUDA_VISIBLE_DEVICES=0
eval "$(genv shell --init)"
earlier() { echo "earlier sees $?"; }
PROMPT_COMMAND='__genv_hook; earlier'
__genv_watch /nowhere '' ''
eval "(exit 3)"$'\n'"$PROMPT_COMMAND"
before=$PROMPT_COMMAND
theirs() { local last=$?; (exit "$last"); eval "$before"; }
PROMPT_COMMAND=theirs
eval "$(declare -f __genv_rehook | sed '1s/__genv_rehook/original/')"
__genv_rehook() { echo "a run of the hook"; original; }
for code in 4 5; do eval "(exit $code)"$'\n'"$PROMPT_COMMAND"; done
unset -f original
eval "$(genv shell --deinit)"
eval "(exit 6)"$'\n'"$before"
"##;
    let (_, stdout, stderr) = account.script("bash", &[], script)?;
    let expected =
        "earlier sees 3\nearlier sees 4\na run of the hook\nearlier sees 5\na run of the hook\nearlier sees 6\n";
    ensure!((&*stdout, &*stderr) == (expected, ""), "{stdout} {stderr}");
    Ok(())
}

#[test]
fn the_hook_runs_in_a_function_of_ble_sh() -> Result<()> {
    let account = Account::new()?;
    let script = r##"
unset GENV_ENVIRONMENT_ID
CUDA_VISIBLE_DEVICES=0
eval "$(genv shell --init)"
__genv_watch /nowhere '' ''
eval "$(declare -f __genv_rehook | sed '1s/__genv_rehook/original/')"
__genv_rehook() { echo "a run of the hook"; original; }
function ble/x { eval "$PROMPT_COMMAND"; }
ble/x
before=$PROMPT_COMMAND
theirs() { eval "$before"; echo theirs; }
PROMPT_COMMAND=$'theirs\n__genv_hook'
ble/x
"##;
    let (_, stdout, stderr) = account.script("bash", &[], script)?;
    ensure!((&*stdout, &*stderr) == ("a run of the hook\ntheirs\na run of the hook\n", ""), "{stdout} {stderr}");
    Ok(())
}

#[test]
fn the_hook_runs_after_all_others_and_before_the_last_of_bash_preexec() -> Result<()> {
    let account = Account::new()?;
    let script = r##"
unset GENV_ENVIRONMENT_ID
CUDA_VISIBLE_DEVICES=0
eval "$(genv shell --init)"
for PROMPT_COMMAND in $'__bp_precmd_invoke_cmd\n__bp_interactive_mode' $'__genv_hook\n__bp_precmd_invoke_cmd\ntheirs\n__bp_interactive_mode' 'theirs;' $'my__genv_hooks\n__genv_hook;__genv_hook; a'; do
    __genv_watch /nowhere '' ''
    __genv_rehook
    echo ${PROMPT_COMMAND//$'\n'/,}
    __genv_unhook
    echo ${PROMPT_COMMAND//$'\n'/,}
done
"##;
    let (_, stdout, stderr) = account.script("bash", &[], script)?;
    let expected = "__bp_precmd_invoke_cmd,__genv_hook,__bp_interactive_mode\n__bp_precmd_invoke_cmd,__bp_interactive_mode\n\
                    __bp_precmd_invoke_cmd,theirs,__genv_hook,__bp_interactive_mode\n\
                    __bp_precmd_invoke_cmd,theirs,__bp_interactive_mode\ntheirs;,__genv_hook\ntheirs;\n\
                    my__genv_hooks, a,__genv_hook\nmy__genv_hooks, a\n";
    ensure!((&*stdout, &*stderr) == (expected, ""), "{stdout} {stderr}");
    Ok(())
}

#[test]
fn the_template_of_bash_satisfies_shellcheck() -> Result<()> {
    let account = Account::new()?;
    let (code, stdout, stderr) = account.script("bash", &[], "genv shell --init >init; genv shell --deinit >deinit")?;
    ensure!((code, &*stdout, &*stderr) == (0, "", ""), "{stdout} {stderr}");
    let mut shellcheck = account.command("shellcheck")?;
    let output = shellcheck.args(["--shell=bash", "init", "deinit"]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    // Also as sh of distributions whose sh is bash.
    ensure!(installed("bash").exists());
    let (code, _, stderr) = account.script("bash", &["--posix"], "set -eu; . ./init; genv shell >/dev/null")?;
    ensure!((code, &*stderr) == (0, ""), "{stderr}");
    Ok(())
}

#[test]
fn environments_come_and_go_in_scripts_that_are_careful_and_an_exit_code_ends_these() -> Result<()> {
    for (shell, options, ended) in [
        (Shell::Bash, "set -eu -o pipefail", 2),
        (Shell::Bash, "set -E; trap 'exit 9' ERR", 9),
        (Shell::Zsh, "set -eu -o pipefail", 2),
    ] {
        let script = format!(
            "{options}\ntrap 'echo bye' EXIT\ntrap 'echo interrupted' INT\n{}\n\
             genv activate --gpus 1\ntest \"$CUDA_VISIBLE_DEVICES\" = 0\ngenv deactivate\n\
             test -z \"${{CUDA_VISIBLE_DEVICES+set}}\"\nset +u\ntrap\n\
             genv shell --no-such-flag 2>/dev/null || echo still $?\ngenv shell --no-such-flag 2>/dev/null\necho not reached",
            shell.setup()
        );
        let (code, stdout, stderr) = Account::new()?.script(shell.name(), &[], &script)?;
        ensure!((code, &*stderr) == (ended, ""), "{shell} {options}: {code} {stdout} {stderr}");
        let kept = stdout.contains("'echo bye' EXIT") && stdout.contains("'echo interrupted' ");
        ensure!(kept && stdout.ends_with("still 2\nbye\n"), "{shell} {options}: {stdout}");
    }
    Ok(())
}

#[test]
fn a_subshell_has_an_environment_of_its_own() -> Result<()> {
    for shell in [Shell::Bash, Shell::Zsh] {
        let account = Account::new()?;
        let within = "genv activate --id inner --gpus 4; genv devices find --eid inner";
        let script = format!("{}\n({within})\ngenv envs query --query eid\n({within})\necho end", shell.setup());
        let (code, stdout, stderr) = account.script(shell.name(), &[], &script)?;
        ensure!((code, &*stdout, &*stderr) == (0, "0,1,2,3\n0,1,2,3\nend\n", ""), "{shell}: {code} {stdout} {stderr}");
    }
    Ok(())
}

#[test]
fn the_function_of_genv_1_is_told_how_to_go_on() -> Result<()> {
    let account = Account::new()?;
    for command in ["activate", "deactivate"] {
        // As genv 1.x's function in bash calls the program, and evaluates what it prints.
        let script =
            format!("eval \"$(command genv {command} --shell $$ --gpus 1)\"; command genv envs ps --format csv");
        let (_, stdout, stderr) = account.script("bash", &[], &script)?;
        ensure!(stdout == "ID,USER,NAME,CREATED,PID(S)\n", "{stdout}");
        ensure!(
            stderr.starts_with("genv: cannot change this shell: it was set up by another version of genv. "),
            "{stderr}"
        );
    }
    Ok(())
}
