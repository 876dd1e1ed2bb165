//! The published status of the daemon, and its text for the command `status`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use genv_core::duration::format_span;
use genv_core::enforcement::{
    Enforcement, EnforcementWaiver, FrozenViolation, HeldViolation, LeftBehindContext, NotJudged, Stance,
    UndeliveredWarning,
};
use genv_core::text::{end_moment, moment};
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

/// The status for people.
pub fn text(status: &Enforcement, now_seconds: f64, zone: &TimeZone) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = describe(&mut out, status, now_seconds, zone);
    out
}

fn describe(out: &mut String, status: &Enforcement, now_seconds: f64, zone: &TimeZone) -> std::fmt::Result {
    let ago = |seconds: f64| format!("{} ago", format_span(now_seconds - seconds));
    let mode = match (status.mode.as_str(), status.stance()) {
        ("dry-run", _) => "dry-run: says what it would do",
        ("enforce", Stance::Stopped) => "enforce, but the breaker is open: nothing is done",
        (other, _) => other,
    };
    writeln!(out, "Mode       {mode}")?;
    write!(out, "Last cycle {}", ago(status.updated_timestamp_seconds))?;
    if status.is_abandoned(now_seconds) {
        write!(out, ": the daemon has ended or hangs; see its log")?;
    }
    writeln!(out)?;
    let config = &status.config;
    writeln!(
        out,
        "Rules      {} ({}), read {}, sha256 {}",
        words::name(&config.source),
        config.rules.len(),
        ago(config.loaded_timestamp_seconds),
        config.hash.get(..12).unwrap_or(&config.hash)
    )?;
    if let Some(error) = &config.error {
        writeln!(out, "           the file was refused and is not in force:")?;
        for line in error.lines() {
            writeln!(out, "           {}", genv_core::text::harmless(line))?;
        }
    }
    if let Some(timezone) = &config.timezone {
        writeln!(out, "Timezone   {}", genv_core::text::harmless(timezone))?;
    }
    if let Some(until) = status.paused_until_seconds {
        writeln!(out, "Paused     until {}", end_moment(until, zone))?;
    }
    for blind in &status.blind {
        writeln!(
            out,
            "Blind      {} for {}: {}",
            genv_core::text::harmless(&blind.place()),
            format_span(now_seconds - blind.since_seconds),
            genv_core::text::harmless(&blind.why)
        )?;
    }
    describe_troubles(out, status, now_seconds, zone)?;
    for waiver in &status.waivers {
        let rules = match &waiver.rules[..] {
            [] => "all rules".to_owned(),
            rules => rules.join(", "),
        };
        writeln!(
            out,
            "Waived     {} from {rules} until {}: {}",
            genv_core::text::harmless(&waiver.users.join(", ")),
            end_moment(waiver.until_seconds, zone),
            genv_core::text::harmless(&waiver.reason)
        )?;
    }
    if let Some(conclusion) = conclusion(status, now_seconds) {
        writeln!(out, "\n{conclusion}")?;
    }
    for violation in &status.violations {
        writeln!(out)?;
        out.push_str(&violation_text(violation, status.stance(), now_seconds, zone));
    }
    for violation in &status.frozen {
        writeln!(out)?;
        out.push_str(&frozen_text(violation, now_seconds, zone));
    }
    Ok(())
}

/// A sentence about all users without a listed violation.
fn conclusion(status: &Enforcement, now_seconds: f64) -> Option<String> {
    let is_empty = status.violations.is_empty();
    if let Some(why) = status.not_known(now_seconds) {
        let who = if is_empty { "Who" } else { "Who else" };
        let why = genv_core::text::harmless(&why);
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

/// The text of a frozen violation: the broken rule, and the missing fact.
fn frozen_text(violation: &FrozenViolation, now_seconds: f64, zone: &TimeZone) -> String {
    let name = violation.username.as_deref().map(words::name);
    let host = violation.hostname.as_deref().map(words::name);
    let moment_of = |seconds: f64| {
        let ago = format_span(now_seconds - seconds);
        format!("{} ({ago} ago)", moment(seconds, zone))
    };
    format!(
        "{} broke rule {}{}: {}\n  Since    {}\n  Frozen   since {}: {}\n  Next     nothing, until this is known; then the violation goes on or is over\n",
        name.as_deref().unwrap_or("A user"),
        words::name(&violation.rule),
        host.map(|host| format!(" on {host}")).unwrap_or_default(),
        violation.subject,
        moment_of(violation.since_seconds),
        moment_of(violation.unknown_since_seconds),
        genv_core::text::harmless(&violation.why),
    )
}

/// The reasons why the enforcer does less than the rules demand.
fn describe_troubles(out: &mut String, status: &Enforcement, now_seconds: f64, zone: &TimeZone) -> std::fmt::Result {
    if let Some(why) = &status.breaker {
        let since = status.breaker_since_seconds.map(|since| {
            let ago = format_span(now_seconds - since);
            format!(" since {} ({ago} ago)", moment(since, zone))
        });
        writeln!(
            out,
            "Breaker    open{}: {}; nothing is done until 'genv-enforcer reset'",
            since.unwrap_or_default(),
            genv_core::text::harmless(why)
        )?;
    }
    for fault in &status.faults {
        writeln!(out, "Fault      {}", genv_core::text::harmless(fault))?;
    }
    for hostname in &status.missing_hosts {
        writeln!(out, "Missing    {}: no fresh facts, nothing is done there", words::name(hostname))?;
    }
    for it in &status.not_judged {
        writeln!(
            out,
            "Not judged by {} on {}: {}",
            words::name(&it.rule),
            words::name(&it.hostname),
            genv_core::text::harmless(&it.why)
        )?;
    }
    for context in &status.left_behind {
        writeln!(
            out,
            "Left       {} of {} on {}: a detach left its context on device {}; it works on device {}",
            words::process(context.pid, context.comm.as_deref()),
            words::name(&context.username),
            words::name(&context.hostname),
            context.gpu,
            context.works_on
        )?;
    }
    for record in &status.disputed_records {
        writeln!(
            out,
            "Disputed   environment {} of {} on {}: {}; what would harm its user does not count until the user confirms it",
            words::name(&record.eid),
            words::name(&record.username),
            words::name(&record.hostname),
            genv_core::text::harmless(&record.why)
        )?;
    }
    let more = status.disputed_records_total.saturating_sub(status.disputed_records.len() as u64);
    if more > 0 {
        writeln!(out, "Disputed   {more} more")?;
    }
    for (hostname, count) in status.unknown_processes.iter().filter(|(_, it)| **it > 0) {
        let processes = if *count == 1 { "process" } else { "processes" };
        let users = status.unknown_processes_by_user.get(hostname);
        writeln!(
            out,
            "Unknown    {count} {processes} on {}, never acted upon{}",
            words::name(hostname),
            users.map(of_users).unwrap_or_default()
        )?;
    }
    Ok(())
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

/// The text of a violation: user, rule, subject, start, next action, and the reason for no action.
fn violation_text(violation: &HeldViolation, stance: Stance, now_seconds: f64, zone: &TimeZone) -> String {
    let host = violation.hostname.as_deref().map(words::name);
    let host = host.map(|host| format!(" on {host}")).unwrap_or_default();
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
    let mut text = format!(
        "{} breaks rule {}{host}: {}\n",
        words::name(&violation.username),
        words::name(&violation.rule),
        violation.subject,
    );
    for (label, line) in lines {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {label:<9}{}", genv_core::text::harmless(&line));
    }
    text
}

#[cfg(test)]
mod tests;
