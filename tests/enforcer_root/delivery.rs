//! Warnings that reach their users, and those that do not.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, ends, is_alive, sleeper_of};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience;
use genv_tests::process::program;
use genv_tests::root::{FIRST_UID, require_root};

use super::stage::ANYTHING;

/// A user without a terminal, in whichever test.
const NOHUP: u32 = FIRST_UID + 40;

/// Ends processes outside of environments after a warning.
fn config(undelivered: &str) -> String {
    format!(
        "version: 1\nmode: enforce\nbreaker: {{share_of_users: 1}}\nrules:\n\
         - {{kind: non-env-processes, action: terminate, for: 0s, warn: [1s]{undelivered}}}\n"
    )
}

/// What a user reads, with the programs where that user can reach them.
pub(crate) fn why(enforcer: &Enforcer, uid: u32) -> Result<String> {
    let folder = enforcer.setup().folder();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    let genv = folder.join("genv-program");
    if !genv.exists() {
        fs::copy(program("genv")?, &genv)?;
        fs::set_permissions(&genv, fs::Permissions::from_mode(0o755))?;
    }
    let mut command = Command::new(genv);
    command.arg("why").arg("--state-directory");
    command.arg(enforcer.setup().state_directory());
    command
        .current_dir(Path::new("/"))
        .env("TZ", "UTC")
        .uid(uid)
        .gid(uid);
    let output = patience::output(&mut command)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{stderr}");
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn a_job_without_a_terminal_waits_until_its_user_has_read_the_warning() -> Result<()> {
    require_root();
    let process = sleeper_of(NOHUP, &ANYTHING)?;
    let setup = Setup::new(&used_by(&[process.pid()]), &config(", undelivered: hold"))?;
    let enforcer = setup.start()?;
    let status = enforcer.wait_for_status("it waits for delivery", |status| {
        status["violations"][0]["stage"] == "held"
    })?;
    let held = status["violations"][0]["why"].as_str().unwrap_or_default();
    ensure!(
        held.starts_with("warning 1 of 1 is not delivered"),
        "{held}"
    );
    // Another user reads it, root reads it in the user's name, and time passes.
    let other = why(&enforcer, NOHUP + 1)?;
    ensure!(other.contains("Nothing is held against"), "{other}");
    let user = format!("uid:{NOHUP}");
    let directory = enforcer.setup().state_directory().display().to_string();
    let words = ["why", "--user", &user, "--state-directory", &directory];
    ensure!(
        enforcer
            .setup()
            .program("genv", &words)?
            .status()?
            .success()
    );
    enforcer.wait_for_cycles(15)?;
    ensure!(is_alive(process.pid()));

    let read = why(&enforcer, NOHUP)?;
    ensure!(read.contains("is not delivered"), "{read}");
    let status = enforcer.wait_for_status("it is warned of", |status| {
        status["violations"][0]["stage"] == "warned"
    })?;
    ensure!(is_alive(process.pid()), "{status:#}");
    ends(process.pid())?;
    enforcer.setup().rewrite_scenario(&used_by(&[]))?;
    enforcer.wait_for_status("it is over", |status| {
        status["violations"].as_array().is_some_and(Vec::is_empty)
    })?;
    let read = why(&enforcer, NOHUP)?;
    ensure!(read.contains("Nothing is held against"), "{read}");
    let ended = format!("process {}", process.pid());
    ensure!(
        read.contains("was ended at") && read.contains(&ended),
        "{read}"
    );
    ensure!(!why(&enforcer, NOHUP + 1)?.contains(&ended));
    let log = enforcer.log();
    let count = |message: &str| log.matches(message).count();
    // Once, and again after each time that a slow machine did not show the process.
    let times = 1..=1 + count("a collector fails");
    ensure!(
        times.contains(&count("a warning is not delivered yet")),
        "{log}"
    );
    ensure!(count("a user is warned") == 1, "{log}");
    Ok(())
}

#[test]
fn a_file_that_does_not_say_acts_and_check_warns_of_it() -> Result<()> {
    require_root();
    let process = sleeper_of(NOHUP + 2, &ANYTHING)?;
    let setup = Setup::new(&used_by(&[process.pid()]), &config(""))?;
    let path = setup.config().display().to_string();
    let said = setup.said(&["check", &path])?;
    ensure!(said.contains("warnings that may reach nobody"), "{said}");
    let enforcer = setup.start()?;
    ends(process.pid())?;
    ensure!(enforcer.log().contains("warnings that may reach nobody"));
    Ok(())
}
