//! `genv why`

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clap::Args;
use genv_core::enforcement::{
    DONE_FILE, ENFORCER_DIRECTORY, Enforcement, FrozenViolation, HeldViolation,
};
use genv_core::model::local_time_zone;
use genv_core::text::moment;
use serde::Serialize;

use crate::ago::now_seconds;
use crate::output::{JsonFlag, harmless, print, print_json};

const EXAMPLE: &str = "Example: why is my process going to be ended, and what can I do
  genv why";

/// Tell which rules of this machine you break, what comes of it, how to comply, and what was done in the last 7 days.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Why {
    /// Whom it is about, by name or uid:1234, instead of you.
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    /// Directory of the enforcer.
    #[arg(long, value_name = "FOLDER", default_value = ENFORCER_DIRECTORY)]
    state_directory: PathBuf,

    #[command(flatten)]
    json: JsonFlag,
}

#[derive(Serialize)]
struct Answer<'a> {
    user: &'a str,
    mode: &'a str,
    updated_timestamp_seconds: f64,
    /// Whether the enforcer should have told more by now.
    abandoned: bool,
    /// Why it is not known whether the user breaks more rules.
    not_known: Option<String>,
    paused_until_seconds: Option<f64>,
    violations: Vec<&'a HeldViolation>,
    /// Violations of which it is not known whether they are over.
    frozen: Vec<&'a FrozenViolation>,
    /// What was done in the last days.
    done: Vec<&'a HeldViolation>,
    /// What an enforcer on another machine has warned of or done here.
    elsewhere: Option<Elsewhere<'a>>,
}

#[derive(Serialize)]
struct Elsewhere<'a> {
    enforcer: &'a str,
    violations: Vec<&'a HeldViolation>,
    frozen: Vec<&'a FrozenViolation>,
}

/// What was done is shown for so long.
const SHOWN_SECONDS: f64 = 7.0 * 24.0 * 3600.0;

/// Where enforcers of other machines leave what they warn of and do here, below the directory of the one here.
const ELSEWHERE: &str = "elsewhere";

impl Why {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let is_asked_by_user = self.user.is_none();
        let uid = match &self.user {
            Some(user) => user.strip_prefix("uid:").and_then(|uid| uid.parse().ok()),
            None => Some(genv_core::proc::own_uid()),
        };
        // The enforcer calls a user by name where it knows one.
        let found = uid.and_then(uzers::get_user_by_uid);
        let name = found.and_then(|user| user.name().to_str().map(str::to_owned));
        let by_uid = uid.map(|uid| format!("uid:{uid}"));
        let user = self
            .user
            .or_else(|| name.clone().or_else(|| by_uid.clone()));
        let user = user.unwrap_or_default();
        let read = |directory: &Path| Enforcement::read(directory).map_err(|error| anyhow!(error));
        let elsewhere = read(&self.state_directory.join(ELSEWHERE))?;
        let done = Enforcement::read_file(&self.state_directory.join(DONE_FILE));
        let done = done.map_err(|error| anyhow!(error))?.unwrap_or_default();
        let enforcement = match (read(&self.state_directory)?, &elsewhere) {
            // None runs here.
            (None, Some(elsewhere)) => Some(Enforcement {
                violations: Vec::new(),
                frozen: Vec::new(),
                ..elsewhere.clone()
            }),
            (here, _) => here,
        };
        let enforcement = enforcement.with_context(|| {
            let directory = self.state_directory.display();
            format!("cannot tell what is held against anybody: no enforcer has written to {directory}. Perhaps none runs on this machine; your administrator knows")
        })?;
        let now = now_seconds();
        let is_meant = |it: &&HeldViolation| it.concerns(&user, uid);
        let is_frozen = |it: &&FrozenViolation| {
            let names = [Some(&user), name.as_ref(), by_uid.as_ref()];
            it.username
                .as_ref()
                .is_some_and(|it| names.contains(&Some(it)))
        };
        let is_recent =
            |it: &&HeldViolation| it.at_seconds.is_some_and(|at| now - at < SHOWN_SECONDS);
        let answer = Answer {
            user: &user,
            mode: &enforcement.mode,
            updated_timestamp_seconds: enforcement.updated_timestamp_seconds,
            abandoned: enforcement.is_abandoned(now),
            not_known: enforcement.not_known(now),
            paused_until_seconds: enforcement.paused_until_seconds,
            violations: enforcement.violations.iter().filter(is_meant).collect(),
            frozen: enforcement.frozen.iter().filter(is_frozen).collect(),
            done: done
                .violations
                .iter()
                .filter(is_meant)
                .filter(is_recent)
                .collect(),
            elsewhere: elsewhere.as_ref().map(|it| Elsewhere {
                enforcer: &it.config.source,
                violations: it.violations.iter().filter(is_meant).collect(),
                frozen: it.frozen.iter().filter(is_frozen).collect(),
            }),
        };
        if self.json.json {
            print_json(&answer)?;
        } else {
            print(answer.text(now).as_bytes())?;
        }
        // Now the user has read it.
        if is_asked_by_user && !answer.violations.is_empty() {
            enforcement.confirm_read(&self.state_directory);
        }
        Ok(())
    }
}

impl Answer<'_> {
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
        let not_known = self.not_known.as_deref().map(harmless);
        if let Some(why) = &not_known {
            let more = if all_is_empty { "" } else { "more " };
            text = format!(
                "It is not known whether {} breaks {more}rules: {why}.\n",
                harmless(self.user)
            );
            if !all_is_empty {
                text.push('\n');
            }
        } else if all_is_empty && frozen.is_empty() {
            text = format!("Nothing is held against {}.\n", harmless(self.user));
        }
        for (it, enforcer) in all {
            let mode = if enforcer.is_some() {
                "enforce"
            } else {
                self.mode
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
                harmless(&it.outlook(mode, now_seconds, &zone)),
                harmless(&it.remedy)
            );
            if let Some(enforcer) = enforcer {
                text.pop();
                let _ = writeln!(text, "  Told by    {}\n", harmless(enforcer));
            }
        }
        for (it, enforcer) in frozen {
            let host = it.hostname.as_deref().map(harmless);
            let host = host.map(|host| format!(" on {host}")).unwrap_or_default();
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{}{host}: {}\n  Since      {}\n  Frozen     since {}: {}\n  Outlook    it goes on or is over once this is known\n",
                harmless(&it.rule),
                harmless(&it.subject),
                moment(it.since_seconds, &zone),
                moment(it.unknown_since_seconds, &zone),
                harmless(&it.why)
            );
            if let Some(enforcer) = enforcer {
                text.pop();
                let _ = writeln!(text, "  Told by    {}\n", harmless(enforcer));
            }
        }
        self.describe_done(&mut text, now_seconds);
        if self.mode != "enforce" && !all_is_empty {
            text.push_str("The enforcer only says what it would do.\n");
        }
        text
    }

    /// The newest first.
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
                harmless(&it.outlook("enforce", now_seconds, &zone)),
                harmless(&it.found),
                harmless(&it.allowed)
            );
        }
    }
}
