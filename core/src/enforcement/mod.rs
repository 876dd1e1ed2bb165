//! The state that the enforcer publishes: `status.json` in its directory, for its own commands and for users.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::duration::format_span;
use crate::outside::OutsideUse;

mod violation;

pub use violation::{HeldViolation, UndeliveredWarning};

/// Version of its JSON form: fields may be added, never renamed or removed.
pub const ENFORCEMENT_VERSION: u32 = 1;

/// Default directory of the enforcer's own files.
pub const ENFORCER_DIRECTORY: &str = "/var/lib/genv-enforcer";

/// The file in it.
pub const ENFORCEMENT_FILE: &str = "status.json";

/// The file of recent actions, in the same form.
pub const DONE_FILE: &str = "done.json";

/// A datagram socket in the directory. A user who has read a status sends the time of its writing, a Unix time as text.
/// The kernel shows the sender.
pub const READ_SOCKET: &str = "read.sock";

/// The prefix of a file in the directory, one for each user with an unread warning. Each further warning makes a new
/// file.
const UNREAD: &str = "unread-";

/// The name of a user's file of unread warnings.
pub fn unread_file(uid: u32) -> String {
    format!("{UNREAD}{uid}")
}

/// The user of such a file; `None` for another file.
pub fn unread_uid(name: &str) -> Option<u32> {
    name.strip_prefix(UNREAD)?.parse().ok()
}

/// A status older than this number of intervals plus [`LATE_SECONDS`] is abandoned.
const MISSED_INTERVALS: f64 = 3.0;

/// The time that a cycle may take beyond its interval before its findings count as old. It holds for short intervals
/// too.
const SHORT_CYCLE_SECONDS: f64 = 3.0;

/// A machine under load may be late by this much, however short the interval.
const LATE_SECONDS: f64 = 30.0;

/// Sources and hosts that are named before the rest is only counted.
const MOST_NAMED: usize = 5;

/// The enforcer's findings after a cycle, with the users who break rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Enforcement {
    /// [`ENFORCEMENT_VERSION`] of the writer.
    pub version: u32,
    /// Process id of the daemon.
    pub pid: u32,
    /// When it was started, Unix time.
    pub started_timestamp_seconds: f64,
    /// When the cycle ended, Unix time.
    pub updated_timestamp_seconds: f64,
    /// Time between cycles; 0 if the enforcer runs a single cycle.
    pub interval_seconds: f64,
    /// `dry-run` or `enforce`.
    pub mode: String,
    /// The rules in force.
    pub config: EnforcementConfig,
    /// The end of a pause of all actions, Unix time.
    pub paused_until_seconds: Option<f64>,
    /// Exemptions, of the configuration and of the command `waive`.
    pub waivers: Vec<EnforcementWaiver>,
    /// The reason of the open breaker, which stops all actions until `reset`.
    pub breaker: Option<String>,
    /// The time at which the breaker opened, Unix time.
    pub breaker_since_seconds: Option<f64>,
    /// Sources that show nothing, or a part only. The missing part breaks no rule here, and no rule acts on it.
    pub blind: Vec<Blind>,
    /// Hosts without fresh facts: no action happens there.
    pub missing_hosts: Vec<String>,
    /// Processes whose environment is unknown, by host. The enforcer never acts on them.
    pub unknown_processes: BTreeMap<String, u64>,
    /// The same by host and user; `(unknown)` counts processes without a known user.
    pub unknown_processes_by_user: BTreeMap<String, BTreeMap<String, u64>>,
    /// Devices that a rule cannot judge.
    pub not_judged: Vec<NotJudged>,
    /// Contexts that a detach left behind; they break no rule.
    pub left_behind: Vec<LeftBehindContext>,
    /// Processes of this machine that compute on a device outside of environments, or on a device that their
    /// environment does not hold. Processes of root and processes under `never` are left out. Absent while the
    /// processes are not known.
    pub outside: Option<Vec<OutsideUse>>,
    /// The GPUs of this machine that answer, can run programs, and have no other process than those of `outside` and
    /// `exempt_outside`. Any other GPU may be in further use.
    pub outside_known: Vec<u32>,
    /// The left out processes of root and under `never`. They keep no user from a device.
    pub exempt_outside: Vec<OutsideUse>,
    /// Records of environments with a change that their users did not make; if there are many, the first ones by name.
    pub disputed_records: Vec<DisputedRecord>,
    /// The number of all such records.
    pub disputed_records_total: u64,
    /// Faults of the enforcer itself, one sentence each.
    pub faults: Vec<String>,
    /// All violations.
    pub violations: Vec<HeldViolation>,
    /// Violations with missing evidence: it is not known whether they are over, and their time stands still.
    pub frozen: Vec<FrozenViolation>,
}

impl Enforcement {
    /// The state that the enforcer of this directory published last; absent before its first cycle. Every user may read
    /// it.
    ///
    /// # Errors
    /// The file cannot be read. The text has the cause and the remedy.
    pub fn read(directory: &Path) -> Result<Option<Self>, String> {
        Self::read_file(&directory.join(ENFORCEMENT_FILE))
    }

    /// As [`Enforcement::read`], of one of its files.
    ///
    /// # Errors
    /// As [`Enforcement::read`].
    pub fn read_file(path: &Path) -> Result<Option<Self>, String> {
        let cannot = |why: String, remedy: &str| {
            let path = path.display();
            Err(format!("cannot read {path}: {why}: {remedy}"))
        };
        match fs::read(path) {
            Ok(content) => match serde_json::from_slice(&content) {
                Ok(enforcement) => Ok(Some(enforcement)),
                Err(error) => {
                    cannot(format!("it is damaged ({error})"), "the enforcer replaces it with its next cycle or action")
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => cannot(error.to_string(), "the administrator can see what is wrong with it"),
        }
    }

    /// Reports to the enforcer of this directory that the calling user has read this status, so that a warning in it
    /// counts as delivered. Without a listening enforcer, the report is lost.
    pub fn confirm_read(&self, directory: &Path) {
        let written = self.updated_timestamp_seconds.to_string();
        let sent = UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.send_to(written.as_bytes(), directory.join(READ_SOCKET))
        });
        // A lost report does no harm: the user reads the status again, or a terminal gets the warning.
        drop(sent);
    }

    /// The stance of the enforcer towards its rules.
    pub fn stance(&self) -> Stance {
        match (self.mode.as_str(), &self.breaker) {
            ("enforce", None) => Stance::Enforces,
            ("enforce", Some(_)) => Stance::Stopped,
            _ => Stance::OnlyReports,
        }
    }

    /// Whether a newer publication is overdue: the enforcer has ended, or hangs. After a single cycle no publication is
    /// due.
    pub fn is_abandoned(&self, now_seconds: f64) -> bool {
        let age_seconds = now_seconds - self.updated_timestamp_seconds;
        self.interval_seconds > 0.0 && age_seconds > self.interval_seconds * MISSED_INTERVALS + LATE_SECONDS
    }

    /// Whether a cycle is overdue, so that the findings may be out of date.
    fn is_late(&self, now_seconds: f64) -> bool {
        let age_seconds = now_seconds - self.updated_timestamp_seconds;
        self.interval_seconds > 0.0 && age_seconds > self.interval_seconds * MISSED_INTERVALS + SHORT_CYCLE_SECONDS
    }

    /// Why further violations than [`Enforcement::violations`] are possible, in one clause; `None` if they are not
    /// possible. Names in the clause are not escaped.
    pub fn not_known(&self, now_seconds: f64) -> Option<String> {
        if self.is_abandoned(now_seconds) {
            let span = format_span(now_seconds - self.updated_timestamp_seconds);
            return Some(format!("the enforcer has ended or hangs, and its last cycle was {span} ago"));
        }
        if self.is_late(now_seconds) {
            let span = format_span(now_seconds - self.updated_timestamp_seconds);
            return Some(format!("the enforcer is late, and its last cycle was {span} ago"));
        }
        let listed = |names: Vec<String>| {
            let more = names.len().saturating_sub(MOST_NAMED);
            let named = names[..names.len() - more].join(", ");
            match more {
                0 => named,
                more => format!("{named} and {more} more"),
            }
        };
        if !self.blind.is_empty() {
            let blind = self.blind.iter().map(Blind::place);
            return Some(format!("the enforcer is blind: {}", listed(blind.collect())));
        }
        let missing = &self.missing_hosts;
        (!missing.is_empty()).then(|| format!("there are no fresh facts of {}", listed(missing.clone())))
    }
}

/// The rules in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnforcementConfig {
    /// The file, or `genv 1.4.3's flags`.
    pub source: String,
    /// SHA-256 of its content, in hexadecimal.
    pub hash: String,
    /// When it was read, Unix time.
    pub loaded_timestamp_seconds: f64,
    /// Why the present file is not in force.
    pub error: Option<String>,
    /// Names of the rules, in their order.
    pub rules: Vec<String>,
    /// The time zone of schedules, maintenance windows and waivers, with its offset at the last cycle, in words.
    pub timezone: Option<String>,
}

/// An exemption for a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnforcementWaiver {
    /// The exempt users.
    pub users: Vec<String>,
    /// The rules of the exemption; all rules if empty.
    pub rules: Vec<String>,
    /// Unix time of its end.
    pub until_seconds: f64,
    /// Why.
    pub reason: String,
}

/// Devices that a rule cannot judge, since the driver does not measure the quantity of the rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NotJudged {
    /// Name of the rule.
    pub rule: String,
    /// Host.
    pub hostname: String,
    /// GPUs.
    pub gpus: Vec<u32>,
    /// The missing measurement, in one clause.
    pub why: String,
}

/// A context that a detach left behind on a device, by a process that works on another one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftBehindContext {
    /// Host.
    pub hostname: String,
    /// User of the environment.
    pub username: String,
    /// Environment of the process.
    pub eid: String,
    /// The process.
    pub pid: u32,
    /// Its command name.
    pub comm: Option<String>,
    /// The GPU with the context. It is used, and not free.
    pub gpu: u32,
    /// The GPU on which the process works, and which its environment holds.
    pub works_on: u32,
}

/// An earlier violation whose evidence is partly missing now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FrozenViolation {
    /// Name of the rule.
    pub rule: String,
    /// The responsible user; absent if the user was not kept.
    pub username: Option<String>,
    /// Host; absent where all hosts count together.
    pub hostname: Option<String>,
    /// The subject of the violation, in words.
    pub subject: String,
    /// When it was first seen, Unix time.
    pub since_seconds: f64,
    /// Since when the evidence is missing, Unix time.
    pub unknown_since_seconds: f64,
    /// The missing evidence, in one clause.
    pub why: String,
}

/// A source of a host without facts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Blind {
    /// Host.
    pub hostname: String,
    /// `gpu`, `processes`, `state`, or `host` for all of them; `devices` and `records` where the collector works, and
    /// the processes on some devices or some records of the state are not known.
    pub source: String,
    /// Since when, Unix time.
    pub since_seconds: f64,
    /// Why, and what to do.
    pub why: String,
}

impl Blind {
    /// The source and its host: `state of gpu01`. Names in it are not escaped.
    pub fn place(&self) -> String {
        match self.source.as_str() {
            "host" => self.hostname.clone(),
            source => format!("{source} of {}", self.hostname),
        }
    }
}

/// A record of an environment with a change that does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DisputedRecord {
    /// Host.
    pub hostname: String,
    /// Environment.
    pub eid: String,
    /// The owner of the environment according to the enforcer.
    pub username: String,
    /// The reason of the dispute, in one clause.
    pub why: String,
}

/// Whether the enforcer carries out the actions of its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// The enforcer acts.
    Enforces,
    /// The open breaker stops the enforcer.
    Stopped,
    /// The enforcer reports only.
    OnlyReports,
}

#[cfg(test)]
mod tests;
