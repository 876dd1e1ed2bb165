//! `genv remote-serve` through two pipes, as another machine uses it.

mod serving;

use std::fs;

use anyhow::{Result, bail, ensure};
use genv_remote::protocol::{Hello, HostProgram, LONGEST_LINE_BYTES, PROTOCOL_VERSION, Reply};
use genv_tests::nvml_sim::Simulation;
use genv_tests::process::{copy_program, program, write_script};
use serde_json::{Value, json};
use serving::{Serving, machine};

fn follow() -> Value {
    json!({"request": "follow", "interval_seconds": 0.1})
}

#[test]
fn a_greeting_comes_first_and_then_snapshots_each_interval_until_the_input_ends() -> Result<()> {
    let mut serving = Serving::start(&[])?;
    let version = Some(env!("CARGO_PKG_VERSION").to_owned());
    let (genv_remote, answers_with) = (PROTOCOL_VERSION, HostProgram::Genv);
    assert_eq!(serving.hello, Hello { genv_remote, version, answers_with, may_enforce: false });
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
fn changes_add_up_to_the_whole_snapshot() -> Result<()> {
    let mut serving = Serving::start(&[])?;
    serving.ask(json!({"request": "follow", "interval_seconds": 0.1, "changed_fields": true}))?;
    let mut last = serving.snapshot()?;
    for _ in 0..100 {
        for _ in 0..3 {
            last = serving.changes()?.apply(&last)?;
        }
        serving.ask(json!({"request": "once"}))?;
        let whole = loop {
            match serving.reply()? {
                Reply::Snapshot { snapshot } => break *snapshot,
                Reply::Changes { changes } => last = changes.apply(&last)?,
                other => bail!("{other:?}"),
            }
        };
        // The host may have made a newer snapshot.
        if whole.timestamp_seconds == last.timestamp_seconds {
            assert_eq!(whole, last);
            return Ok(());
        }
        last = whole;
    }
    bail!("no whole snapshot has the time of the last changes");
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
        // The answer comes all the same.
        serving.input.take();
        assert_eq!(serving.snapshot()?.hostname, served);
        assert_eq!(serving.end()?, "");
    }
    Ok(())
}

#[test]
fn a_request_that_cannot_be_served_gets_an_error_and_the_session_continues() -> Result<()> {
    let mut serving = Serving::start(&[])?;
    let too_long = vec![b'x'; LONGEST_LINE_BYTES + 1];
    for (line, id, expected) in [
        (&b"\x1b[2Jhello"[..], None, "cannot understand a request"),
        (b"{\"request\":", None, "cannot understand a request"),
        (b"\xff\xfe", None, "cannot understand a request"),
        (br#"{"request":"reboot","id":3}"#, Some(3), "unknown variant `reboot`"),
        (br#"{"request":"enforce","id":4}"#, Some(4), "missing field `intents`"),
        (br#"{"request":"enforce","id":8,"intents":[]}"#, Some(8), "this host only sends snapshots"),
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
