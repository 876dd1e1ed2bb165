//! The overview of devices that several users hold and use.

use std::fs;

use anyhow::{Result, ensure};
use genv_tests::patience;
use genv_tests::process::shared_folder;
use genv_tests::root::require_root;
use genv_tests::state::{self, Environment};

use super::{ALICE, BOB, line_of, process_of};

#[test]
fn each_user_sees_who_holds_a_device_and_whose_processes_use_it_without_holding_it() -> Result<()> {
    require_root();
    let folder = shared_folder()?;
    let folder = folder.path();
    let (member, intruder) = (process_of(ALICE, "a")?, process_of(BOB, "none")?);
    let scenario = format!(
        "version: 1\nhosts:\n- devices: [{{count: 3}}]\n  processes: \
         [{{pid: {}, devices: [{{index: 0, memory: 2gi}}]}}, \
         {{pid: {}, devices: [{{index: 0, memory: 1gi}}, {{index: 1, memory: 1gi}}]}}]\n",
        member.pid(),
        intruder.pid()
    );
    fs::write(folder.join("driver.yaml"), scenario)?;
    let environment = Environment::new("a", ALICE, member.pid(), &[0]);
    state::write(&folder.join("state"), 3, &[environment])?;
    for uid in [ALICE, BOB, 0] {
        // The driver may answer late on a busy machine.
        patience::until("the overview is complete", || {
            let line = "script -qec 'stty cols 80; genv devices --color never' /dev/null";
            let shown = line_of(folder, uid, line)?;
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            let lines: Vec<String> = shown.lines().map(words).collect();
            ensure!(lines.len() >= 4, "{shown}");
            let is = |line: usize, start: &str, end: &str| lines[line].starts_with(start) && lines[line].ends_with(end);
            Ok(is(1, &format!("0 H100 80GB HBM3 {ALICE} a "), " 3.0/80.0 0 % 1")
                && is(2, &format!("1 H100 80GB HBM3 {BOB} used, not held "), " 1.0/80.0 0 % 1")
                && lines[3] == "2 H100 80GB HBM3 free 0.0/80.0 0 % 0")
        })?;
    }
    Ok(())
}
