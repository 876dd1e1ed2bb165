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
use jiff::tz::TimeZone;
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

/// A user whom rules concern.
#[derive(Debug)]
pub(super) struct User {
    uid: Option<u32>,
    /// The name, and the other names that the enforcer's files may have: it names a user by name, or else by uid.
    names: Vec<String>,
}

/// What enforcers publish about a user.
#[derive(Serialize)]
pub(super) struct ViolationReport<'a> {
    user: &'a str,
    mode: &'a str,
    updated_timestamp_seconds: f64,
    /// Whether the file is too old, so that the enforcer probably does not run.
    abandoned: bool,
    /// Whether this machine has an enforcer of its own.
    #[serde(skip)]
    is_enforced_here: bool,
    /// Why it is unknown whether the user breaks more rules.
    pub(super) not_known: Option<String>,
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

/// Why no report is complete on a machine without an enforcer of its own.
const ONLY_ELSEWHERE: &str =
    "no enforcer runs on this machine, and one on another machine publishes here only its warnings and actions";

impl Why {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let is_asked_by_user = self.user.is_none();
        let user = User::new(self.user);
        let read = |directory: &Path| Enforcement::read(directory).map_err(|error| anyhow!(error));
        let (here, elsewhere) = (read(&self.state_directory)?, read(&self.state_directory.join(ELSEWHERE))?);
        let done = Enforcement::read_file(&self.state_directory.join(DONE_FILE));
        let done = done.map_err(|error| anyhow!(error))?.unwrap_or_default();
        let now = now_seconds();
        let report = ViolationReport::new(&user, here.as_ref(), elsewhere.as_ref(), now);
        let mut shown = report.with_context(|| {
            let directory = self.state_directory.display();
            format!("cannot show violations: no enforcer has written to {directory}. Perhaps none runs on this machine; ask your administrator")
        })?;
        shown.is_asked_by_user = is_asked_by_user;
        shown.done = user.held(&done);
        shown.done.retain(|it| it.at_seconds.is_some_and(|at| now - at < SHOWN_SECONDS));
        if self.json.json {
            print_json(&shown)?;
        } else {
            print(shown.text(now, &local_time_zone()).as_bytes())?;
        }
        // The user has read the warnings now.
        if let Some(here) = here.as_ref().filter(|_| is_asked_by_user && !shown.violations.is_empty()) {
            here.confirm_read(&self.state_directory);
        }
        Ok(())
    }
}

impl User {
    /// A user by name or `uid:1234`; without one, the user of this program.
    pub(super) fn new(named: Option<String>) -> Self {
        let uid = match &named {
            Some(user) => user.strip_prefix("uid:").and_then(|uid| uid.parse().ok()),
            None => Some(own_uid()),
        };
        let of_uid = uid.into_iter().flat_map(|uid| find_username(uid).into_iter().chain([format!("uid:{uid}")]));
        Self { uid, names: named.into_iter().chain(of_uid).collect() }
    }

    pub(super) fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    fn held<'a>(&self, by: &'a Enforcement) -> Vec<&'a HeldViolation> {
        by.violations.iter().filter(|it| it.concerns(self.name(), self.uid)).collect()
    }

    fn frozen<'a>(&self, by: &'a Enforcement) -> Vec<&'a FrozenViolation> {
        let is_own = |it: &&FrozenViolation| it.username.as_ref().is_some_and(|name| self.names.contains(name));
        by.frozen.iter().filter(is_own).collect()
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
        print_note(&format!("{}. 'genv why' shows how to comply", in_one_line(held, &outlook)));
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

/// A violation and its next step, escaped.
fn in_one_line(held: &HeldViolation, outlook: &str) -> String {
    format!("{}: {}; {}", harmless(&held.rule), harmless(&held.found), harmless(outlook))
}

impl<'a> ViolationReport<'a> {
    /// The report of the enforcer of this machine and of one on another machine; absent without both.
    pub(super) fn new(
        user: &'a User,
        here: Option<&'a Enforcement>,
        elsewhere: Option<&'a Enforcement>,
        now_seconds: f64,
    ) -> Option<Self> {
        let enforcement = here.or(elsewhere)?;
        let is_own = |it: &&DisputedRecord| user.names.contains(&it.username);
        Some(Self {
            user: user.name(),
            mode: &enforcement.mode,
            updated_timestamp_seconds: enforcement.updated_timestamp_seconds,
            abandoned: enforcement.is_abandoned(now_seconds),
            is_enforced_here: here.is_some(),
            not_known: here.map_or_else(|| Some(ONLY_ELSEWHERE.to_owned()), |here| here.not_known(now_seconds)),
            paused_until_seconds: enforcement.paused_until_seconds,
            breaker_is_open: enforcement.breaker.is_some(),
            breaker_since_seconds: enforcement.breaker_since_seconds,
            is_asked_by_user: false,
            stance: enforcement.stance(),
            violations: here.map(|here| user.held(here)).unwrap_or_default(),
            frozen: here.map(|here| user.frozen(here)).unwrap_or_default(),
            disputed: enforcement.disputed_records.iter().filter(is_own).collect(),
            done: Vec::new(),
            elsewhere: elsewhere.map(|it| RemoteEnforcer {
                enforcer: &it.config.source,
                violations: user.held(it),
                frozen: user.frozen(it),
            }),
        })
    }

    /// The violations with their next steps, and the enforcer if it is on another machine.
    fn held(&self, now_seconds: f64, zone: &TimeZone) -> Vec<(&'a HeldViolation, String, Option<&'a str>)> {
        let here = self.violations.iter().map(|held| (*held, self.outlook(held, now_seconds, zone), None));
        let elsewhere = self.elsewhere.iter().flat_map(|elsewhere| {
            elsewhere.violations.iter().map(move |held| {
                // Only that enforcer knows its later findings.
                let outlook = match held.stage.as_str() {
                    "acted" => held.done(now_seconds, zone),
                    _ => held.outlook(Stance::Enforces, now_seconds, zone),
                };
                (*held, outlook, Some(elsewhere.enforcer))
            })
        });
        here.chain(elsewhere).collect()
    }

    /// The violations of which it is not known whether they are over, and the enforcer if it is on another machine.
    fn frozen(&self) -> Vec<(&'a FrozenViolation, Option<&'a str>)> {
        let here = self.frozen.iter().map(|frozen| (*frozen, None));
        let elsewhere = self.elsewhere.iter().flat_map(|elsewhere| {
            let frozen = elsewhere.frozen.iter();
            frozen.map(|frozen| (*frozen, Some(elsewhere.enforcer)))
        });
        here.chain(elsewhere).collect()
    }

    /// Everything against the user, one line each, escaped.
    pub(super) fn lines(&self, now_seconds: f64, zone: &TimeZone) -> Vec<String> {
        let held = self.held(now_seconds, zone).into_iter().map(|(held, outlook, _)| in_one_line(held, &outlook));
        let frozen = self.frozen().into_iter().map(|(frozen, _)| {
            format!("{}: it is not known whether this is over: {}", harmless(&frozen.rule), harmless(&frozen.why))
        });
        // Without an enforcer on this machine this is always so.
        let not_known = self.not_known.iter().filter(|_| self.is_enforced_here);
        let not_known = not_known.map(|why| format!("it is not known whether you break more rules: {}", harmless(why)));
        held.chain(frozen).chain(not_known).collect()
    }

    /// The report for people.
    pub(super) fn text(&self, now_seconds: f64, zone: &TimeZone) -> String {
        let (held, frozen) = (self.held(now_seconds, zone), self.frozen());
        let (none_is_held, nothing) = (held.is_empty(), held.is_empty() && frozen.is_empty());
        let mut text = String::new();
        if self.breaker_is_open {
            let since = self.breaker_since_seconds.map(|it| moment(it, zone));
            let since = since.map(|it| format!(" since {it}")).unwrap_or_default();
            text = format!(
                "The breaker of the enforcer is open{since}: it acts on no violation until an administrator closes the breaker.\n\n"
            );
        }
        if let Some(why) = self.not_known.as_deref().map(harmless) {
            let more = if none_is_held { "" } else { "more " };
            // Writing to a string does not fail.
            let _ = writeln!(text, "It is unknown whether {} breaks {more}rules: {why}.", harmless(self.user));
            if !nothing {
                text.push('\n');
            }
        } else if nothing {
            let _ = writeln!(text, "{} breaks no rule.", harmless(self.user));
        }
        for (it, outlook, enforcer) in held {
            let lines: [(&str, &str); 5] = [
                ("Found", &it.found),
                ("Allowed", &it.allowed),
                ("Since", &moment(it.since_seconds, zone)),
                ("Outlook", &outlook),
                ("To comply", &it.remedy),
            ];
            describe(&mut text, (&it.rule, it.hostname.as_deref(), &it.subject), &lines, enforcer);
        }
        for (it, enforcer) in frozen {
            let lines: [(&str, &str); 3] = [
                ("Since", &moment(it.since_seconds, zone)),
                ("Frozen", &format!("since {}: {}", moment(it.unknown_since_seconds, zone), it.why)),
                ("Outlook", "unknown until the facts are known"),
            ];
            describe(&mut text, (&it.rule, it.hostname.as_deref(), &it.subject), &lines, enforcer);
        }
        self.describe_disputed(&mut text);
        self.describe_done(&mut text, now_seconds, zone);
        if self.stance == Stance::OnlyReports && !none_is_held {
            text.push_str("The enforcer runs in dry-run mode: it only shows what it would do.\n");
        }
        text
    }

    /// The next step of a violation on this machine. The text delivers the warning to its reader.
    fn outlook(&self, held: &HeldViolation, now_seconds: f64, zone: &TimeZone) -> String {
        let unread = held.undelivered.as_ref();
        let unread = unread.filter(|it| it.is_waited_for && self.is_asked_by_user && self.stance == Stance::Enforces);
        let Some(warning) = unread.filter(|_| held.stage == "held") else {
            return held.outlook(self.stance, now_seconds, zone);
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
    fn describe_done(&self, text: &mut String, now_seconds: f64, zone: &TimeZone) {
        if !self.done.is_empty() {
            text.push_str("\nDone in the last 7 days:\n");
        }
        for it in self.done.iter().rev() {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "  {}{}: {}; {}; allowed: {}",
                harmless(&it.rule),
                on_host(it.hostname.as_deref()),
                harmless(&it.done(now_seconds, zone)),
                harmless(&it.found),
                harmless(&it.allowed)
            );
        }
    }
}

/// Adds a violation: its rule, host and subject, then lines with labels, and the enforcer on another machine.
fn describe<'a>(
    text: &mut String,
    (rule, hostname, subject): (&str, Option<&str>, &str),
    lines: &[(&'a str, &'a str)],
    enforcer: Option<&'a str>,
) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{}{}: {}", harmless(rule), on_host(hostname), harmless(subject));
    for (label, words) in lines.iter().copied().chain(enforcer.map(|enforcer| ("By", enforcer))) {
        let _ = writeln!(text, "  {label:<11}{}", harmless(words));
    }
    text.push('\n');
}

fn on_host(hostname: Option<&str>) -> String {
    hostname.map(|hostname| format!(" on {}", harmless(hostname))).unwrap_or_default()
}
