//! The audit, rotated by the real logrotate with the file that the packages install.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, ends, ends_outsiders, sleeper};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::output;
use genv_tests::root::require_root;
use serde_json::Value;

use crate::BOB;

const INSTALLED: &str = include_str!("../../../packaging/logrotate/genv");

/// Has a process ended, and so a line written.
fn act(enforcer: &Enforcer) -> Result<()> {
    let guilty = sleeper(&[])?;
    let setup = enforcer.setup();
    setup.rewrite_scenario(&used_by(&[guilty.pid()]))?;
    ends(guilty.pid())?;
    enforcer.wait_for_cycles(1)
}

#[test]
fn logrotate_keeps_the_audit_and_the_enforcer_goes_on() -> Result<()> {
    require_root();
    let setup = Setup::new(&used_by(&[]), &ends_outsiders("enforce", "for: 0s, warn: []"))?;
    let own = setup.state_directory();
    // As the service has it: a folder of the enforcer's user.
    chown(&own, Some(BOB), Some(BOB))?;
    let enforcer = setup.start()?;
    let setup = enforcer.setup();
    let config = setup.folder().join("logrotate.conf");
    let text = INSTALLED.replace("/var/lib/genv-enforcer", &own.display().to_string());
    ensure!(text != INSTALLED, "another folder is named");
    fs::write(&config, text)?;
    fs::set_permissions(&config, fs::Permissions::from_mode(0o644))?;
    let rotate = || -> Result<()> {
        let mut logrotate = Command::new("logrotate");
        let state = format!("--state={}", setup.folder().join("rotated").display());
        let logrotate = logrotate.args(["--force", "--verbose", &state]).arg(&config);
        let done = output(logrotate).context("logrotate, of the package logrotate")?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        ensure!(done.status.success() && !said.contains("error:"), "{said}");
        Ok(())
    };
    for _ in 0..2 {
        act(&enforcer)?;
        rotate()?;
        let audit = fs::metadata(own.join("audit.jsonl"))?;
        assert_eq!((audit.uid(), audit.mode() & 0o7777, audit.len()), (BOB, 0o640, 0));
    }
    act(&enforcer)?;
    for name in ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2.gz"] {
        ensure!(fs::metadata(own.join(name))?.len() > 0, "{name}");
    }
    let report: Value = serde_json::from_str(&setup.said(&["report", "--json"])?)?;
    assert_eq!((&report["total"]["done"], &report["damaged_lines"]), (&3.into(), &0.into()), "{report:#}");
    Ok(())
}
