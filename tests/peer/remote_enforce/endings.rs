//! How a request to a host ends: by force, with a refusal, or without an answer; and what users read of it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::victim;
use genv_tests::patience::{output, until};
use genv_tests::process::program;
use serde_json::json;

use crate::remote_enforce::lab::{Lab, Machine, SLEEP};
use crate::remote_enforce::rules::{BREAKS, OUTSIDE};

/// Ends by force, a second after SIGTERM.
const KILL: &str = "- {kind: non-env-processes, action: kill, grace: 1s, for: 0s, warn: []}";

/// `SIGTERM done` and so on, in their order.
fn deeds(lines: &[serde_json::Value]) -> Vec<String> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let lines = lines.iter();
    lines.map(|line| format!("{} {}", text(&line["action"]), text(&line["result"]))).collect()
}

#[test]
#[ignore = "needs root"]
fn what_does_not_heed_sigterm_is_killed_after_the_grace() -> Result<()> {
    let stubborn = "sh -c 'trap \"\" TERM; exec sleep 1000000'";
    let one = Machine::start("gpu01", &[stubborn, SLEEP], BREAKS)?;
    let lab = Lab::start(&[&one], KILL)?;
    until("it is killed", || Ok(!one.lives(2)))?;
    until("that is known here", || Ok(lab.answers()? == ["done", "done"]))?;
    lab.enforcer.wait_for_cycles(5)?;
    let expected = ["SIGTERM asked", "SIGTERM done", "SIGKILL asked", "SIGKILL done"];
    assert_eq!(deeds(&lab.enforcer.audit()?), expected);
    let there = ["SIGTERM intended", "SIGTERM done", "SIGKILL intended", "SIGKILL done"];
    assert_eq!(deeds(&one.audit()?), there);
    ensure!(one.lives(3));
    Ok(())
}

/// What `genv why` there tells the user, if it is anything.
fn why(machine: &Machine) -> Result<Option<String>> {
    let mut command = Command::new(program("genv")?);
    command.args(["why", "--user", &format!("uid:{}", victim()), "--state-directory"]).arg(machine.directory());
    let output = output(&mut command)?;
    let said = String::from_utf8(output.stdout)?;
    Ok(output.status.success().then_some(said))
}

#[test]
#[ignore = "needs root"]
fn users_read_in_their_terminals_there_what_comes_and_what_was_done() -> Result<()> {
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777))?;
    let shown = folder.path().join("shown");
    // script(1) makes a terminal, which is the user's, and writes down all that is shown in it.
    let terminal = format!(
        "script --quiet --flush --command 'chmod g+w $(tty); exec sleep 1000000' {} >/dev/null",
        shown.display()
    );
    let one = Machine::start("gpu01", &[SLEEP, &terminal], BREAKS)?;
    until("the terminal is there", || Ok(shown.exists()))?;
    let rule = "- {kind: non-env-processes, action: terminate, for: 0s, warn: [3s]}";
    let _lab = Lab::start(&[&one], rule)?;
    until("'genv why' there tells what comes", || {
        Ok(why(&one)?.is_some_and(|text| text.contains("it is ended: process 2 (sleep)")))
    })?;
    let read = || anyhow::Ok(String::from_utf8_lossy(&fs::read(&shown)?).into_owned());
    let mut text = String::new();
    let has_ended = "This was told to end: process 2 (sleep)";
    until("both are read", || {
        text = read()?;
        Ok(text.contains(has_ended))
    })
    .with_context(|| text.clone())?;
    // Enforcers of other tests may write to the terminals of the same user.
    let text = text.replace('\r', "");
    let notices = text.split("\n\n").filter(|notice| notice.contains(" on gpu01: "));
    let text = notices.collect::<Vec<_>>().join("\n\n");
    let told = why(&one)?.context("nothing is told")?;
    for part in ["SIGTERM was sent at", "By         the enforcer on ", "non-env-processes on gpu01"] {
        ensure!(told.contains(part), "{part}: {told}");
    }
    let warned = text.find("this is ended: process 2 (sleep)");
    let ended = text.find(has_ended);
    ensure!(warned.is_some() && warned < ended, "{text}");
    for part in ["GPU rule non-env-processes on gpu01: process 2 (sleep)", "allowed: processes in an environment"] {
        let told = text.replace("\n* ", " ");
        assert_eq!(told.matches(part).count(), 2, "{part}: {text}");
    }
    // After the action the user cannot comply any more.
    assert_eq!(text.matches("To comply: ").count(), 1, "{text}");
    Ok(())
}

#[test]
#[ignore = "needs root"]
fn both_sides_write_down_what_was_asked_and_why_it_was_refused() -> Result<()> {
    // Before it is asked, nobody uses the device any more.
    let idle = r"version: 1\nhosts:\n- {devices: [{}]}\n";
    let script = format!(
        "printf '{idle}' >\"$GENV_SCENARIO.new\" && mv \"$GENV_SCENARIO.new\" \"$GENV_SCENARIO\"\nexec \"$real\" \"$@\""
    );
    let one = Machine::start_before_enforcer("gpu01", BREAKS, &script)?;
    let lab = Lab::start(&[&one], OUTSIDE)?;
    until("it is refused", || Ok(lab.answers()? == ["refused"]))?;
    lab.enforcer.wait_for_cycles(3)?;
    let here = lab.enforcer.audit()?;
    assert_eq!(deeds(&here), ["SIGTERM asked", "SIGTERM refused"]);
    let there = one.audit()?;
    assert_eq!(deeds(&there), ["SIGTERM refused"]);
    for part in ["rule", "why", "username", "uid", "pid", "start_time_ticks", "comm"] {
        ensure!(!here[0][part].is_null(), "{part}: {}", here[0]);
        assert_eq!(here[0][part], here[1][part]);
        assert_eq!(here[0][part], there[0][part]);
    }
    assert_eq!(here[1]["id"], here[0]["id"]);
    assert_eq!(here[1]["hostname"], "gpu01");
    let reason = "that host's own plan does not show that the rule is broken";
    assert_eq!((&here[1]["reason"], &there[0]["reason"]), (&reason.into(), &reason.into()));
    ensure!(!there[0]["asked_by"].is_null() && one.lives(2), "{there:?}");
    Ok(())
}

/// Waits until the file that says so is there, the first time it runs.
const WAITS: &str = "echo asked >>\"$STATE_DIRECTORY.asked\"
[ \"$(wc -l <\"$STATE_DIRECTORY.asked\")\" -gt 1 ] || while [ ! -e \"$STATE_DIRECTORY.go\" ]; do sleep 0.05; done";

#[test]
#[ignore = "needs root"]
fn what_the_host_did_meanwhile_is_not_known_and_not_done_twice() -> Result<()> {
    let one = Machine::start_before_enforcer("gpu01", BREAKS, &format!("{WAITS}\nexec \"$real\" \"$@\""))?;
    let times_asked = || fs::read_to_string(one.note("asked")).unwrap_or_default().lines().count();
    let lab = Lab::start(&[&one], OUTSIDE)?;
    until("it is asked", || Ok(times_asked() == 1))?;
    assert_eq!(lab.answers()?, [""]);
    let lab = lab.restart_after(|| {
        fs::write(one.note("go"), "")?;
        until("what was begun is done", || Ok(!one.lives(2)))?;
        until("it is written down there", || Ok(one.audited("done")?.len() == 1))
    })?;
    let status = lab.enforcer.wait_for_status("nothing is wrong", |status| status["violations"] == json!([]))?;
    ensure!(status["faults"].to_string().contains("SIGTERM to process 2"), "{status:#}");
    lab.enforcer.wait_for_cycles(3)?;
    assert_eq!(lab.answers()?, ["unknown"]);
    assert_eq!((times_asked(), one.audited("done")?.len()), (1, 1));
    Ok(())
}
