//! Processes of real users that were started without environment variables: they hide idleness, and rules find them.

use anyhow::{Context as _, Result, ensure};
use genv_tests::changed_user::ChangedUser;
use genv_tests::enforcer::{Enforcer, Setup, enforcing, is_alive, sleeper_of};
use genv_tests::patience::until;
use genv_tests::root::{apart, own_mounts, require_root, subordinate_uids, users};
use genv_tests::state::{self, Environment};
use serde_json::Value;

use crate::enforcer::stage::{ALICE, ANYTHING, BOB};

const RULES: &str = "
- {kind: idle, over: 1s, action: detach, warn: []}
- {kind: non-env-processes, action: terminate, for: 0s, warn: []}
- {kind: unknown-processes, over: 2s, action: report, for: 0s}
";

/// A subordinate uid of alice's.
const BELOW: u32 = 700_007;

/// Whether device 0 was taken.
fn is_taken(enforcer: &Enforcer) -> Result<bool> {
    let audit = enforcer.audit()?;
    let mut lines = audit.iter();
    Ok(lines.any(|line| line["action"] == "detach" && line["result"] == "done"))
}

/// What the rule about unknown processes finds, as users and subjects.
fn found(status: &Value) -> Vec<(String, String)> {
    let all = status["violations"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of_rule = all.iter().filter(|it| it["rule"] == "unknown-processes");
    of_rule.map(|it| (text(&it["username"]), text(&it["subject"]))).collect()
}

#[test]
fn an_unknown_process_hides_the_idleness_of_its_own_user_alone() -> Result<()> {
    require_root();
    apart(|| {
        own_mounts();
        let folder = tempfile::tempdir()?;
        users(folder.path(), &["alice", "bob"], &[])?;
        subordinate_uids(folder.path(), "alice:700000:1000\n")?;
        // Bob also starts a setuid program of root.
        for (uid, owner) in [(ALICE, "alice"), (BOB, "bob"), (BELOW, "alice"), (0, "bob")] {
            let member = sleeper_of(ALICE, &ANYTHING)?;
            let (sleeper, setuid);
            let hiding = if uid == 0 {
                setuid = ChangedUser::with_real_user(BOB, 0, BOB, &ANYTHING)?;
                setuid.child()
            } else {
                sleeper = sleeper_of(uid, &[])?;
                sleeper.pid()
            };
            let scenario = format!(
                "version: 1\nhosts:\n- devices: [{{count: 2}}]\n  processes:\n  \
                 - {{pid: {hiding}, devices: [{{index: 0, memory: 1mi, utilization: 0}}]}}\n"
            );
            let setup = Setup::new(&scenario, &enforcing(RULES))?;
            let environment = Environment::new("E", ALICE, member.pid(), &[0]);
            state::write(&setup.genv_directory(), 2, &[environment])?;
            let enforcer = setup.start()?;
            let of_user = (owner.to_owned(), format!("user {owner}"));
            enforcer.wait_for_status("its user is named", |status| found(status).contains(&of_user))?;
            // By this the alert GenvUserProcessesUnknown fires.
            enforcer.wait_for_metrics("it is counted for its user", |scrape| {
                let labels = [("username", owner)];
                let all = scrape.all("genv_enforcer_unknown_user_processes", &labels);
                all.iter().any(|(_, value)| *value == 1.0)
            })?;
            if owner == "alice" {
                let on_device = (owner.to_owned(), "user alice on device 0".to_owned());
                let status =
                    enforcer.wait_for_status("what it hides is found", |status| found(status).contains(&on_device))?;
                ensure!(!is_taken(&enforcer)?, "{uid}: {status:#}");
            } else {
                until("the idle device is taken", || is_taken(&enforcer))?;
                let status = enforcer.status()?;
                ensure!(found(&status) == [of_user], "{status:#}");
            }
            ensure!(is_alive(hiding), "an unknown process was ended");
            let said = enforcer.setup().said(&["status"])?;
            let line = said.lines().find(|line| line.starts_with("Unknown"));
            let line = line.context("status does not count it")?;
            ensure!(line.contains(&format!("1 of {owner}")), "{line}");
        }
        Ok(())
    })
}
