//! Shells in a real terminal: prompts, Ctrl-C, windows.

use std::fs;

use anyhow::{Result, ensure};
use genv_tests::shell::{Account, Shell};
use genv_tests::terminal::{PROMPT, Terminal, start_up};

use crate::inherited::{INHERITED, own_uid, with_environment};

/// What writes the prompt to a file, as it is.
fn prompt_to(shell: Shell, file: &str) -> String {
    match shell {
        Shell::Bash | Shell::Zsh => format!("printf %s \"$PS1\" >{file}"),
        Shell::Fish => format!("functions --no-details fish_prompt >{file}"),
    }
}

const MARK: &str = "(genv) ";

#[test]
fn the_prompt_shows_an_environment_that_is_joined_and_is_as_before_after_it() -> Result<()> {
    for shell in Shell::ALL {
        let (account, _member) = with_environment(INHERITED[0].1, own_uid())?;
        start_up(&account, shell, &prompt_to(shell, "before"), "")?;
        let mut inherited = INHERITED.to_vec();
        inherited[3].1 = "CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES= PROMPT";
        let mut terminal = Terminal::start(&account, shell, &inherited)?;
        terminal.wait(&format!("{MARK}{PROMPT}"))?;
        // It is not handed to programs, nor is the code below it lost.
        let (shown, code) = terminal.run("env | grep PS1")?;
        ensure!(code == 1, "{shell} exports its prompt: {shown}");
        terminal.run("genv shell --reattach")?;
        terminal.wait(&format!("{MARK}{PROMPT}"))?;

        terminal.run(&shell.set("GENV_ENVIRONMENT_ID", "gone"))?;
        let (shown, code) = terminal.run("genv shell --reattach")?;
        ensure!(
            code == 0 && shown.contains("environment gone has ended"),
            "{shell}: {code} {shown}"
        );
        terminal.run(&prompt_to(shell, "after"))?;
        let read = |name| fs::read_to_string(account.home().join(name));
        let (before, after) = (read("before")?, read("after")?);
        ensure!(before == after, "{shell}: {before:?} became {after:?}");
        let shown = terminal.wait(PROMPT)?;
        ensure!(!shown.contains(MARK), "{shell}: {shown:?}");
    }
    Ok(())
}

#[test]
fn whoever_types_into_a_shell_is_told_that_its_environment_ended() -> Result<()> {
    for shell in Shell::ALL {
        let account = Account::new()?;
        start_up(&account, shell, "", "")?;
        let mut terminal = Terminal::start(&account, shell, &INHERITED)?;
        let shown = terminal.wait(PROMPT)?;
        ensure!(shown.contains("has ended"), "{shell}: {shown}");
        ensure!(!shown.contains(MARK), "{shell}: {shown}");
        let (shown, code) = terminal.run("env | grep -e GENV_E -e GENV_R")?;
        ensure!(code == 1, "{shell}: {shown}");
    }
    Ok(())
}

#[test]
fn a_prompt_that_others_changed_meanwhile_loses_the_mark_only() -> Result<()> {
    let changed = [
        // As conda does.
        (Shell::Bash, "PS1=\"(base) $PS1\"", "(base) "),
        (Shell::Zsh, "PS1=\"(base) $PS1\"", "(base) "),
        (
            Shell::Fish,
            "functions -e fish_prompt; function fish_prompt; echo -n '(base) READY> '; end",
            "(base) ",
        ),
        (Shell::Bash, "PS1='plain READY> '", "plain "),
        (
            Shell::Zsh,
            "setopt prompt_subst; PS1='$(echo plain) READY> '",
            "plain ",
        ),
    ];
    for (shell, change, start) in changed {
        let (account, _member) = with_environment(INHERITED[0].1, own_uid())?;
        start_up(&account, shell, "", "")?;
        let mut inherited = INHERITED.to_vec();
        inherited[3].1 = "CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES= PROMPT";
        let mut terminal = Terminal::start(&account, shell, &inherited)?;
        terminal.wait(&format!("{MARK}{PROMPT}"))?;
        terminal.run(change)?;
        terminal.run(&shell.set("GENV_ENVIRONMENT_ID", "gone"))?;
        terminal.run("genv shell --reattach")?;
        terminal.wait(PROMPT)?;
        terminal.run("true")?;
        let shown = terminal.wait(PROMPT)?;
        ensure!(
            shown.ends_with(start) && !shown.contains(MARK),
            "{shell} after {change}: {shown:?}"
        );
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
    terminal.type_line("sh -c 'exit 42'")?;
    terminal.wait(&format!("{MARK}42 {PROMPT}"))?;
    Ok(())
}
