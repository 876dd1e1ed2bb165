//! Warnings that reach their users, and those that do not.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, ends, is_alive, sleeper_of};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::{self, until};
use genv_tests::process::copy_program;
use genv_tests::root::{FIRST_UID, require_root};
use genv_tests::shell::{Account, Shell};
use genv_tests::terminal::{PROMPT, Terminal, start_up};

use crate::ANYTHING;

/// A user without a terminal, in whichever test.
const NOHUP: u32 = FIRST_UID + 40;

/// Ends processes outside of environments after a warning.
fn config(undelivered: &str) -> String {
    format!(
        "version: 1\nmode: enforce\nbreaker: {{share_of_users: 1}}\nrules:\n\
         - {{kind: non-env-processes, action: terminate, for: 0s, warn: [1s], undelivered: {undelivered}}}\n"
    )
}

/// What a user reads, with the programs where that user can reach them.
fn why(enforcer: &Enforcer, uid: u32) -> Result<String> {
    let folder = enforcer.setup().folder();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    let genv = folder.join("genv-program");
    if !genv.exists() {
        copy_program("genv", &genv)?;
    }
    let mut command = Command::new(genv);
    command.arg("why").arg("--state-directory");
    command.arg(enforcer.setup().state_directory());
    command.current_dir(Path::new("/")).env("TZ", "UTC").uid(uid).gid(uid);
    let output = patience::output(&mut command)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{stderr}");
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn a_job_without_a_terminal_waits_until_its_user_has_read_the_warning() -> Result<()> {
    require_root();
    let process = sleeper_of(NOHUP, &ANYTHING)?;
    let setup = Setup::new(&used_by(&[process.pid()]), &config("hold"))?;
    let enforcer = setup.start()?;
    let status =
        enforcer.wait_for_status("it waits for delivery", |status| status["violations"][0]["stage"] == "held")?;
    let held = status["violations"][0]["why"].as_str().unwrap_or_default();
    ensure!(held.starts_with("warning 1 of 1 is not delivered"), "{held}");
    // Another user reads it, root reads it in the user's name, and time passes.
    until("the other user breaks no rule", || Ok(why(&enforcer, NOHUP + 1)?.contains("breaks no rule")))?;
    let user = format!("uid:{NOHUP}");
    let directory = enforcer.setup().state_directory().display().to_string();
    let words = ["why", "--user", &user, "--state-directory", &directory];
    ensure!(enforcer.setup().program("genv", &words)?.status()?.success());
    enforcer.wait_for_cycles(15)?;
    ensure!(is_alive(process.pid()));

    let read = why(&enforcer, NOHUP)?;
    ensure!(read.contains("this text is warning 1 of 1") && !read.contains("not delivered"), "{read}");
    ends(process.pid())?;
    enforcer.setup().rewrite_scenario(&used_by(&[]))?;
    let mut read = String::new();
    // On a busy machine a late answer of the driver may show the process for a few more cycles.
    until("it is over", || {
        read = why(&enforcer, NOHUP)?;
        Ok(read.contains("breaks no rule"))
    })?;
    let ended = format!("process {}", process.pid());
    ensure!(read.contains("SIGTERM was sent at") && read.contains(&ended), "{read}");
    ensure!(!why(&enforcer, NOHUP + 1)?.contains(&ended));
    let log = enforcer.log();
    let count = |message: &str| log.matches(message).count();
    // Once, and again after each time that a slow machine did not show the process.
    let times = 1..=1 + count("a collector fails");
    ensure!(times.contains(&count("a warning is not delivered yet")), "{log}");
    ensure!(count("a user is warned") == 1, "{log}");
    let places = ["a user is warned", "event=\"action\""].map(|part| log.find(part));
    ensure!(places[0].is_some() && places[0] < places[1], "it was ended unwarned: {log}");
    Ok(())
}

#[test]
fn a_prompt_shows_a_warning_to_a_user_whose_terminal_takes_no_messages() -> Result<()> {
    require_root();
    let uid = NOHUP + 3;
    let process = sleeper_of(uid, &ANYTHING)?;
    let setup = Setup::new(&used_by(&[]), &config("hold"))?;
    fs::set_permissions(setup.folder(), fs::Permissions::from_mode(0o755))?;
    let enforcer = setup.start()?;
    enforcer.wait_for_cycles(1)?;

    // The user sees the enforcer's directory at its usual path.
    let account = Account::new()?;
    let script = format!(
        "mount -t tmpfs tmpfs /var/lib && mkdir /var/lib/genv-enforcer && mount --bind {} /var/lib/genv-enforcer && \
         chown -R {uid}:{uid} {} && chmod 755 {} && exec setpriv --reuid {uid} --regid {uid} --clear-groups bash --noprofile -i",
        enforcer.setup().state_directory().display(),
        account.home().display(),
        account.state().parent().unwrap_or(Path::new("/")).display(),
    );
    start_up(&account, Shell::Bash, "chmod g-w $(tty)", "")?;
    let mut command = account.command("unshare")?;
    command.args(["--mount", "sh", "-c", &script]).env("GENV_TMPDIR", account.home().join("state"));
    let mut terminal = Terminal::run_in(command, Shell::Bash)?;
    terminal.wait(PROMPT)?;
    terminal.run("genv activate --gpus 1")?;
    for _ in 0..3 {
        terminal.wait(PROMPT)?;
        terminal.type_line("")?;
    }
    // The prompt after the last line comes before there is anything to show.
    terminal.wait(PROMPT)?;
    enforcer.setup().rewrite_scenario(&used_by(&[process.pid()]))?;
    enforcer.wait_for_status("it waits for delivery", |status| status["violations"][0]["stage"] == "held")?;
    ensure!(is_alive(process.pid()));
    terminal.type_line("")?;
    let shown = terminal.wait("'genv why' shows how to comply")?;
    ensure!(
        shown.contains("genv: non-env-processes: process") && shown.contains("this text is warning 1 of 1"),
        "{shown}"
    );
    ends(process.pid())?;
    ensure!(enforcer.log().contains("a user is warned"), "{}", enforcer.log());
    Ok(())
}

#[test]
fn a_warning_that_reached_nobody_is_no_warning_that_was_given() -> Result<()> {
    require_root();
    let process = sleeper_of(NOHUP, &ANYTHING)?;
    let config = config("act").replace("[1s]", "[1h]");
    let enforcer = Setup::new(&used_by(&[process.pid()]), &config)?.start()?;
    enforcer.wait_for_status("it is warned of", |status| status["violations"][0]["stage"] == "warned")?;
    let counted = |result: &str| -> Result<f64> {
        let labels = [("rule", "non-env-processes"), ("result", result)];
        let scrape = enforcer.scrape()?;
        let all = scrape.all("genv_enforcer_warnings_total", &labels);
        Ok(all.iter().map(|(_, value)| value).sum())
    };
    until("it is counted", || Ok(counted("failed")? == 1.0))?;
    assert_eq!(counted("done")?, 0.0);
    let status = enforcer.setup().said(&["status"])?;
    let part = "Warning  1 of 1 is not delivered, and is not waited for: no terminal";
    ensure!(status.contains(part), "{status}");
    let log = enforcer.log();
    for part in ["a warning is not delivered", "result=\"failed\""] {
        ensure!(log.contains(part), "{log}");
    }
    ensure!(!log.contains("a user is warned"), "{log}");
    Ok(())
}
