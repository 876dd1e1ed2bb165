//! Shells in a real terminal: Ctrl-C, Ctrl-Z, windows.

use std::fs;

use anyhow::{Result, ensure};
use genv_tests::shell::{Account, Shell};
use genv_tests::terminal::{PROMPT, Terminal, start_up};

use crate::shells::inherited::INHERITED;

pub(crate) const MARK: &str = "(genv) ";

pub(crate) const MARKED: &str = "(genv) READY> ";

#[test]
fn whoever_types_into_a_shell_is_told_that_its_environment_ended() -> Result<()> {
    for shell in Shell::ALL {
        let account = set_up(shell)?;
        let mut terminal = Terminal::start(&account, shell, &INHERITED)?;
        let shown = terminal.wait(PROMPT)?;
        ensure!(shown.contains("has ended"), "{shell}: {shown}");
        ensure!(!shown.contains(MARK), "{shell}: {shown}");
        let (shown, code) = terminal.run("env | grep -e GENV_E -e GENV_R")?;
        ensure!(code == 1, "{shell}: {shown}");
    }
    Ok(())
}

pub(crate) fn set_up(shell: Shell) -> Result<Account> {
    let account = Account::new()?;
    start_up(&account, shell, "", "")?;
    Ok(account)
}

pub(crate) fn ready(account: &Account, shell: Shell) -> Result<Terminal> {
    let mut terminal = Terminal::start(account, shell, &[])?;
    terminal.wait(PROMPT)?;
    Ok(terminal)
}

pub(crate) fn fresh(shell: Shell) -> Result<(Account, Terminal)> {
    let account = set_up(shell)?;
    let terminal = ready(&account, shell)?;
    Ok((account, terminal))
}

pub(crate) fn succeed(terminal: &mut Terminal, line: &str) -> Result<String> {
    let (shown, code) = terminal.run(line)?;
    ensure!(code == 0, "{terminal:?}: {line}: {code} {shown}");
    Ok(shown)
}

/// Runs a line that succeeds, and waits for the prompt of an environment.
pub(crate) fn succeed_inside(terminal: &mut Terminal, line: &str) -> Result<()> {
    succeed(terminal, line)?;
    terminal.wait(MARKED).map(drop)
}

fn all_held(account: &Account, shell: Shell) -> Result<(Terminal, Terminal)> {
    let mut holder = ready(account, shell)?;
    succeed(&mut holder, "genv activate --id holder --gpus 4")?;
    Ok((holder, ready(account, shell)?))
}

fn start_waiting(terminal: &mut Terminal) -> Result<()> {
    terminal.enter("genv activate --gpus 1 --wait", "waiting")?;
    Ok(())
}

#[test]
fn control_c_ends_waiting_and_nothing_else_and_control_z_does_not_stop_it() -> Result<()> {
    for shell in Shell::ALL {
        let account = set_up(shell)?;
        let (mut holder, mut terminal) = all_held(&account, shell)?;
        succeed(&mut terminal, "env | sort >before")?;
        terminal.wait(PROMPT)?;
        start_waiting(&mut terminal)?;
        terminal.press_control('c')?;
        terminal.wait(PROMPT)?;
        let (shown, code) = terminal.run("")?;
        ensure!(code == 130, "{shell}: {code} {shown}");
        succeed(&mut terminal, "env | sort | cmp - before")?;
        let shown = succeed(&mut terminal, "genv envs query --query eid")?;
        ensure!(shown.contains("holder"), "{shell}: {shown}");

        // And waiting goes on where it is not ended, nor stopped by Ctrl-Z.
        start_waiting(&mut terminal)?;
        terminal.press_control('z')?;
        // A line of another shell later, it still waits, and gets what it waits for.
        succeed(&mut holder, "genv envs >/dev/null")?;
        succeed(&mut holder, "genv deactivate")?;
        terminal.wait(MARKED)?;
        succeed(&mut terminal, "env | grep CUDA_VISIBLE_DEVICES=0")?;
    }
    Ok(())
}

#[test]
fn one_line_shows_who_waits_at_a_terminal_who_holds_devices_and_jobs_in_the_background_print_it_once() -> Result<()> {
    let account = set_up(Shell::Bash)?;
    let (mut holder, mut terminal) = all_held(&account, Shell::Bash)?;
    succeed(&mut terminal, "stty columns 250")?;
    let printed = "genv: waiting for devices: next in the queue. Ctrl-C leaves the queue\r\n";
    terminal.enter("genv exec --gpus 1 --wait -- true &", printed)?;
    terminal.enter("genv exec --gpus 2 --wait -- echo runs", "\r\x1b[Kgenv: waiting ")?;
    terminal.wait(", one before you; ")?;
    let shown = terminal.wait("; Ctrl-C leaves the queue")?;
    let user = genv_core::proc::username(rustix::process::getuid().as_raw());
    let is_whole = shown.starts_with(&format!("{user} has 0,1,2,3 since ")) && shown.ends_with("; for 2 devices");
    ensure!(is_whole && !shown.contains('?'), "{shown}");
    succeed(&mut holder, "genv deactivate")?;
    terminal.wait("\r\x1b[Kgenv: it is your turn, after ")?;
    terminal.wait("runs").map(drop)
}

#[test]
fn control_c_ends_a_script_that_waits_and_what_comes_after_it() -> Result<()> {
    for shell in Shell::ALL {
        let account = set_up(shell)?;
        let (_holder, mut terminal) = all_held(&account, shell)?;
        let wait = "genv activate --gpus 1 --wait";
        // The shell needs no other program for that.
        let without_programs = match shell {
            Shell::Bash | Shell::Zsh => "PATH=/nonexistent",
            Shell::Fish => "set PATH /nonexistent",
        };
        let script = format!("{}\n{without_programs}\n{wait}\necho went on\n", shell.setup());
        fs::write(account.home().join("script"), script)?;
        for line in [
            format!("{shell} script"),
            match shell {
                Shell::Bash | Shell::Zsh => format!("while :; do {wait}; echo went on; done"),
                Shell::Fish => format!("while true; {wait}; echo went on; end"),
            },
        ] {
            terminal.enter(&line, "waiting")?;
            terminal.press_control('c')?;
            let shown = terminal.wait(PROMPT)?;
            ensure!(!shown.contains("went on"), "{shell}: {line}: {shown}");
        }
    }
    Ok(())
}

/// Prints the variables that are an environment's business; shells below shells change others themselves.
const OURS: &str = "env | grep -e '^GENV' -e '^CUDA' -e '^PATH=' | sort";

#[test]
fn shells_below_a_shell_join_its_environment_and_leave_it_alone() -> Result<()> {
    for shell in Shell::ALL {
        let (account, mut terminal) = fresh(shell)?;
        succeed(&mut terminal, &format!("{OURS} >before"))?;
        succeed(&mut terminal, "genv activate --id one --gpus 1")?;
        // Another shell in its place: the same process.
        terminal.enter(&format!("exec {shell}"), MARKED)?;
        let shown = succeed(&mut terminal, "genv envs find --pid PID".replace("PID", shell.pid()).as_str())?;
        ensure!(shown.contains("one"), "{shell}: {shown}");
        for below in Shell::ALL {
            start_up(&account, below, "", "")?;
            terminal.enter(below.name(), MARKED)?;
            terminal.enter("genv deactivate", PROMPT)?;
            terminal.enter(&format!("{OURS} | cmp - before; echo \"<left:{}>\"", below.code()), "<left:0>")?;
            terminal.enter("exit", MARKED)?;
        }
        succeed(&mut terminal, "env | grep CUDA_VISIBLE_DEVICES=0")?;
        succeed(&mut terminal, "genv deactivate")?;
        succeed(&mut terminal, &format!("{OURS} | cmp - before"))?;
    }
    Ok(())
}
