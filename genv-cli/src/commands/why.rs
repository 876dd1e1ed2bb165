//! `genv why`

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clap::Args;
use genv_core::duration::format_span;
use genv_core::enforcement::{
    DONE_FILE, DisputedRecord, ENFORCER_DIRECTORY, Enforcement, FrozenViolation, HeldViolation, Stance,
    UndeliveredWarning, unread_file,
};
use genv_core::model::local_time_zone;
use genv_core::proc::{find_username, own_uid, username};
use genv_core::text::moment;
use serde::Serialize;

use crate::ago::now_seconds;
use crate::output::{JsonFlag, harmless, print, print_json, print_note};

const EXAMPLE: &str = "Example: show why genv-enforcer will end your process, and how to prevent this
  genv why";

/// Show which rules of this machine you break, what follows, how to comply, and the actions of the last 7 days.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Why {
    /// Show the violations of this user, by name or uid:1234. Default: you.
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    /// State directory of the enforcer.
    #[arg(long, value_name = "FOLDER", default_value = ENFORCER_DIRECTORY)]
    state_directory: PathBuf,

    #[command(flatten)]
    json: JsonFlag,
}

#[derive(Serialize)]
struct ViolationReport<'a> {
    user: &'a str,
    mode: &'a str,
    updated_timestamp_seconds: f64,
    /// Whether the file is too old, so that the enforcer probably does not run.
    abandoned: bool,
    /// Why it is unknown whether the user breaks more rules.
    not_known: Option<String>,
    paused_until_seconds: Option<f64>,
    /// Whether the open breaker prevents all actions.
    breaker_is_open: bool,
    /// The time at which the breaker opened, Unix time.
    breaker_since_seconds: Option<f64>,
    /// Whether the user reads this text, which delivers the warnings in it.
    #[serde(skip)]
    is_asked_by_user: bool,
    #[serde(skip)]
    stance: Stance,
    violations: Vec<&'a HeldViolation>,
    /// Violations that may be over: the facts are unknown.
    frozen: Vec<&'a FrozenViolation>,
    /// Records of the user's environments that another user changed.
    disputed: Vec<&'a DisputedRecord>,
    /// The actions of the last days.
    done: Vec<&'a HeldViolation>,
    /// Violations by an enforcer on another machine.
    elsewhere: Option<RemoteEnforcer<'a>>,
}

#[derive(Serialize)]
struct RemoteEnforcer<'a> {
    enforcer: &'a str,
    violations: Vec<&'a HeldViolation>,
    frozen: Vec<&'a FrozenViolation>,
}

/// Time for which actions are shown.
const SHOWN_SECONDS: f64 = 7.0 * 24.0 * 3600.0;

/// The folder for files of enforcers on other machines, in the state directory of this machine's enforcer.
pub(super) const ELSEWHERE: &str = "elsewhere";

impl Why {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let is_asked_by_user = self.user.is_none();
        let uid = match &self.user {
            Some(user) => user.strip_prefix("uid:").and_then(|uid| uid.parse().ok()),
            None => Some(own_uid()),
        };
        // The enforcer's files name a user by name, or else by uid.
        let name = uid.and_then(find_username);
        let by_uid = uid.map(|uid| format!("uid:{uid}"));
        let user = self.user.or_else(|| name.clone().or_else(|| by_uid.clone()));
        let user = user.unwrap_or_default();
        let read = |directory: &Path| Enforcement::read(directory).map_err(|error| anyhow!(error));
        let elsewhere = read(&self.state_directory.join(ELSEWHERE))?;
        let done = Enforcement::read_file(&self.state_directory.join(DONE_FILE));
        let done = done.map_err(|error| anyhow!(error))?.unwrap_or_default();
        let enforcement = match (read(&self.state_directory)?, &elsewhere) {
            // No enforcer runs on this machine.
            (None, Some(elsewhere)) => {
                Some(Enforcement { violations: Vec::new(), frozen: Vec::new(), ..elsewhere.clone() })
            }
            (here, _) => here,
        };
        let enforcement = enforcement.with_context(|| {
            let directory = self.state_directory.display();
            format!("cannot show violations: no enforcer has written to {directory}. Perhaps none runs on this machine; ask your administrator")
        })?;
        let now = now_seconds();
        let is_of_user = |it: &&HeldViolation| it.concerns(&user, uid);
        let names = [Some(&user), name.as_ref(), by_uid.as_ref()];
        let is_frozen = |it: &&FrozenViolation| {
            let username = it.username.as_ref();
            username.is_some_and(|it| names.contains(&Some(it)))
        };
        let is_disputed = |it: &&DisputedRecord| names.contains(&Some(&it.username));
        let is_recent = |it: &&HeldViolation| it.at_seconds.is_some_and(|at| now - at < SHOWN_SECONDS);
        let report = ViolationReport {
            user: &user,
            mode: &enforcement.mode,
            updated_timestamp_seconds: enforcement.updated_timestamp_seconds,
            abandoned: enforcement.is_abandoned(now),
            not_known: enforcement.not_known(now),
            paused_until_seconds: enforcement.paused_until_seconds,
            breaker_is_open: enforcement.breaker.is_some(),
            breaker_since_seconds: enforcement.breaker_since_seconds,
            is_asked_by_user,
            stance: enforcement.stance(),
            violations: enforcement.violations.iter().filter(is_of_user).collect(),
            frozen: enforcement.frozen.iter().filter(is_frozen).collect(),
            disputed: enforcement.disputed_records.iter().filter(is_disputed).collect(),
            done: done.violations.iter().filter(is_of_user).filter(is_recent).collect(),
            elsewhere: elsewhere.as_ref().map(|it| RemoteEnforcer {
                enforcer: &it.config.source,
                violations: it.violations.iter().filter(is_of_user).collect(),
                frozen: it.frozen.iter().filter(is_frozen).collect(),
            }),
        };
        if self.json.json {
            print_json(&report)?;
        } else {
            print(report.text(now).as_bytes())?;
        }
        // The user has read the warnings now.
        if is_asked_by_user && !report.violations.is_empty() {
            enforcement.confirm_read(&self.state_directory);
        }
        Ok(())
    }
}

/// Prints the undelivered warnings of this machine's enforcer, one line each, and confirms their delivery. Unreadable files
/// cause no message, since each prompt calls this function.
pub(crate) fn print_unread() {
    let (directory, uid) = (Path::new(ENFORCER_DIRECTORY), own_uid());
    if !directory.join(unread_file(uid)).exists() {
        return;
    }
    let Ok(Some(enforcement)) = Enforcement::read(directory) else {
        return;
    };
    let name = username(uid);
    let held = enforcement.violations.iter();
    let unread: Vec<_> = held
        .filter(|it| it.concerns(&name, Some(uid)))
        .filter_map(|it| it.undelivered.as_ref().map(|warning| (it, warning)))
        .collect();
    let stance = enforcement.stance();
    for (held, warning) in &unread {
        let outlook = if warning.is_waited_for && stance == Stance::Enforces {
            warned(held, warning)
        } else {
            held.outlook(stance, now_seconds(), &local_time_zone())
        };
        print_note(&format!(
            "{}: {}; {}. 'genv why' shows how to comply",
            harmless(&held.rule),
            harmless(&held.found),
            harmless(&outlook)
        ));
    }
    if !unread.is_empty() {
        enforcement.confirm_read(directory);
    }
}

/// The next step after a warning that this text delivers.
fn warned(held: &HeldViolation, warning: &UndeliveredWarning) -> String {
    let follows = match warning.wait_seconds {
        Some(wait) => {
            let (action, wait) = (&held.action, format_span(wait));
            format!("{action} follows {wait} after all affected users have got it")
        }
        None => "nothing more follows".to_owned(),
    };
    let (number, of) = (warning.number, warning.of);
    format!("this text is warning {number} of {of}; {follows}")
}

impl ViolationReport<'_> {
    fn text(&self, now_seconds: f64) -> String {
        let here = self.violations.iter().map(|held| (*held, None));
        let elsewhere = self.elsewhere.iter().flat_map(|elsewhere| {
            let held = elsewhere.violations.iter();
            held.map(|held| (*held, Some(elsewhere.enforcer)))
        });
        let all: Vec<_> = here.chain(elsewhere).collect();
        let all_is_empty = all.is_empty();
        let here = self.frozen.iter().map(|frozen| (*frozen, None));
        let elsewhere = self.elsewhere.iter().flat_map(|elsewhere| {
            let frozen = elsewhere.frozen.iter();
            frozen.map(|frozen| (*frozen, Some(elsewhere.enforcer)))
        });
        let frozen: Vec<_> = here.chain(elsewhere).collect();
        let zone = local_time_zone();
        let mut text = String::new();
        if self.breaker_is_open {
            let since = self.breaker_since_seconds.map(|it| moment(it, &zone));
            let since = since.map(|it| format!(" since {it}")).unwrap_or_default();
            text = format!(
                "The breaker of the enforcer is open{since}: it acts on no violation until an administrator closes the breaker.\n\n"
            );
        }
        let not_known = self.not_known.as_deref().map(harmless);
        if let Some(why) = &not_known {
            let more = if all_is_empty { "" } else { "more " };
            // Writing to a string does not fail.
            let _ = writeln!(text, "It is unknown whether {} breaks {more}rules: {why}.", harmless(self.user));
            if !all_is_empty {
                text.push('\n');
            }
        } else if all_is_empty && frozen.is_empty() {
            let _ = writeln!(text, "{} breaks no rule.", harmless(self.user));
        }
        for (it, enforcer) in all {
            let outlook = match enforcer {
                // Only that enforcer knows its later findings.
                Some(_) if it.stage == "acted" => it.done(now_seconds, &zone),
                Some(_) => it.outlook(Stance::Enforces, now_seconds, &zone),
                None => self.outlook(it, now_seconds),
            };
            let host = it.hostname.as_deref().map(harmless);
            let host = host.map(|host| format!(" on {host}")).unwrap_or_default();
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{}{host}: {}\n  Found      {}\n  Allowed    {}\n  Since      {}\n  Outlook    {}\n  To comply  {}\n",
                harmless(&it.rule),
                harmless(&it.subject),
                harmless(&it.found),
                harmless(&it.allowed),
                moment(it.since_seconds, &zone),
                harmless(&outlook),
                harmless(&it.remedy)
            );
            if let Some(enforcer) = enforcer {
                text.pop();
                let _ = writeln!(text, "  By         {}\n", harmless(enforcer));
            }
        }
        for (it, enforcer) in frozen {
            let host = it.hostname.as_deref().map(harmless);
            let host = host.map(|host| format!(" on {host}")).unwrap_or_default();
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{}{host}: {}\n  Since      {}\n  Frozen     since {}: {}\n  Outlook    unknown until the facts are known\n",
                harmless(&it.rule),
                harmless(&it.subject),
                moment(it.since_seconds, &zone),
                moment(it.unknown_since_seconds, &zone),
                harmless(&it.why)
            );
            if let Some(enforcer) = enforcer {
                text.pop();
                let _ = writeln!(text, "  By         {}\n", harmless(enforcer));
            }
        }
        self.describe_disputed(&mut text);
        self.describe_done(&mut text, now_seconds);
        if self.stance == Stance::OnlyReports && !all_is_empty {
            text.push_str("The enforcer runs in dry-run mode: it only shows what it would do.\n");
        }
        text
    }

    /// The next step of a violation on this machine. The text delivers the warning to its reader.
    fn outlook(&self, held: &HeldViolation, now_seconds: f64) -> String {
        let unread = held.undelivered.as_ref();
        let unread = unread.filter(|it| it.is_waited_for && self.is_asked_by_user && self.stance == Stance::Enforces);
        let Some(warning) = unread.filter(|_| held.stage == "held") else {
            return held.outlook(self.stance, now_seconds, &local_time_zone());
        };
        warned(held, warning)
    }

    fn describe_disputed(&self, text: &mut String) {
        for it in &self.disputed {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "\nThe record of environment {} on {} is disputed: {}.\n  Changes to your disadvantage do not count. If you made the change, confirm it by a command of genv in that environment.",
                harmless(&it.eid),
                harmless(&it.hostname),
                harmless(&it.why)
            );
        }
    }

    /// Adds the actions, the newest first.
    fn describe_done(&self, text: &mut String, now_seconds: f64) {
        let zone = local_time_zone();
        if !self.done.is_empty() {
            text.push_str("\nDone in the last 7 days:\n");
        }
        for it in self.done.iter().rev() {
            let host = it.hostname.as_deref().map(harmless);
            let host = host.map(|host| format!(" on {host}")).unwrap_or_default();
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "  {}{host}: {}; {}; allowed: {}",
                harmless(&it.rule),
                harmless(&it.done(now_seconds, &zone)),
                harmless(&it.found),
                harmless(&it.allowed)
            );
        }
    }
}
