//! The answer, for people and for programs.

use std::fmt::Write as _;

use genv_core::attribute::reason;
use genv_core::enforcement::{Enforcement, HeldViolation, Stance};
use genv_core::model::{Attribution, HostSnapshot, Process, Snapshot};
use genv_core::proc::{Claim, ProcessRead};
use genv_core::text::harmless;
use jiff::tz::TimeZone;
use serde::Serialize;

use super::same_process;
use crate::plan::words;
use crate::plan::{Explanation, RuleExplanation, Standing};
use crate::status;

/// What is known of a process, and what comes of it.
#[derive(Debug, Serialize)]
pub(super) struct ProcessAnswer {
    version: u32,
    pid: u32,
    hostname: String,
    verdict: Verdict,
    /// `dry-run` or `enforce`, of the daemon; absent where none runs.
    mode: Option<String>,
    /// Why nothing is done until `reset`.
    breaker: Option<String>,
    process: Option<Process>,
    username: Option<String>,
    /// GPUs on which it has a context that a detach left behind.
    left_behind: Vec<u32>,
    /// What shows where it belongs.
    evidence: Option<String>,
    rules: Vec<AnsweredRule>,
    /// What could not be learned.
    pub(super) notes: Vec<String>,
}

/// A rule with what is held against anybody by it.
#[derive(Debug, Serialize)]
struct AnsweredRule {
    rule: String,
    kind: &'static str,
    action: &'static str,
    standing: Standing,
    why: String,
    found: Option<String>,
    limit: Option<String>,
    waits: Option<String>,
    violations: Vec<HeldViolation>,
}

/// Whether it is safe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Verdict {
    safe: bool,
    why: String,
}

impl Verdict {
    fn safe(why: impl Into<String>) -> Self {
        Self { safe: true, why: why.into() }
    }

    pub(super) fn no_device() -> Self {
        Self::safe("it uses no device, and only processes that use one are ever ended")
    }

    pub(super) fn unseen(why: Option<&str>) -> Self {
        let why = why.map(|why| format!(" ({})", harmless(why)));
        Self::safe(format!(
            "nobody knows now whether it uses a device{}, and what is unknown is never acted upon",
            why.unwrap_or_default()
        ))
    }

    pub(super) fn of(found: &Explanation) -> Self {
        if let Some(why) = &found.out_of_reach {
            return Self::safe(why.clone());
        }
        let with = |standing: Standing| -> Vec<&str> {
            let rules = found.rules.iter().filter(|it| it.standing == standing);
            rules.map(|rule| rule.rule.as_str()).collect()
        };
        let (ending, held) = (with(Standing::Ends), with(Standing::Held));
        if !ending.is_empty() {
            return Self { safe: false, why: format!("to be ended by {}", ending.join(", ")) };
        }
        let done = with(Standing::Done);
        if !done.is_empty() {
            return Self::safe(format!("{} sent it a signal, and nothing more follows", done.join(", ")));
        }
        if !held.is_empty() {
            return Self::safe(format!("as long as this waits: {}", held.join(", ")));
        }
        Self::safe("no rule ends it")
    }
}

impl ProcessAnswer {
    pub(super) fn new(
        pid: u32,
        own: &HostSnapshot,
        verdict: Verdict,
        status: Option<&Enforcement>,
        notes: Vec<String>,
    ) -> Self {
        Self {
            version: 1,
            pid,
            hostname: own.hostname.clone(),
            verdict,
            mode: status.map(|it| it.mode.clone()),
            breaker: status.and_then(|it| it.breaker.clone()),
            process: None,
            username: None,
            left_behind: Vec::new(),
            evidence: None,
            rules: Vec::new(),
            notes,
        }
    }

    /// Takes over what the rules make of the process. Where the daemon's memory may not be read, how far it is with a
    /// violation is what it `published`.
    pub(super) fn take(
        &mut self,
        found: Explanation,
        snapshot: Option<&Snapshot>,
        read: Option<&ProcessRead>,
        published: &[HeldViolation],
    ) {
        self.evidence = Some(evidence(&found.process, snapshot, read));
        let rules = found.rules.into_iter();
        self.rules = rules.map(|rule| AnsweredRule::of(rule, published)).collect();
        self.process = Some(found.process);
        self.username = found.username;
        self.left_behind = found.left_behind;
    }

    pub(super) fn text(&self, now_seconds: f64, zone: &TimeZone) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.describe(&mut out, now_seconds, zone);
        out
    }

    fn describe(&self, out: &mut String, now_seconds: f64, zone: &TimeZone) -> std::fmt::Result {
        write!(out, "Process {}", self.pid)?;
        if let Some(comm) = self.process.as_ref().and_then(|it| it.comm.as_deref()) {
            write!(out, " ({})", words::name(comm))?;
        }
        if let Some(username) = &self.username {
            write!(out, " of {}", words::name(username))?;
        }
        writeln!(out, " on {}", words::name(&self.hostname))?;
        let word = if self.verdict.safe { "Safe" } else { "Not safe" };
        writeln!(out, "{word}: {}.", self.verdict.why)?;
        match (self.mode.as_deref(), &self.breaker) {
            (Some(_), Some(why)) => writeln!(
                out,
                "The breaker is open, and nothing is done until 'genv-enforcer reset': {}.",
                harmless(why)
            )?,
            (Some("dry-run"), None) => {
                writeln!(out, "The enforcer only says what it would do (dry-run).")?;
            }
            (Some(_), None) => {}
            (None, _) => writeln!(out, "No enforcer has told of itself here.")?,
        }
        for note in &self.notes {
            writeln!(out, "Note: {}", harmless(note))?;
        }
        let Some(process) = &self.process else {
            return Ok(());
        };
        let uses = process.devices.iter().map(|device| {
            let memory = device.memory_used_bytes.get().map(|it| format!(" with {} MiB", it >> 20));
            let left = if self.left_behind.contains(&{ device.index.gpu }) {
                " (left behind by a detach)"
            } else if !device.shows_use() {
                " (listed by the driver, not used)"
            } else {
                ""
            };
            format!("device {}{}{left}", device.index, memory.unwrap_or_default())
        });
        writeln!(out, "  uses {}", uses.collect::<Vec<_>>().join(", "))?;
        if let Some(evidence) = &self.evidence {
            writeln!(out, "  {evidence}")?;
        }
        let stance = match (self.mode.as_deref(), &self.breaker) {
            (Some("enforce"), None) => Stance::Enforces,
            (Some("enforce"), Some(_)) => Stance::Stopped,
            _ => Stance::OnlyReports,
        };
        for rule in &self.rules {
            writeln!(out, "\n{} ({}): {}", rule.rule, rule.action, rule.standing())?;
            writeln!(out, "  {}", rule.why)?;
            if let Some(limit) = &rule.limit {
                let found = rule.found.as_ref().map(|found| format!("{found}; "));
                writeln!(out, "  {}limit: {limit}", found.unwrap_or_default())?;
            }
            for violation in &rule.violations {
                let (found, allowed) = (harmless(&violation.found), harmless(&violation.allowed));
                let subject = words::unless_named(&violation.subject, &violation.found);
                let subject = subject.map(|it| format!("{it}: ")).unwrap_or_default();
                writeln!(out, "  {subject}{found}; allowed: {allowed}")?;
                let outlook = violation.outlook(stance, now_seconds, zone);
                writeln!(out, "    {}", harmless(&outlook))?;
                writeln!(out, "    to comply: {}", harmless(&violation.remedy))?;
            }
            if let Some(waits) = rule.waits.as_ref().filter(|_| rule.violations.is_empty()) {
                writeln!(out, "  now it would wait: {}", harmless(waits))?;
            }
        }
        Ok(())
    }
}

impl AnsweredRule {
    fn of(rule: RuleExplanation, published: &[HeldViolation]) -> Self {
        let violations = rule.violations.iter().map(|violation| {
            let held = status::held(violation);
            let mut same = published
                .iter()
                .filter(|it| it.rule == held.rule && it.subject == held.subject && it.hostname == held.hostname);
            same.next().cloned().unwrap_or(held)
        });
        Self {
            violations: violations.collect(),
            rule: rule.rule,
            kind: rule.kind,
            action: rule.action.word(),
            standing: rule.standing,
            why: rule.why,
            found: rule.found,
            limit: rule.limit,
            waits: rule.waits,
        }
    }

    const fn standing(&self) -> &'static str {
        match self.standing {
            Standing::NotMatched => "does not look at it",
            Standing::NotJudged => "not judged",
            Standing::Kept => "kept",
            Standing::Spared => "broken, the process is spared",
            Standing::Held => "broken, and waits",
            Standing::Done => "broken, the signal was sent",
            Standing::Ends => "broken",
        }
    }
}

/// What shows where a process belongs.
fn evidence(process: &Process, snapshot: Option<&Snapshot>, read: Option<&ProcessRead>) -> String {
    match &process.attribution {
        Attribution::Environment { eid } => {
            let environment = snapshot.and_then(|it| it.environment(eid));
            let name = environment.and_then(|it| it.name.as_deref());
            let name = name.map(|it| format!(" \"{}\"", words::name(it)));
            let user = environment.map(|it| format!(" of {}", words::name(&it.username)));
            let is_member = environment.is_some_and(|it| it.members.iter().any(|it| it.pid == process.pid));
            let facts = same_process(read, process.start_time_ticks);
            let by = match facts.map(|facts| &facts.claim) {
                _ if is_member => "it is a member of it",
                Some(Claim::Named(claimed)) if claimed == eid => "its environ names it, and it runs as its user",
                Some(_) => "it descends from a member of it",
                None => "by its environ or by a member that it descends from",
            };
            format!("in environment {}{}{}: {by}", words::name(eid), name.unwrap_or_default(), user.unwrap_or_default())
        }
        Attribution::Outside { reason } => {
            let why = match reason.as_str() {
                reason::NO_CLAIM => "its environ names none, and it descends from no member of one",
                reason::NO_SUCH_ENVIRONMENT => "its environ names one that does not exist",
                reason::OTHER_USERS_ENVIRONMENT => "its environ names one of another user",
                other => return format!("outside of any environment: {}", words::name(other)),
            };
            format!("outside of any environment: {why}")
        }
        Attribution::Unknown { reason } => {
            let why = match reason.as_str() {
                reason::ENVIRON_UNREADABLE | reason::UNREADABLE => "it may not be read by this user: ask as root",
                reason::ENVIRON_EMPTY => "its environ is empty",
                reason::ENVIRON_OVERWRITTEN => "its environ was overwritten by the program itself",
                reason::ZOMBIE => "it has ended, and nobody has waited for it",
                reason::RECORD_DISPUTED => "the record of its environment names a user of whom no member is",
                reason::STATE_UNREADABLE => "the state of genv cannot be read",
                reason::ANCESTOR_UNREADABLE => "a process that it descends from cannot be read",
                reason::USER_UNREADABLE => "its user, or that of its environment's member, cannot be read",
                reason::USERS_DIFFER => "its real and effective users differ",
                reason::OWNER_UNKNOWN => {
                    "its uid may be a subordinate one of a user whom only a directory service knows"
                }
                reason::USER_CHANGED => "it descends from a member of an environment, and runs as another user",
                reason::MEMBERSHIP_CONTRADICTED => {
                    "its environ names an environment that lists it and is recorded as another user's"
                }
                reason::OLDER_THAN_ENVIRONMENT => {
                    "it started before the environment that its environ names was made, and may mean an ended one with that id"
                }
                other => return format!("nobody knows where it belongs: {}", words::name(other)),
            };
            format!("nobody knows where it belongs: {why}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Action;
    use crate::plan::explain;
    use crate::plan::tests::daemon::*;

    fn explained(daemon: &Daemon, lab: &Lab) -> String {
        let hosts = lab.at(daemon.now_seconds);
        let found = explain(&daemon.input(&hosts, lab), &daemon.history, "gpu01", 10).unwrap();
        let status = Enforcement { mode: "enforce".to_owned(), ..Enforcement::default() };
        let mut answer = ProcessAnswer::new(10, &hosts[0], Verdict::of(&found), Some(&status), Vec::new());
        answer.take(found, hosts[0].snapshot.as_deref(), None, &[]);
        answer.text(daemon.now_seconds, &TimeZone::UTC)
    }

    #[track_caller]
    fn has(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    /// alice holds device 0, and her process 10 uses it and is on device 1.
    fn lab(memory_bytes: u64) -> Lab {
        let lab = Lab::new(1, 2).holder("e1", "alice", &[(0, 60.0)]);
        let mut lab = lab.runs(10, "alice", Some("e1"), &[(0, GIB), (1, memory_bytes)]);
        lab.utilize(10, &[Some(0.5), Some(0.0)]);
        lab
    }

    #[test]
    fn a_device_without_use_or_with_a_context_that_was_left_behind_is_told_from_one_in_use() {
        let mut daemon = Daemon::new(vec![rule(EnvDevices, Action::Terminate)]);
        let listed = explained(&daemon, &lab(0));
        let devices = "device 0 with 1024 MiB, device 1 with 0 MiB (listed by the driver, not used)\n";
        has(&listed, &[devices, "\nSafe: no rule ends it"]);
        daemon.run(&lab(GIB).attach("gpu01", "e1", 1, 30.0), 10);
        daemon.run(&lab(GIB), 10);
        let left = explained(&daemon, &lab(GIB));
        has(&left, &["device 1 with 1024 MiB (left behind by a detach)\n", "\nSafe: no rule ends it"]);
    }

    #[test]
    fn what_is_not_measured_is_not_judged() {
        let mut lab = lab(0);
        lab.utilize(10, &[None]);
        let text = explained(&Daemon::new(vec![idle(Action::Detach)]), &lab);
        has(&text, &["Idle (detach): not judged\n  the utilization of device 0 is not measured"]);
    }

    #[test]
    fn a_process_that_a_signal_did_not_end_is_not_called_ended() {
        let lab = Lab::new(1, 1).runs(10, "bob", None, &[(0, GIB)]);
        let mut daemon = Daemon::new(vec![rule(NonEnvProcesses, Action::Terminate)]);
        daemon.run(&lab, 20);
        let text = explained(&daemon, &lab);
        has(&text, &["Safe: NonEnvProcesses sent it a signal, and nothing more follows", "the process still runs"]);
        assert!(!text.contains("was ended") && !text.contains("its time has come"), "{text}");
    }
}
