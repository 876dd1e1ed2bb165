//! A real program whose output is rewritten: streamed, signalled, and ended with.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use genv_tests::patience::{Lines, ended};
use genv_tests::process::{signal, write_script};
use rustix::process::Signal;

use crate::shims::stage::{GENERATIONS, Stage, text};

#[test]
fn a_loop_shows_one_table_after_another_and_ends_by_a_signal_to_the_shim() -> Result<()> {
    let stage = Stage::new()?;
    for (generation, arguments) in GENERATIONS.into_iter().zip([
        &["-lms", "100"][..],
        &["-q", "-x", "-lms", "100"],
        &["--query-compute-apps=pid", "--format=csv", "-lms", "100"],
    ]) {
        let mut command = stage.nvidia_smi(generation);
        let mut child = command.args(arguments).stdout(Stdio::piped()).spawn()?;
        let (own, other) = (stage.own.pid().to_string(), stage.other.pid().to_string());
        let mut seen = 0;
        let output = Lines::of(child.stdout.take().context("no stdout")?);
        while seen < 6 {
            let line = output.next_line().with_context(|| format!("{generation} {arguments:?} ended"))?;
            let pid = line.trim().trim_start_matches("<pid>").trim_end_matches("</pid>");
            ensure!(pid != other && !line.contains(&format!(" {other} ")), "{line}");
            seen += usize::from(line.contains(&own));
        }
        signal(child.id(), Signal::TERM)?;
        // The real program ends well on this signal, and so does the shim; what it still says is read to the end.
        let status = ended(&mut child)?;
        assert_eq!((status.code(), status.signal()), (Some(0), None), "{generation} {arguments:?}");
    }
    Ok(())
}

fn scripted(stage: &Stage, script: &str) -> Result<Command> {
    let folder = stage.folder().join("scripted");
    std::fs::create_dir_all(&folder)?;
    write_script(&folder.join("nvidia-smi"), &format!("#!/bin/sh\n{script}\n"))?;
    Ok(stage.shim("nvidia-smi", &[&folder]))
}

/// The command, for which no signal is ignored: the program that started the tests, such as nohup, may ignore some.
fn ignoring_no_signal(command: &Command) -> Command {
    let mut env = Command::new("/usr/bin/env");
    env.arg("--default-signal").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => env.env(name, value),
            None => env.env_remove(name),
        };
    }
    env
}

#[test]
fn signals_are_handed_on_and_what_ends_the_program_ends_the_shim() -> Result<()> {
    let stage = Stage::new()?;
    for sent in [Signal::HUP, Signal::INT, Signal::TERM, Signal::USR1] {
        let trap = format!("trap 'echo got; exit 42' {}; echo ready; while :; do sleep 0.02; done", sent.as_raw());
        for (script, code) in [(trap.as_str(), Some(42)), ("echo ready; exec sleep 1000", None)] {
            let mut child = ignoring_no_signal(&scripted(&stage, script)?).stdout(Stdio::piped()).spawn()?;
            let output = Lines::of(child.stdout.take().context("no stdout")?);
            assert_eq!(output.next_line()?, "ready");
            signal(child.id(), sent)?;
            let status = ended(&mut child)?;
            assert_eq!(status.code(), code, "{sent:?}");
            if code.is_none() {
                assert_eq!(status.signal(), Some(sent.as_raw()));
            } else {
                assert_eq!(output.next_line()?, "got");
            }
        }
    }
    let status = scripted(&stage, "kill -KILL $$")?.status()?;
    assert_eq!(status.signal(), Some(Signal::KILL.as_raw()));
    let status = scripted(&stage, "exit 255")?.status()?;
    assert_eq!(status.code(), Some(255));
    Ok(())
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() -> Result<()> {
    let stage = Stage::new()?;
    let command = scripted(&stage, "echo ready; kill -HUP $$; kill -HUP $PPID; echo survived")?;
    // As nohup does.
    let mut shell = Command::new("sh");
    for (name, value) in command.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    shell.env_remove("GENV_SMI").env_remove("GENV_SHIM_DEPTH").env_remove("GENV_BYPASS");
    let output = shell.args(["-c", "trap '' HUP; nvidia-smi"]).output()?;
    assert_eq!(text(&output.stdout), "ready\nsurvived\n", "{output:?}");
    Ok(())
}

#[test]
fn whoever_stops_reading_stops_the_program() -> Result<()> {
    let stage = Stage::new()?;
    let mut child = scripted(&stage, "while echo line; do :; done 2>/dev/null")?.stdout(Stdio::piped()).spawn()?;
    let output = Lines::of(child.stdout.take().context("no stdout")?);
    output.next_line()?;
    // The reading thread closes the pipe after a line that it cannot pass on.
    drop(output);
    let status = ended(&mut child)?;
    assert!(!status.success(), "{status:?}");
    Ok(())
}

#[test]
fn of_several_devices_the_first_failure_is_told() -> Result<()> {
    let stage = Stage::new()?;
    let script = "echo \"$*\"; case \"$*\" in *'-i 0'*) exit 3 ;; *) exit 4 ;; esac";
    let output = scripted(&stage, script)?.args(["nvlink", "-s"]).output()?;
    assert_eq!(text(&output.stdout), "nvlink -i 0 -s\nnvlink -i 1 -s\n");
    assert_eq!(output.status.code(), Some(3));
    Ok(())
}
