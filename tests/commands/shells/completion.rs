//! Tab in a real terminal: what a shell offers and fills in after genv.

use anyhow::{Context, Result, ensure};
use genv_tests::shell::{Account, Shell, installed};
use genv_tests::state::{self, Environment};
use genv_tests::terminal::{PROMPT, Terminal, start_up};

fn start_up_lines(shell: Shell) -> Result<String> {
    Ok(match shell {
        Shell::Bash => "source <(genv completions bash)".to_owned(),
        Shell::Zsh => {
            // Its own functions, where they were unpacked.
            let program = installed("zsh").canonicalize()?;
            let unpacked = program.ancestors().find(|it| it.ends_with("files"));
            let unpacked = unpacked.context("an unpacked zsh")?.display();
            format!(
                "fpath=({unpacked}${{^fpath}})\nautoload -Uz compinit && compinit -u\nsource <(genv completions zsh)"
            )
        }
        Shell::Fish => "genv completions fish | source".to_owned(),
    })
}

fn ready(shell: Shell, eids: &[&str]) -> Result<(Account, Terminal)> {
    let account = Account::new()?;
    let uid = rustix::process::getuid().as_raw();
    // Its member is the test, which goes on.
    let environment =
        |eid: &&str| Environment { gpu_memory: Some("1g"), ..Environment::new(eid, uid, std::process::id(), &[0]) };
    let environments: Vec<_> = eids.iter().map(environment).collect();
    state::write(&account.state(), 1, &environments)?;
    start_up(&account, shell, "", &start_up_lines(shell)?)?;
    let mut terminal = Terminal::start(&account, shell, &[("GENV_DEVICES", "1")])?;
    terminal.wait(PROMPT)?;
    Ok((account, terminal))
}

#[test]
fn tab_fills_in_commands_environments_and_devices() -> Result<()> {
    for shell in Shell::ALL {
        // An id that means something to a shell is not offered.
        let (account, mut terminal) = ready(shell, &["12496", "$(touch executed)", "`touch executed`"])?;
        for (typed, completed) in [
            ("genv dea", "genv deactivate"),
            ("genv devices find --eid 1", "genv devices find --eid 12496"),
            ("genv envs query --eid ", "genv envs query --eid 12496"),
            ("genv activate --id ", "genv activate --id 12496"),
            ("genv attach --index ", "genv attach --index 0"),
        ] {
            terminal.type_text(&format!("{typed}\t"))?;
            // At the start of the line, so that what was completed is printed and not run.
            terminal.press_control('a')?;
            terminal.enter("echo would'' run: ", &format!("would run: {completed}\r\n"))?;
            terminal.wait(PROMPT)?;
        }
        ensure!(!account.home().join("executed").exists(), "{shell}");
    }
    Ok(())
}
