//! `genv remote-serve` through two pipes, as another machine uses it.

mod changes;
mod serving;

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_remote::protocol::{Hello, HostProgram, LONGEST_LINE_BYTES, PROTOCOL_VERSION, Reply};
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience::ended;
use genv_tests::process::{copy_program, program, write_script};
use serde_json::{Value, json};
use serving::{Serving, machine};

fn follow() -> Value {
    json!({"request": "follow", "interval_seconds": 0.1})
}

#[test]
fn the_first_line_is_a_greeting_that_offers_no_enforcement_by_default() -> Result<()> {
    let serving = Serving::start(&[])?;
    assert_eq!(
        serving.hello,
        Hello {
            genv_remote: PROTOCOL_VERSION,
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            answers_with: HostProgram::Genv,
            may_enforce: false,
        }
    );
    Ok(())
}

#[test]
fn snapshots_come_each_interval_until_the_input_ends() -> Result<()> {
    let mut serving = Serving::start(&[])?;
    serving.ask(follow())?;
    let mut times = Vec::new();
    for _ in 0..4 {
        let snapshot = serving.snapshot()?;
        assert_eq!(snapshot.devices.len(), 2);
        assert_eq!(snapshot.interval_seconds, 0.1);
        times.push(snapshot.timestamp_seconds);
    }
    assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
    // The same request again changes nothing, and another interval is refused.
    serving.ask(follow())?;
    serving.ask(json!({"request": "follow", "interval_seconds": 5}))?;
    let refused = loop {
        if let Reply::Error { message, .. } = serving.reply()? {
            break message;
        }
    };
    ensure!(refused.contains("this session follows every 0.1 s"), "{refused}");
    serving.snapshot()?;
    serving.input.take();
    assert_eq!(serving.end()?, "");
    Ok(())
}

#[test]
fn one_snapshot_comes_even_when_the_input_has_ended() -> Result<()> {
    let mut serving = Serving::start(&[])?;
    serving.ask(json!({"request": "once"}))?;
    serving.input.take();
    assert_eq!(serving.snapshot()?.devices.len(), 2);
    assert_eq!(serving.end()?, "");
    Ok(())
}

#[test]
fn of_several_hosts_it_serves_its_own_or_else_the_first() -> Result<()> {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let hosts = |second: &str| {
        Simulation::new(&format!(
            "version: 1\nhosts:\n  - {{name: first, devices: [{{}}]}}\n  - {{name: {second}, devices: [{{}}, {{}}]}}\n"
        ))
    };
    for (second, served) in [("second", "first"), (own.as_str(), own.as_str())] {
        let simulation = hosts(second);
        let folder = tempfile::tempdir()?;
        let mut command = machine(&program("genv")?, &folder);
        command.env_remove("GENV_DEVICES");
        command.env("GENV_SCENARIO", simulation.scenario());
        let mut serving = Serving::of(command, folder)?;
        serving.ask(json!({"request": "once"}))?;
        assert_eq!(serving.snapshot()?.hostname, served);
        serving.ask(follow())?;
        assert_eq!(serving.snapshot()?.hostname, served);
    }
    Ok(())
}

#[test]
fn a_malformed_request_gets_an_error_and_the_session_continues() -> Result<()> {
    let mut serving = Serving::start(&[])?;
    let too_long = vec![b'x'; LONGEST_LINE_BYTES + 1];
    for (line, id, expected) in [
        (&b"\x1b[2Jhello"[..], None, "cannot understand a request"),
        (b"{\"request\":", None, "cannot understand a request"),
        (b"\xff\xfe", None, "cannot understand a request"),
        (br#"{"request":"reboot","id":3}"#, Some(3), "unknown variant `reboot`"),
        (br#"{"request":"enforce","id":4}"#, Some(4), "missing field `intents`"),
        (br#"{"request":"follow","interval_seconds":1e300}"#, None, "choose 100ms to 1h"),
        (br#"{"request":"follow","interval_seconds":-1}"#, None, "choose 100ms to 1h"),
        (&too_long, None, "it has more than 16 MiB"),
    ] {
        serving.send(line)?;
        let (answered, message) = serving.error()?;
        assert_eq!(answered, id, "{message}");
        ensure!(message.contains(expected), "{message}");
        ensure!(message.len() < 500, "{message}");
        ensure!(!message.contains(char::is_control), "{message:?}");
    }
    for nothing in ["", "  ", r#"{"request":"alive"}"#] {
        serving.send(nothing.as_bytes())?;
    }
    serving.ask(json!({"request": "once"}))?;
    serving.snapshot()?;
    Ok(())
}

#[test]
fn a_closed_stdout_ends_the_session() -> Result<()> {
    // A session that writes, and a session that does not.
    for requests in [vec![follow()], Vec::new()] {
        let mut serving = Serving::start(&[])?;
        for request in requests {
            serving.ask(request)?;
            serving.snapshot()?;
        }
        // The reading thread closes the pipe after a line that it cannot pass on.
        drop(serving.output.take());
        let _ = serving.send(b"what");
        assert_eq!(serving.end()?, "");
    }
    Ok(())
}

#[test]
fn a_client_that_does_not_read_ends_the_session() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut command = machine(&program("genv")?, &folder);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().context("no stdin")?;
    let _output = child.stdout.take();
    // Until the pipe is full and too many replies wait for it.
    let line = b"no request\n";
    while input.write_all(line).is_ok() {}
    ensure!(ended(&mut child)?.success());
    Ok(())
}

#[test]
fn silence_ends_the_session_and_alive_requests_keep_it() -> Result<()> {
    let mut serving = Serving::start(&["--silence=1s"])?;
    serving.ask(follow())?;
    // Snapshots continue as long as the client sends requests.
    for _ in 0..20 {
        serving.ask(json!({"request": "alive"}))?;
        serving.snapshot()?;
    }
    let complaint = serving.end()?;
    assert_eq!(complaint, "genv: no request came for 1s: the session ends");
    Ok(())
}

#[test]
fn a_wrong_variable_is_an_error_before_the_greeting() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut command = machine(&program("genv")?, &folder);
    let output = genv_tests::patience::output(command.env("GENV_DEVICES", "two"))?;
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(output.stdout, b"");
    let stderr = String::from_utf8(output.stderr)?;
    ensure!(stderr.contains("GENV_DEVICES is 'two'"), "{stderr}");
    Ok(())
}

#[test]
fn intents_are_refused_without_the_flag_enforce() -> Result<()> {
    let mut serving = Serving::start(&[])?;
    serving.ask(json!({"request": "enforce", "id": 8, "intents": []}))?;
    let (id, message) = serving.error()?;
    assert_eq!(id, Some(8));
    ensure!(message.contains("this host only sends snapshots"), "{message}");
    Ok(())
}

#[test]
fn intents_go_to_genv_enforcer_one_request_at_a_time() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let own = folder.path().join("own");
    fs::create_dir(&own)?;
    copy_program("genv", &own.join("genv"))?;
    let command = || {
        let mut command = machine(&own.join("genv"), &folder);
        command.arg("--enforce").env("PATH", "/usr/bin:/bin");
        command
    };
    let mut serving = Serving::of(command(), tempfile::tempdir()?)?;
    assert!(serving.hello.may_enforce, "the flag allows it, and the program is missing");
    serving.ask(json!({"request": "enforce", "id": 1, "intents": []}))?;
    let (id, message) = serving.error()?;
    assert_eq!(id, Some(1));
    ensure!(message.contains("genv-enforcer is not installed"), "{message}");

    // With intents for pid 7 the script waits for a file.
    let script = format!(
        "#!/bin/sh\nintents=$(cat)\ncase $intents in *7*) while [ ! -e {0}/go ]; do sleep 0.01; done ;; esac\n\
         echo \"{{\\\"asked\\\":\\\"$1\\\",\\\"of\\\":$intents}}\"\n",
        folder.path().display()
    );
    write_script(&own.join("genv-enforcer"), &script)?;
    // The session finds the program that was installed meanwhile.
    serving.ask(json!({"request": "enforce", "id": 1, "intents": [7]}))?;
    serving.ask(json!({"request": "enforce", "id": 2, "intents": [8]}))?;
    let (id, message) = serving.error()?;
    assert_eq!(id, Some(2));
    ensure!(message.contains("has not ended"), "{message}");
    fs::write(folder.path().join("go"), "")?;
    // A running job sends its reply after the end of stdin, too.
    serving.input.take();
    let outcome = |id, pid: u32| Reply::Enforced { id, outcomes: json!({"asked": "carry-out", "of": [pid]}) };
    assert_eq!(serving.reply()?, outcome(1, 7));
    assert_eq!(serving.end()?, "");
    let mut serving = Serving::of(command(), tempfile::tempdir()?)?;
    for pid in [8, 9] {
        serving.ask(json!({"request": "enforce", "id": pid, "intents": [pid]}))?;
        assert_eq!(serving.reply()?, outcome(pid.into(), pid));
    }
    Ok(())
}

#[test]
fn the_short_help_does_not_list_the_command() -> Result<()> {
    let help = genv_tests::patience::output(Command::new(program("genv")?).arg("--help"))?;
    let help = String::from_utf8(help.stdout)?;
    ensure!(help.contains("snapshot") && !help.contains("remote-serve"), "{help}");
    Ok(())
}
