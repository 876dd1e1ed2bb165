//! The enforcer is killed while a host is asked, and started again.

use std::fs;

use anyhow::{Result, ensure};
use genv_tests::patience::until;
use serde_json::json;

use crate::remote_enforce::lab::{Lab, Machine};
use crate::remote_enforce::rules::{BREAKS, OUTSIDE};

/// Waits until the file that says so is there, the first time it runs.
const WAITS: &str = "echo asked >>\"$STATE_DIRECTORY.asked\"
[ \"$(wc -l <\"$STATE_DIRECTORY.asked\")\" -gt 1 ] || while [ ! -e \"$STATE_DIRECTORY.go\" ]; do sleep 0.05; done";

/// How often the host was asked.
fn times_asked(machine: &Machine) -> usize {
    let asked = fs::read_to_string(machine.note("asked"));
    asked.unwrap_or_default().lines().count()
}

/// A lab whose enforcer has asked, and has no answer.
fn asking(machine: &Machine) -> Result<Lab> {
    let lab = Lab::start(&[machine], OUTSIDE)?;
    until("it is asked", || Ok(times_asked(machine) == 1))?;
    assert_eq!(lab.answers()?, [""]);
    Ok(lab)
}

#[test]
#[ignore = "needs root"]
fn what_the_host_did_meanwhile_is_not_known_and_not_done_twice() -> Result<()> {
    let one = Machine::start_before_enforcer("gpu01", BREAKS, &format!("{WAITS}\nexec \"$real\" \"$@\""))?;
    let lab = asking(&one)?.kill()?;
    fs::write(one.note("go"), "")?;
    until("what was begun is done", || Ok(!one.lives(2)))?;
    until("it is written down there", || Ok(one.audited("done")?.len() == 1))?;

    let lab = lab.start()?;
    let status = lab.enforcer.wait_for_status("nothing is wrong", |status| status["violations"] == json!([]))?;
    ensure!(status["faults"].to_string().contains("SIGTERM to process 2"), "{status:#}");
    lab.enforcer.wait_for_cycles(3)?;
    assert_eq!(lab.answers()?, ["unknown"]);
    assert_eq!((times_asked(&one), one.audited("done")?.len()), (1, 1));
    Ok(())
}
