//! The published status of the daemon, and its text for the command `status`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use genv_core::duration::format_span;
use genv_core::enforcement::{
    Enforcement, EnforcementWaiver, FrozenViolation, HeldViolation, LeftBehindContext, NotJudged, Stance,
    UndeliveredWarning,
};
use genv_core::text::{end_moment, harmless, moment};
use jiff::tz::TimeZone;

use crate::config::Waiver;
use crate::plan::words;
use crate::plan::{Frozen, LeftBehind, Plan, Stage, Violation};

/// A violation as it is published.
pub fn held(violation: &Violation) -> HeldViolation {
    let (at_seconds, why) = match &violation.stage {
        Stage::Pending { until_seconds } => (Some(*until_seconds), None),
        Stage::Warned { end_seconds, .. } => (Some(*end_seconds), None),
        Stage::Due => (None, None),
        Stage::Acted { at_seconds, .. } => (Some(*at_seconds), None),
        Stage::Held { why } => (None, Some(why.clone())),
    };
    HeldViolation {
        rule: violation.key.rule.clone(),
        username: violation.username.clone(),
        uid: violation.uid,
        victim_uids: words::victims(&violation.targets).into_iter().filter(|uid| Some(*uid) != violation.uid).collect(),
        hostname: violation.hostname.clone(),
        subject: words::subject(&violation.key.subject),
        action: violation.action.word().to_owned(),
        since_seconds: violation.since_seconds,
        stage: words::stage(&violation.stage).to_owned(),
        at_seconds,
        kill_seconds: match violation.stage {
            Stage::Acted { kill_seconds, .. } => kill_seconds,
            _ => None,
        },
        undelivered: None,
        why,
        found: violation.found(),
        allowed: violation.allowed(),
        remedy: violation.remedy(),
        targets: violation.targets.iter().map(words::target).collect(),
    }
}

/// The devices that rules cannot judge, as they are published.
pub fn not_judged(plan: &Plan) -> Vec<NotJudged> {
    let all = plan.not_judged.iter();
    let all = all.map(|((rule, hostname), gpus)| NotJudged {
        rule: rule.clone(),
        hostname: hostname.clone(),
        gpus: gpus.iter().copied().collect(),
        why: words::not_measured(gpus.iter().copied()),
    });
    all.collect()
}

/// A context that was left behind as it is published.
pub fn left_behind(context: &LeftBehind) -> LeftBehindContext {
    LeftBehindContext {
        hostname: context.hostname.clone(),
        username: context.username.clone(),
        eid: context.eid.clone(),
        pid: context.pid,
        comm: context.comm.clone(),
        gpu: context.gpu,
        works_on: context.works_on,
    }
}

/// A frozen violation as it is published.
pub fn frozen(violation: &Frozen) -> FrozenViolation {
    let subject = &violation.key.subject;
    FrozenViolation {
        rule: violation.key.rule.clone(),
        username: violation.username.clone(),
        hostname: subject.hostname().map(str::to_owned),
        subject: words::subject(subject),
        since_seconds: violation.since_seconds,
        unknown_since_seconds: violation.unknown_since_seconds,
        why: violation.why.clone(),
    }
}

/// An exemption as it is published.
pub fn waiver(waiver: &Waiver) -> EnforcementWaiver {
    EnforcementWaiver {
        users: waiver.users.iter().cloned().collect(),
        rules: waiver.rules.iter().cloned().collect(),
        until_seconds: waiver.until_seconds,
        reason: waiver.reason.clone(),
    }
}

/// A fact about the enforcer, in harmless words.
pub(crate) struct Fact {
    pub(crate) topic: Topic,
    /// Empty if the words continue those of the fact before.
    pub(crate) label: &'static str,
    pub(crate) text: String,
}

/// What a [`Fact`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// The state of the enforcer and its rules.
    State,
    /// A reason why the enforcer does less than the rules demand.
    Trouble,
    /// What breaks no rule, or is not judged.
    Note,
}

/// The sentences about one violation.
pub(crate) struct Sentences {
    pub(crate) headline: String,
    /// Labels and harmless words.
    pub(crate) lines: Vec<(&'static str, String)>,
}

/// The status for people.
pub fn text(status: &Enforcement, now_seconds: f64, zone: &TimeZone) -> String {
    let facts = facts(status, now_seconds, zone).into_iter();
    let mut out: String = facts.map(|it| format!("{:<11}{}\n", it.label, it.text)).collect();
    if let Some(conclusion) = conclusion(status, now_seconds) {
        out.extend(["\n", &conclusion, "\n"]);
    }
    let stance = status.stance();
    let violations = status.violations.iter().map(|it| sentences(it, stance, now_seconds, zone));
    let frozen = status.frozen.iter().map(|it| frozen_sentences(it, now_seconds, zone));
    for Sentences { headline, lines } in violations.chain(frozen) {
        // Writing to a string does not fail.
        let _ = writeln!(out, "\n{headline}");
        for (label, line) in lines {
            let _ = writeln!(out, "  {label:<9}{line}");
        }
    }
    out
}

/// The state of the enforcer, without the violations.
pub(crate) fn facts(status: &Enforcement, now_seconds: f64, zone: &TimeZone) -> Vec<Fact> {
    let mut facts = state(status, now_seconds, zone);
    let mut add = |topic, label, text| facts.push(Fact { topic, label, text });
    for blind in &status.blind {
        let (place, why) = (harmless(&blind.place()), harmless(&blind.why));
        add(Topic::Trouble, "Blind", format!("{place} for {}: {why}", format_span(now_seconds - blind.since_seconds)));
    }
    if let Some(why) = &status.breaker {
        let since = status.breaker_since_seconds.map(|since| {
            let ago = format_span(now_seconds - since);
            format!(" since {} ({ago} ago)", moment(since, zone))
        });
        let (since, why) = (since.unwrap_or_default(), harmless(why));
        let until = "nothing is done until 'genv-enforcer reset'";
        add(Topic::Trouble, "Breaker", format!("open{since}: {why}; {until}"));
    }
    for fault in &status.faults {
        add(Topic::Trouble, "Fault", harmless(fault));
    }
    for hostname in &status.missing_hosts {
        let hostname = words::name(hostname);
        add(Topic::Trouble, "Missing", format!("{hostname}: no fresh facts, nothing is done there"));
    }
    facts.extend(notes(status, zone));
    facts
}

fn state(status: &Enforcement, now_seconds: f64, zone: &TimeZone) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut add = |topic, label, text| facts.push(Fact { topic, label, text });
    let ago = |seconds: f64| format!("{} ago", format_span(now_seconds - seconds));
    let mode = match (status.mode.as_str(), status.stance()) {
        ("dry-run", _) => "dry-run: says what it would do",
        ("enforce", Stance::Stopped) => "enforce, but the breaker is open: nothing is done",
        (other, _) => other,
    };
    add(Topic::State, "Mode", mode.to_owned());
    let hangs = match status.is_abandoned(now_seconds) {
        true => ": the daemon has ended or hangs; see its log",
        false => "",
    };
    add(Topic::State, "Last cycle", ago(status.updated_timestamp_seconds) + hangs);
    let config = &status.config;
    let rules = format!(
        "{} ({}), read {}, sha256 {}",
        words::name(&config.source),
        config.rules.len(),
        ago(config.loaded_timestamp_seconds),
        config.hash.get(..12).unwrap_or(&config.hash)
    );
    add(Topic::State, "Rules", rules);
    if let Some(error) = &config.error {
        add(Topic::Trouble, "Refused", "the file is not in force:".to_owned());
        error.lines().for_each(|line| add(Topic::Trouble, "", harmless(line)));
    }
    if let Some(timezone) = &config.timezone {
        add(Topic::State, "Timezone", harmless(timezone));
    }
    if let Some(until) = status.paused_until_seconds {
        add(Topic::State, "Paused", format!("until {}", end_moment(until, zone)));
    }
    facts
}

fn notes(status: &Enforcement, zone: &TimeZone) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut add = |label, text| facts.push(Fact { topic: Topic::Note, label, text });
    for it in &status.not_judged {
        let (rule, hostname, why) = (words::name(&it.rule), words::name(&it.hostname), harmless(&it.why));
        add("Not judged", format!("by {rule} on {hostname}: {why}"));
    }
    for context in &status.left_behind {
        let left = format!(
            "{} of {} on {}: a detach left its context on device {}; it works on device {}",
            words::process(context.pid, context.comm.as_deref()),
            words::name(&context.username),
            words::name(&context.hostname),
            context.gpu,
            context.works_on
        );
        add("Left", left);
    }
    for record in &status.disputed_records {
        let disputed = format!(
            "environment {} of {} on {}: {}; what would harm its user does not count until the user confirms it",
            words::name(&record.eid),
            words::name(&record.username),
            words::name(&record.hostname),
            harmless(&record.why)
        );
        add("Disputed", disputed);
    }
    let more = status.disputed_records_total.saturating_sub(status.disputed_records.len() as u64);
    if more > 0 {
        add("Disputed", format!("{more} more"));
    }
    for (hostname, count) in status.unknown_processes.iter().filter(|(_, it)| **it > 0) {
        let users = status.unknown_processes_by_user.get(hostname).map(of_users).unwrap_or_default();
        let (processes, hostname) = (words::count(*count, "process"), words::name(hostname));
        add("Unknown", format!("{processes} on {hostname}, never acted upon{users}"));
    }
    for waiver in &status.waivers {
        let rules = match &waiver.rules[..] {
            [] => "all rules".to_owned(),
            rules => rules.join(", "),
        };
        let (users, reason) = (harmless(&waiver.users.join(", ")), harmless(&waiver.reason));
        let until = end_moment(waiver.until_seconds, zone);
        add("Waived", format!("{users} from {rules} until {until}: {reason}"));
    }
    facts
}

/// A sentence about all users without a listed violation.
pub(crate) fn conclusion(status: &Enforcement, now_seconds: f64) -> Option<String> {
    let is_empty = status.violations.is_empty();
    if let Some(why) = status.not_known(now_seconds) {
        let who = if is_empty { "Who" } else { "Who else" };
        let why = harmless(&why);
        return Some(format!("{who} breaks a rule is not known: {why}."));
    }
    let unknown: u64 = status.unknown_processes.values().sum();
    (is_empty && status.frozen.is_empty()).then(|| match unknown {
        0 if !status.not_judged.is_empty() => "Nobody is known to break a rule.".to_owned(),
        0 => "Nobody breaks a rule.".to_owned(),
        1 => "Nobody is known to break a rule. Of 1 unknown process it cannot be told.".to_owned(),
        unknown => format!("Nobody is known to break a rule. Of {unknown} unknown processes it cannot be told."),
    })
}

/// `: 2 of alice, 1 of bob`, those with the most first.
fn of_users(counts: &BTreeMap<String, u64>) -> String {
    const MAX_NAMED: usize = 4;
    let mut counts: Vec<(&String, &u64)> = counts.iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let named = counts.iter().take(MAX_NAMED);
    let named = named.map(|(name, count)| format!("{count} of {}", words::name(name)));
    let named: Vec<String> = named.collect();
    match counts.len() - named.len() {
        0 => format!(": {}", named.join(", ")),
        more => format!(": {}, and those of {more} more", named.join(", ")),
    }
}

/// The broken rule of a frozen violation, and the missing fact.
pub(crate) fn frozen_sentences(violation: &FrozenViolation, now_seconds: f64, zone: &TimeZone) -> Sentences {
    let name = violation.username.as_deref().map(words::name);
    let moment_of = |seconds: f64| {
        let ago = format_span(now_seconds - seconds);
        format!("{} ({ago} ago)", moment(seconds, zone))
    };
    let unknown = format!("since {}: {}", moment_of(violation.unknown_since_seconds), harmless(&violation.why));
    Sentences {
        headline: format!(
            "{} broke rule {}{}: {}",
            name.as_deref().unwrap_or("A user"),
            words::name(&violation.rule),
            on_host(violation.hostname.as_deref()),
            violation.subject
        ),
        lines: vec![
            ("Since", moment_of(violation.since_seconds)),
            ("Frozen", unknown),
            ("Next", "nothing, until this is known; then the violation goes on or is over".to_owned()),
        ],
    }
}

/// The user, rule and subject of a violation, its start, the next action, and the reason for no action.
pub(crate) fn sentences(violation: &HeldViolation, stance: Stance, now_seconds: f64, zone: &TimeZone) -> Sentences {
    let since = violation.since_seconds;
    let mut lines = vec![
        ("Found", violation.found.clone()),
        ("Allowed", violation.allowed.clone()),
        ("Since", format!("{} ({} ago)", moment(since, zone), format_span(now_seconds - since))),
    ];
    let outlook = || violation.outlook(stance, now_seconds, zone);
    match violation.stage.as_str() {
        "held" => lines.push(("Next", "nothing, as long as this holds".to_owned())),
        "acted" if stance == Stance::OnlyReports => lines.push(("Dry run", outlook())),
        "acted" => lines.push(("Done", outlook())),
        _ => lines.push(("Next", outlook())),
    }
    lines.extend(violation.why.clone().map(|why| ("Why not", why)));
    let undelivered = violation.undelivered.as_ref();
    lines.extend(undelivered.filter(|it| !it.is_waited_for).map(|it| {
        let UndeliveredWarning { number, of, why, .. } = it;
        let unread = format!("{number} of {of} is not delivered, and is not waited for: {why}");
        ("Warning", unread)
    }));
    Sentences {
        headline: format!(
            "{} breaks rule {}{}: {}",
            words::name(&violation.username),
            words::name(&violation.rule),
            on_host(violation.hostname.as_deref()),
            violation.subject
        ),
        lines: lines.into_iter().map(|(label, line)| (label, harmless(&line))).collect(),
    }
}

/// ` on gpu01`; nothing for all hosts together.
pub(crate) fn on_host(hostname: Option<&str>) -> String {
    hostname.map(|it| format!(" on {}", words::name(it))).unwrap_or_default()
}

#[cfg(test)]
mod tests;
