//! `genv top`.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use genv_tests::process::{program, signal};
use genv_tests::shell::Shell;
use genv_tests::terminal::Terminal;
use rustix::process::Signal;
use serde_json::json;

use crate::queries::lab::{Lab, device, environment};

/// A held, a used and a free device, and a lost one.
fn lab() -> Result<Lab> {
    let process = "{pid: 71, comm: python3, user: eve, devices: [{index: 1, memory: 8gi, utilization: 0.5}]}";
    let lab = Lab::simulated(&format!(
        "devices: [{{count: 3, memory: 40gi}}, {{faults: [{{lost: true}}]}}]\n  processes: [{process}]\nusers: {{eve: 4242}}"
    ))?;
    let devices = [device(0, &[("e1", None)]), device(1, &[]), device(2, &[]), device(3, &[])];
    lab.write(&[environment("e1", &json!("training"))], &devices)?;
    Ok(lab)
}

#[test]
fn once_prints_devices_and_users_and_what_is_broken() -> Result<()> {
    let lab = lab()?;
    // The same in a pipe without the option.
    for arguments in [&["top", "--once"][..], &["top"]] {
        let said = lab.ask(arguments)?;
        insta::assert_snapshot!(format!("{}\n{}", said.stdout, said.stderr), @"");
        ensure!(said.code == 0, "{}", said.code);
    }
    Ok(())
}

#[test]
fn the_live_view_follows_keys_and_leaves_the_terminal_as_it_was() -> Result<()> {
    let lab = lab()?;
    let genv = program("genv")?.display().to_string();
    for (ends_by_signal, code) in [(false, "0"), (true, "143")] {
        let mut command = lab.command("sh");
        let line =
            format!("stty -g >before; sh -c 'echo $$ >pid; exec {genv} top'; echo code=$?; stty -g >after; echo end");
        command.args(["-c", &line]);
        let mut terminal = Terminal::run_in(command, Shell::Bash)?;
        terminal.wait("H100")?;
        terminal.type_text("p")?;
        terminal.wait("[4 processes]")?;
        terminal.wait("python3")?;
        match ends_by_signal {
            true => signal(fs::read_to_string(lab.folder().join("pid"))?.trim().parse()?, Signal::TERM)?,
            false => terminal.type_text("q")?,
        }
        terminal.wait("\u{1b}[?25h\u{1b}[?1049l")?;
        terminal.wait(&format!("code={code}"))?;
        terminal.wait("end")?;
        let modes = |name: &str| fs::read_to_string(lab.folder().join(name)).with_context(|| name.to_owned());
        assert_eq!(modes("before")?, modes("after")?);
    }
    Ok(())
}
