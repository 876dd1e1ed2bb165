//! The prompt of a shell in a real terminal: marked in an environment, and otherwise unchanged, whatever else sets it.

use std::fs;

use anyhow::{Context, Result, ensure};
use genv_tests::shell::{Account, Shell};
use genv_tests::terminal::{PROMPT, Terminal, start_up};

use crate::shells::inherited::{INHERITED, own_uid, with_environment};
use crate::shells::terminal::{MARK, MARKED, fresh, succeed, succeed_inside};

fn prompt_to(shell: Shell, file: &str) -> String {
    match shell {
        Shell::Bash | Shell::Zsh => format!("printf %s \"$PS1\" >{file}"),
        Shell::Fish => format!("functions --no-details fish_prompt >{file}"),
    }
}

fn same(account: &Account, before: &str, after: &str) -> Result<()> {
    let read = |name| fs::read_to_string(account.home().join(name));
    let (before, after) = (read(before)?, read(after)?);
    ensure!(before == after, "{before:?} became {after:?}");
    Ok(())
}

/// A shell that was started within an environment, and that shows it in its prompt.
fn inside(account: &Account, shell: Shell) -> Result<Terminal> {
    let mut inherited = INHERITED.to_vec();
    inherited[3].1 = "CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES= PROMPT";
    let mut terminal = Terminal::start(account, shell, &inherited)?;
    terminal.wait(MARKED)?;
    Ok(terminal)
}

#[test]
fn a_prompt_that_others_changed_meanwhile_loses_the_mark_only() -> Result<()> {
    let changed = [
        // As conda does.
        (Shell::Bash, "PS1=\"(base) $PS1\"", "(base) "),
        (Shell::Zsh, "PS1=\"(base) $PS1\"", "(base) "),
        (Shell::Fish, "functions -e fish_prompt; function fish_prompt; echo -n '(base) READY> '; end", "(base) "),
        (Shell::Bash, "PS1='plain READY> '", "plain "),
        (Shell::Zsh, "setopt prompt_subst; PS1='$(echo plain) READY> '", "plain "),
    ];
    for (shell, change, start) in changed {
        let (account, _member) = with_environment(INHERITED[0].1, own_uid())?;
        start_up(&account, shell, "", "")?;
        let mut terminal = inside(&account, shell)?;
        terminal.run(change)?;
        terminal.run(&shell.set("GENV_ENVIRONMENT_ID", "gone"))?;
        terminal.run("genv shell --reattach")?;
        terminal.wait(PROMPT)?;
        terminal.run("true")?;
        let shown = terminal.wait(PROMPT)?;
        ensure!(shown.ends_with(start) && !shown.contains(MARK), "{shell} after {change}: {shown:?}");
    }
    Ok(())
}

/// What the scripts of Python's virtual environments do to the prompt: when one is entered, and when it is left.
fn virtual_environment(shell: Shell) -> [&'static str; 2] {
    match shell {
        Shell::Bash | Shell::Zsh => {
            ["_OLD_VIRTUAL_PS1=$PS1; PS1=\"(venv) $PS1\"", "PS1=$_OLD_VIRTUAL_PS1; unset _OLD_VIRTUAL_PS1"]
        }
        Shell::Fish => [
            "functions -c fish_prompt _old_fish_prompt; function fish_prompt; echo -n '(venv) '; _old_fish_prompt; end",
            "functions -e fish_prompt; functions -c _old_fish_prompt fish_prompt; functions -e _old_fish_prompt",
        ],
    }
}

#[test]
fn a_virtual_environment_may_be_left_before_or_after() -> Result<()> {
    for shell in Shell::ALL {
        let [enter, leave] = virtual_environment(shell);
        for after_it in [[leave, "genv deactivate"], ["genv deactivate", leave]] {
            let (account, mut terminal) = fresh(shell)?;
            succeed(&mut terminal, &prompt_to(shell, "before"))?;
            for line in ["genv activate", enter].iter().chain(&after_it) {
                terminal.wait(PROMPT)?;
                succeed(&mut terminal, line)?;
            }
            let shown = terminal.wait(PROMPT)?;
            ensure!(!shown.contains(MARK) && !shown.contains("__genv"), "{shell}: {after_it:?}: {shown:?}");
            succeed(&mut terminal, &prompt_to(shell, "after"))?;
            same(&account, "before", "after").with_context(|| format!("{shell}: {after_it:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_prompt_with_the_same_mark_of_somebody_else_keeps_it() -> Result<()> {
    for shell in [Shell::Bash, Shell::Zsh] {
        let (_account, mut terminal) = fresh(shell)?;
        // As conda does in an environment of that name.
        succeed_inside(&mut terminal, "PS1=\"(genv) $PS1\"")?;
        terminal.enter("genv activate", &format!("{MARK}{MARK}{PROMPT}"))?;
        let shown = terminal.enter("genv deactivate", PROMPT)?;
        ensure!(shown.matches(MARK).count() == 1, "{shell}: {shown:?}");
    }
    Ok(())
}

#[test]
fn a_prompt_that_is_made_anew_is_marked_anew() -> Result<()> {
    for shell in [Shell::Bash, Shell::Zsh] {
        let (_account, mut terminal) = fresh(shell)?;
        terminal.enter("genv activate", MARKED)?;
        let below = match shell {
            Shell::Bash => "export PS1; bash --norc",
            _ => "export PS1; zsh -f",
        };
        // The start-up file is read again, and then a shell below gets the prompt from this one.
        let again = format!(". ./{}", shell.startup_file());
        for line in [&again, below, shell.setup()] {
            let shown = terminal.enter(line, MARKED)?;
            ensure!(!shown.contains(MARK), "{shell}: {line}: {shown:?}");
        }
        let shown = terminal.enter("genv deactivate", PROMPT)?;
        ensure!(!shown.contains(MARK), "{shell}: {shown:?}");
    }
    Ok(())
}

#[test]
fn a_prompt_still_sees_the_last_exit_code() -> Result<()> {
    let (account, _member) = with_environment(INHERITED[0].1, own_uid())?;
    let prompt = "function fish_prompt; echo -n \"$status READY> \"; end";
    start_up(&account, Shell::Fish, prompt, "")?;
    let mut inherited = INHERITED.to_vec();
    inherited[3].1 = "PROMPT";
    let mut terminal = Terminal::start(&account, Shell::Fish, &inherited)?;
    terminal.wait(&format!("{MARK}0 {PROMPT}"))?;
    terminal.enter("sh -c 'exit 42'", &format!("{MARK}42 {PROMPT}"))?;
    Ok(())
}

#[test]
fn the_prompt_shows_an_environment_from_activation_to_deactivation() -> Result<()> {
    for shell in Shell::ALL {
        let (account, mut terminal) = fresh(shell)?;
        succeed(&mut terminal, &prompt_to(shell, "before"))?;
        succeed(&mut terminal, "env | sort >variables-before")?;
        for _ in 0..2 {
            terminal.wait(PROMPT)?;
            terminal.enter("genv activate --gpus 1", MARKED)?;
            // It is not handed to programs.
            let (shown, code) = terminal.run("env | grep PS1")?;
            ensure!(code == 1, "{shell} exports its prompt: {shown}");
            terminal.wait(MARKED)?;
            let shown = terminal.enter("genv config name x", PROMPT)?;
            ensure!(shown.matches(MARK).count() == 1, "{shell}: {shown}");
            succeed(&mut terminal, "genv deactivate")?;
        }
        succeed(&mut terminal, &prompt_to(shell, "after"))?;
        succeed(&mut terminal, "env | sort >variables-after")?;
        for (before, after) in [("before", "after"), ("variables-before", "variables-after")] {
            same(&account, before, after).with_context(|| shell.to_string())?;
        }
        terminal.wait(PROMPT)?;
        succeed(&mut terminal, "genv activate --no-prompt")?;
        let shown = terminal.wait(PROMPT)?;
        ensure!(!shown.contains(MARK), "{shell}: {shown}");
    }
    Ok(())
}

#[test]
fn a_shell_that_exec_starts_shows_its_environment_unless_the_shell_around_it_shows_none() -> Result<()> {
    for shell in Shell::ALL {
        let (_account, mut terminal) = fresh(shell)?;
        let start = format!("genv exec --gpus 1 -- {} -i", shell.name());
        terminal.enter(&start, MARKED)?;
        let shown = terminal.enter("exit", PROMPT)?;
        ensure!(!shown.contains(MARK), "{shell}: {shown:?}");

        succeed(&mut terminal, "genv activate --no-prompt")?;
        terminal.wait(PROMPT)?;
        let shown = terminal.enter(&start, PROMPT)?;
        ensure!(!shown.contains(MARK), "{shell}: {shown:?}");
        let (shown, code) = terminal.run("printenv CUDA_VISIBLE_DEVICES")?;
        ensure!(code == 0 && shown.contains('0'), "{shell}: {shown:?}");
    }
    Ok(())
}
