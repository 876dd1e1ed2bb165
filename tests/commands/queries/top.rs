//! `genv top`.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use genv_tests::patience::NO_PATIENCE;
use genv_tests::process::{program, signal};
use genv_tests::root::FIRST_UID;
use genv_tests::shell::Shell;
use genv_tests::terminal::Terminal;
use rustix::process::Signal;
use serde_json::json;

use crate::queries::lab::{Lab, device, environment};

/// A held, a used and a free device, and a lost one. The environment of the held one has this name.
fn lab(name: &str) -> Result<Lab> {
    let process = "{pid: 71, comm: python3, user: eve, devices: [{index: 1, memory: 8gi, utilization: 0.5}]}";
    let lab = Lab::simulated(&format!(
        "devices: [{{count: 3, memory: 40gi}}, {{faults: [{{lost: true}}]}}]\n  processes: [{process}]\nusers: {{eve: 4242}}"
    ))?;
    let devices = [device(0, &[("e1", None)]), device(1, &[]), device(2, &[]), device(3, &[])];
    let mut environment = environment("e1", &json!(name));
    environment["uid"] = json!(FIRST_UID);
    lab.write(&[environment], &devices)?;
    Ok(lab)
}

#[test]
fn once_prints_devices_and_users_and_what_is_broken() -> Result<()> {
    let lab = lab("training")?;
    let said = lab.ask(&["top", "--once"])?;
    insta::assert_snapshot!(said.stdout, @r"
    GPU  MODEL      HELD BY        ENVIRONMENT  UTIL   MEM GiB  IDLE  OUTSIDE  POWER  TEMP  UNTIL
    0    H100 80GB  uid:54321      training       0%  0.0/40.0     ?        0   60 W  32°C
    1    H100 80GB  eve, not held                50%  8.0/40.0              1  180 W  55°C
    2    H100 80GB  free                          0%  0.0/40.0              0   60 W  32°C
    3    ?          down                           ?         ?              ?      ?     ?

    USER       GPUS  PROCESSES  OUTSIDE
    uid:54321     1          0        0
    eve           0          1        1
    ");
    ensure!(said.code == 0 && said.stderr.contains(", GPU 3: does not answer"), "{} {}", said.code, said.stderr);
    // A pipe gets the same without the option.
    assert_eq!(lab.ask(&["top"])?.stdout, said.stdout);
    Ok(())
}

#[test]
fn once_says_that_a_driver_hangs() -> Result<()> {
    let lab = Lab::simulated("devices: [{}]\n  faults: [{hang: all}]")?.variable(NO_PATIENCE.0, NO_PATIENCE.1);
    let said = lab.ask(&["top", "--once"])?;
    ensure!(said.code == 0 && said.stderr.contains("collector gpu: no answer for"), "{} {}", said.code, said.stderr);
    Ok(())
}

#[test]
fn flags_for_other_hosts_without_hosts_are_wrong_usage() -> Result<()> {
    let lab = Lab::new()?;
    for flag in ["--sudo", "--username=eve"] {
        let said = lab.ask(&["top", "--once", flag])?;
        ensure!(said.code == 2 && said.stderr.contains("name them with --host"), "{flag}: {}", said.stderr);
    }
    Ok(())
}

#[test]
fn the_live_view_follows_keys_and_leaves_the_terminal_as_it_was() -> Result<()> {
    // The name would set the title of the terminal, break a line, and turn the direction of writing.
    let lab = lab("\u{1b}]0;title\u{7}\n\u{202e}")?;
    let genv = program("genv")?.display().to_string();
    for (ends_by_signal, code) in [(false, "0"), (true, "143")] {
        let mut command = lab.command("sh");
        let line =
            format!("stty -g >before; sh -c 'echo $$ >pid; exec {genv} top'; echo code=$?; stty -g >after; echo end");
        command.args(["-c", &line]);
        let mut terminal = Terminal::run_in(command, Shell::Bash)?;
        let mut shown = terminal.wait("H100")? + &terminal.wait(r"\u{1b}]0;")?;
        terminal.type_text("p")?;
        shown += &terminal.wait("[4 processes]")?;
        shown += &terminal.wait("python3")?;
        match ends_by_signal {
            true => signal(fs::read_to_string(lab.folder().join("pid"))?.trim().parse()?, Signal::TERM)?,
            false => terminal.type_text("q")?,
        }
        shown += &terminal.wait("\u{1b}[?25h\u{1b}[?1049l")?;
        // The terminal is read byte by byte.
        ensure!(["\u{1b}]", "\u{7}", "\n", "\u{e2}\u{80}\u{ae}"].iter().all(|it| !shown.contains(it)), "{shown:?}");
        terminal.wait(&format!("code={code}"))?;
        terminal.wait("end")?;
        let modes = |name: &str| fs::read_to_string(lab.folder().join(name)).with_context(|| name.to_owned());
        assert_eq!(modes("before")?, modes("after")?);
    }
    Ok(())
}
