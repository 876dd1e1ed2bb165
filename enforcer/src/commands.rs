//! The commands besides `run`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use genv_core::enforcement::Enforcement;
use genv_core::model::local_time_zone;
use genv_core::progress::ProgressLine;
use genv_core::text::{end_moment, harmless};

use crate::config::{self, Accounts as _, NameService};
use crate::control::{Control, GivenWaiver};
use crate::directory::RuntimeDirectory;
use crate::execute::reset_breaker;
use crate::flags::{CheckFlags, PauseFlags, ResetFlags, StatusFlags, TestFlags, WaiveFlags};
use crate::output::{now_seconds, print, print_json, print_note};
use crate::{SilentExit, UsageError, rule_test, status};

/// `genv-enforcer check`
pub(crate) fn check(flags: &CheckFlags) -> anyhow::Result<()> {
    config::check(&flags.file, &NameService, now_seconds(), &mut std::io::stdout().lock())
}

/// `genv-enforcer test`
pub(crate) fn test(flags: &TestFlags) -> anyhow::Result<()> {
    let progress = ProgressLine::on_stderr(true);
    let mut out = progress.above(std::io::stdout().lock());
    let passed = rule_test::test(&flags.files, &mut out, &progress)?;
    if passed { Ok(()) } else { Err(SilentExit.into()) }
}

/// `genv-enforcer status`
pub(crate) fn status(flags: &StatusFlags) -> anyhow::Result<()> {
    let path = flags.directory.path();
    let status = Enforcement::read(&path).map_err(|error| anyhow!(error))?;
    let status = status.with_context(|| {
        let path = path.display();
        format!("cannot show the status: no enforcer has written to {path}. Start it, or name its directory with --state-directory")
    })?;
    if flags.json {
        return print_json(&status);
    }
    print(&status::text(&status, now_seconds(), &local_time_zone()))
}

/// `genv-enforcer pause`
pub(crate) fn pause(flags: &PauseFlags) -> anyhow::Result<()> {
    let now = now_seconds();
    let until = (flags.duration > Duration::ZERO).then_some(now + flags.duration.as_secs_f64());
    let path = flags.directory.path();
    change(&path, |control| {
        control.paused_until_seconds = until;
    })?;
    note_missing_daemon(&path, now);
    print(&match until {
        Some(until) => format!("Paused until {}.\n", end_moment(until, &local_time_zone())),
        None => "Not paused.\n".to_owned(),
    })
}

/// `genv-enforcer waive`
pub(crate) fn waive(flags: &WaiveFlags) -> anyhow::Result<()> {
    let path = flags.directory.path();
    if let Ok(Some(status)) = Enforcement::read(&path) {
        let rules = status.config.rules;
        if let Some(unknown) = flags.rules.iter().find(|it| !rules.contains(it)) {
            return Err(UsageError(format!(
                "there is no rule '{}' in force: there are {}",
                harmless(unknown),
                rules.join(", ")
            ))
            .into());
        }
    }
    let now = now_seconds();
    let waiver = GivenWaiver {
        user: flags.user.clone(),
        rules: flags.rules.iter().cloned().collect(),
        until_seconds: now + flags.duration.as_secs_f64(),
        reason: flags.reason.clone(),
        given_seconds: now,
    };
    let until = end_moment(waiver.until_seconds, &local_time_zone());
    change(&path, |control| control.waive(waiver))?;
    let is_uid = flags.user.strip_prefix("uid:");
    let is_uid = is_uid.is_some_and(|uid| uid.parse::<u32>().is_ok());
    if !flags.duration.is_zero() && !is_uid && NameService.user_name(&flags.user).is_none() {
        let user = harmless(&flags.user);
        print_note(&format!("this machine knows no user '{user}'; the exemption is kept all the same"));
    }
    note_missing_daemon(&path, now);
    let (user, rules) = (harmless(&flags.user), harmless(&flags.rules.join(", ")));
    print(&if flags.duration.is_zero() {
        format!("{user} is not exempt from {rules}.\n")
    } else {
        format!("{user} is exempt from {rules} until {until}.\n")
    })
}

/// `genv-enforcer reset`
pub(crate) fn reset(flags: &ResetFlags) -> anyhow::Result<()> {
    let directory = RuntimeDirectory::open(flags.directory.path())?;
    print(match reset_breaker(&directory)? {
        Some(_) => "The breaker is closed again.\n",
        None => "The breaker was not open.\n",
    })
}

/// Prints a note if no daemon runs with this directory: the administrator may mean another directory.
fn note_missing_daemon(path: &Path, now_seconds: f64) {
    let status = Enforcement::read(path).ok().flatten();
    if status.is_none_or(|status| status.is_abandoned(now_seconds)) {
        let path = path.display();
        print_note(&format!(
            "no enforcer runs with {path} now: the next one that does applies this. If one runs with another directory, name that directory with --state-directory"
        ));
    }
}

fn change(path: &Path, change: impl FnOnce(&mut Control)) -> anyhow::Result<()> {
    let directory = RuntimeDirectory::open(path)?;
    if let Some(aside) = Control::change(&directory, now_seconds(), change)? {
        print_note(&format!("the file of pauses and waivers was damaged, and is set aside as {aside}"));
    }
    Ok(())
}

/// Prints what one cycle found.
pub(crate) fn print_status(status: &Enforcement) -> anyhow::Result<()> {
    print(&status::text(status, now_seconds(), &local_time_zone()))
}
