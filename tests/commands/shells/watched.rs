//! A shell at its prompt reports the changes of its devices, and keeps its own prompt and variables.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use genv_tests::patience::until;
use genv_tests::shell::{Account, Shell, installation};
use genv_tests::state;
use genv_tests::terminal::{PROMPT, Terminal, start_up};
use serde_json::json;

use crate::shells::terminal::{MARK, MARKED, fresh, ready, set_up, succeed, succeed_inside};

fn two_shells_of(account: &Account, shell: Shell) -> Result<(Terminal, Terminal)> {
    let mut first = ready(account, shell)?;
    succeed(&mut first, "genv activate --id e1 --gpus 2")?;
    let mut second = ready(account, shell)?;
    succeed(&mut second, "genv activate --id e1")?;
    for terminal in [&mut first, &mut second] {
        terminal.wait(MARKED)?;
    }
    Ok((first, second))
}

fn two_shells(shell: Shell) -> Result<(Account, Terminal, Terminal)> {
    let account = set_up(shell)?;
    let (first, second) = two_shells_of(&account, shell)?;
    Ok((account, first, second))
}

fn at_next_prompt(terminal: &mut Terminal) -> Result<String> {
    terminal.enter("", MARKED)
}

#[test]
fn a_prompt_shows_what_another_shell_did_to_the_devices() -> Result<()> {
    for shell in Shell::ALL {
        let (account, mut first, mut second) = two_shells(shell)?;
        succeed(&mut second, "genv detach --index 1")?;
        let shown = at_next_prompt(&mut first)?;
        let expected = "genv: device 1 was detached by another command. CUDA_VISIBLE_DEVICES is 0 now";
        ensure!(shown.contains(expected), "{shell}: {shown}");
        succeed_inside(&mut first, "env | grep '^CUDA_VISIBLE_DEVICES=0$'")?;
        let shown = at_next_prompt(&mut first)?;
        ensure!(!shown.contains("genv:"), "{shell}: {shown}");

        let mut third = ready(&account, shell)?;
        succeed(&mut third, "genv activate --id e2 --gpus 1")?;
        succeed(&mut second, "genv attach --count 3")?;
        let shown = at_next_prompt(&mut first)?;
        let expected = "genv: devices 2, 3 were attached by another command. CUDA_VISIBLE_DEVICES is 0,2,3 now";
        ensure!(shown.contains(expected), "{shell}: {shown}");
        succeed(&mut second, "genv detach --index 3")?;
        succeed(&mut third, "genv attach --index 3")?;
        let shown = at_next_prompt(&mut first)?;
        ensure!(shown.contains("device 3 was detached by another command, and environment e2 of "), "{shell}: {shown}");
    }
    Ok(())
}

fn reminders(terminal: &mut Terminal) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for _ in 0..4 {
        let shown = at_next_prompt(terminal)?;
        let lines = shown.lines().filter_map(|line| line.split_once("genv: "));
        let lines = lines.map(|(_, line)| line.trim_end().to_owned());
        found.extend(lines.filter(|line| line.starts_with("the lease of ")));
    }
    Ok(found)
}

#[test]
fn a_prompt_reminds_once_before_the_end_of_a_lease() -> Result<()> {
    for shell in Shell::ALL {
        let (_account, mut first, mut second) = two_shells(shell)?;
        succeed_inside(&mut second, "genv extend 902s")?;
        let mut found = Vec::new();
        until("a reminder comes", || {
            found.extend(reminders(&mut first)?);
            Ok(!found.is_empty())
        })?;
        found.extend(reminders(&mut first)?);
        let [soon] = &found[..] else {
            bail!("{shell}: {found:?}");
        };
        ensure!(
            soon.starts_with("the lease of environment e1 ends at ")
                && soon.ends_with(" minutes: 'genv extend 2h' extends it by 2 hours"),
            "{shell}: {soon}"
        );
        succeed_inside(&mut first, "genv extend 2h")?;
        ensure!(reminders(&mut first)?.is_empty(), "{shell}");
    }
    Ok(())
}

#[test]
fn a_prompt_reports_once_that_the_variable_is_gone() -> Result<()> {
    // The code of each shell says so itself.
    for shell in Shell::ALL {
        let (_account, mut first, _second) = two_shells(shell)?;
        let erase = shell.unset("CUDA_VISIBLE_DEVICES");
        let expected = "genv: CUDA_VISIBLE_DEVICES is not set: programs see all devices.";
        succeed(&mut first, &erase)?;
        let shown = first.wait(MARKED)?;
        ensure!(shown.contains(expected), "{shell}: {shown}");
        let shown = at_next_prompt(&mut first)?;
        ensure!(!shown.contains("genv:"), "{shell}: {shown}");
        let shown = succeed(&mut first, "genv status")?;
        ensure!(
            shown.contains("Shell     has no CUDA_VISIBLE_DEVICES, and programs see all devices"),
            "{shell}: {shown}"
        );
        first.wait(MARKED)?;
        succeed_inside(&mut first, "genv attach --refresh")?;
        succeed_inside(&mut first, "env | grep '^CUDA_VISIBLE_DEVICES=0,1$'")?;
        succeed(&mut first, &erase)?;
        let shown = first.wait(MARKED)?;
        ensure!(shown.contains(expected), "{shell}: {shown}");
    }
    Ok(())
}

#[test]
fn a_value_of_the_users_stays_and_the_line_names_it() -> Result<()> {
    let (_account, mut first, mut second) = two_shells(Shell::Bash)?;
    succeed(&mut first, &Shell::Bash.set("CUDA_VISIBLE_DEVICES", "1"))?;
    let shown = succeed(&mut first, "genv status")?;
    ensure!(shown.contains("CUDA_VISIBLE_DEVICES='1': 'genv attach --refresh'"), "{shown}");
    succeed(&mut second, "genv detach --index 1")?;
    first.wait(PROMPT)?;
    let shown = at_next_prompt(&mut first)?;
    ensure!(
        shown.contains("CUDA_VISIBLE_DEVICES stays 1 because you have set it: 'genv attach --refresh' sets it to 0"),
        "{shown}"
    );
    succeed(&mut first, "env | grep '^CUDA_VISIBLE_DEVICES=1$'")?;
    succeed(&mut first, "genv attach --refresh")?;
    succeed(&mut first, "env | grep '^CUDA_VISIBLE_DEVICES=0$'")?;
    let shown = succeed(&mut first, "genv status")?;
    ensure!(!shown.contains("Shell "), "{shown}");
    Ok(())
}

#[test]
fn a_shell_leaves_its_environment_at_the_prompt_only_if_its_user_ended_it() -> Result<()> {
    let (account, mut terminal) = fresh(Shell::Bash)?;
    succeed_inside(&mut terminal, "genv activate --id e1 --gpus 1")?;
    state::edit(&account.state(), |it| {
        it["environments"] = json!([]);
        it["devices"] = json!([]);
        Ok(())
    })?;
    let shown = at_next_prompt(&mut terminal)?;
    let expected = "no command of yours or of root ended it: this shell keeps its variables";
    ensure!(shown.contains(expected), "{shown}");
    let variables = "env | grep -c -e '^GENV_ENVIRONMENT_ID=e1$' -e '^CUDA_VISIBLE_DEVICES=0$'";
    let shown = succeed(&mut terminal, variables)?;
    ensure!(shown.contains('2'), "{shown}");
    drop(terminal);

    let mut terminal = ready(&account, Shell::Bash)?;
    succeed_inside(&mut terminal, "genv activate --id e2 --gpus 1")?;
    let mut other = ready(&account, Shell::Bash)?;
    let line = format!("genv envs deactivate --pid {}", terminal.pid());
    succeed(&mut other, &line)?;
    let shown = terminal.enter("", "'genv activate' starts one.")?;
    ensure!(shown.contains("environment e2 has ended"), "{shown}");
    Ok(())
}

/// The stamp of a shell, in the folder that it uses without a login's folder.
fn stamp(account: &Account, terminal: &Terminal) -> PathBuf {
    account.home().join("genv-prompts").join(terminal.pid().to_string())
}

#[test]
fn no_program_is_started_while_nothing_changes() -> Result<()> {
    for shell in Shell::ALL {
        let account = set_up(shell)?;
        let home = account.home().display().to_string();
        let runtime = [("XDG_RUNTIME_DIR", home.as_str())];
        let mut terminal = Terminal::start(&account, shell, &runtime)?;
        terminal.wait(PROMPT)?;
        succeed(&mut terminal, "genv activate --gpus 1 --for 8h")?;
        // After its own change the shell looks once more.
        for _ in 0..3 {
            at_next_prompt(&mut terminal)?;
        }
        let stamp = stamp(&account, &terminal);
        let written = || -> Result<(i64, i64)> {
            let found = fs::metadata(&stamp).with_context(|| stamp.display().to_string())?;
            Ok((found.ctime(), found.ctime_nsec()))
        };
        let before = written()?;
        for _ in 0..3 {
            at_next_prompt(&mut terminal)?;
        }
        ensure!(written()? == before, "{shell} asks at each prompt");
        // The shell makes a removed stamp again.
        fs::remove_file(&stamp)?;
        at_next_prompt(&mut terminal)?;
        at_next_prompt(&mut terminal)?;
        written()?;
        succeed(&mut terminal, "genv deactivate")?;
        ensure!(!stamp.exists(), "{shell} leaves its stamp behind");
    }
    Ok(())
}

#[test]
fn what_a_line_left_behind_is_there_after_the_prompt() -> Result<()> {
    for (shell, statuses) in
        [(Shell::Bash, "${PIPESTATUS[*]}"), (Shell::Zsh, "$pipestatus"), (Shell::Fish, "$pipestatus")]
    {
        let lines = [
            ("false | true | sh -c 'exit 3'", statuses, "<1 0 3>"),
            ("sh -c 'exit 7'", shell.code(), "<7>"),
            // fish has no such variable.
            (": one two", if shell == Shell::Fish { "two" } else { "$_" }, "<two>"),
        ];
        let (_account, mut first, mut second) = two_shells(shell)?;
        for ((line, asked, expected), count) in lines.into_iter().zip([1, 2, 1]) {
            succeed(&mut second, &format!("genv attach --count {count}"))?;
            let shown = first.enter(line, MARKED)?;
            ensure!(shown.contains("CUDA_VISIBLE_DEVICES is"), "{shell}: {shown}");
            first.enter(&format!("echo '<'\"{asked}>\""), expected).with_context(|| format!("{shell}: {line}"))?;
            first.wait(MARKED)?;
        }
    }
    Ok(())
}

fn others(shell: Shell) -> Vec<&'static str> {
    match shell {
        Shell::Bash => vec![
            "",
            "set -eu",
            "set -eu; PROMPT_COMMAND=(true ':')",
            "PROMPT_COMMAND='true;'",
            "PROMPT_COMMAND='true # why'",
            "PROMPT_COMMAND=; trap 'true $BASH_COMMAND' DEBUG; set -T",
            // As starship: each run of this hook sets the prompt anew, and runs the former hook.
            "theirs() { eval \"${before-}\"; PS1='READY> '; }; before=${PROMPT_COMMAND-}; PROMPT_COMMAND=theirs",
        ],
        Shell::Zsh => vec![
            "",
            "setopt err_exit no_unset",
            "setopt ksh_arrays sh_word_split warn_create_global",
            "precmd() { true }",
            "trap 'true' DEBUG",
            // As powerlevel10k.
            "theirs() { PROMPT='READY> ' }; precmd_functions+=(theirs)",
        ],
        Shell::Fish => vec![
            "",
            // As starship.
            "function fish_prompt; echo -n 'READY> '; end",
        ],
    }
}

#[test]
fn others_may_change_the_prompt_before_and_after() -> Result<()> {
    for shell in Shell::ALL {
        for theirs in others(shell) {
            // A line that replaces all hooks is a case for genv doctor.
            let replaces = theirs.contains("PROMPT_COMMAND=") && !theirs.contains("before");
            for is_before in [true, false].into_iter().filter(|it| *it || !replaces) {
                let account = Account::new()?;
                start_up(&account, shell, "", if is_before { theirs } else { "" })?;
                let (mut first, mut second) = two_shells_of(&account, shell)?;
                if !is_before && !theirs.is_empty() {
                    first.run(theirs)?;
                    // The next prompt may be the other program's.
                    first.wait(PROMPT)?;
                    at_next_prompt(&mut first)?;
                }
                succeed(&mut second, "genv detach --index 1")?;
                let shown = at_next_prompt(&mut first)?;
                ensure!(shown.contains("device 1 was detached"), "{shell}: {theirs}, before: {is_before}: {shown}");
                ensure!(shown.matches("genv:").count() == 1, "{shell}: {theirs}: {shown}");
                let shown = at_next_prompt(&mut first)?;
                ensure!(!shown.contains("genv"), "{shell}: {theirs}: {shown}");
                first.enter("genv deactivate", PROMPT)?;
                let shown = first.enter("", PROMPT)?;
                ensure!(!shown.contains(MARK), "{shell}: {theirs}: {shown}");
            }
        }
    }
    Ok(())
}

#[test]
fn what_runs_before_prompts_is_as_before_after_an_environment() -> Result<()> {
    for (shell, theirs, show) in [
        (Shell::Bash, "unset PROMPT_COMMAND", "declare -p PROMPT_COMMAND"),
        (Shell::Bash, "PROMPT_COMMAND='true; true'", "declare -p PROMPT_COMMAND"),
        (Shell::Bash, "PROMPT_COMMAND=(true false)", "declare -p PROMPT_COMMAND"),
        (Shell::Zsh, "f() { true }; precmd_functions=(f)", "typeset -p precmd_functions"),
        (Shell::Zsh, "unset precmd_functions", "typeset -p precmd_functions"),
    ] {
        let (account, mut terminal) = fresh(shell)?;
        succeed(&mut terminal, theirs)?;
        terminal.run(&format!("{show} >before 2>&1"))?;
        succeed_inside(&mut terminal, "genv activate")?;
        succeed(&mut terminal, "genv deactivate")?;
        terminal.run(&format!("{show} >after 2>&1"))?;
        let read = |name| fs::read_to_string(account.home().join(name));
        ensure!(read("before")? == read("after")?, "{shell}: {theirs}: {}", read("after")?);
    }
    Ok(())
}

#[test]
fn doctor_finds_what_runs_no_more_before_prompts() -> Result<()> {
    for (shell, removal) in [(Shell::Bash, "PROMPT_COMMAND=true"), (Shell::Zsh, "precmd_functions=()")] {
        let (_account, mut terminal) = fresh(shell)?;
        succeed_inside(&mut terminal, "genv activate --gpus 1")?;
        for (line, is_removed) in [("true", false), (removal, true), ("genv attach --refresh", false)] {
            succeed(&mut terminal, line)?;
            let (shown, _) = terminal.run("genv doctor")?;
            ensure!(shown.contains("removed the hook before each prompt") == is_removed, "{shell}: {line}: {shown}");
        }
    }
    Ok(())
}

#[test]
fn the_shims_come_first_again_after_others_have_changed_path() -> Result<()> {
    let shims = installation()?.join("lib/genv/shims");
    for shell in Shell::ALL {
        let (_account, mut terminal) = fresh(shell)?;
        succeed(&mut terminal, "env | grep ^PATH= >before")?;
        succeed(&mut terminal, "genv activate --gpus 1")?;
        // As conda, and as a virtual environment that is left.
        for path in [format!("/conda/bin:{}:/bin:/usr/bin", shims.display()), "/bin:/usr/bin".to_owned()] {
            let line = match shell {
                Shell::Fish => format!("set -gx PATH {}", path.replace(':', " ")),
                _ => format!("export PATH={path}"),
            };
            succeed(&mut terminal, &line)?;
            terminal.wait(PROMPT)?;
            succeed(&mut terminal, &format!("env | grep '^PATH={}:'", shims.display()))?;
        }
    }
    Ok(())
}
