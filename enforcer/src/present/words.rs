//! What is wrong and what is done about it, in words: amounts, names, subjects, stages, deeds.
//!
//! What users chose (names of environments and commands) is made harmless here, once, so that no log, terminal or
//! status can be broken by it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write as _;

pub(crate) use genv_core::text::{counted as count, thousands};
use genv_core::text::{harmless, shortened};

use crate::config::Action;
use crate::plan::{AttachmentTarget, ProcessTarget, Stage, StepKind, Subject, Target};

/// `80 GiB`, `1.5 GiB`, `512 MiB`.
pub(crate) fn memory(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;
    let (unit, name) = match bytes {
        GIB.. => (GIB, "GiB"),
        MIB.. => (MIB, "MiB"),
        _ => return count(bytes, "byte"),
    };
    format!("{} {name}", rounded(bytes as f64 / unit as f64))
}

/// `5%`, `2.5%`.
pub(crate) fn percent(ratio: f64) -> String {
    let mut text = rounded(ratio * 100.0);
    text.push('%');
    text
}

/// `5`, `2.5`.
fn rounded(number: f64) -> String {
    let mut text = format!("{number:.1}");
    if text.ends_with(".0") {
        text.truncate(text.len() - 2);
    }
    text
}

/// `7d`, `7d 2h`, `90s`: the two largest units.
pub(crate) fn duration(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let mut rest = seconds;
    let mut text = String::new();
    let mut named = 0;
    for (unit, name) in UNITS {
        if rest >= unit && named < 2 {
            let between = if named == 0 { "" } else { " " };
            // Writing to a string does not fail.
            let _ = write!(text, "{between}{}{name}", rest / unit);
            rest %= unit;
            named += 1;
        }
    }
    if named == 0 {
        text.push_str("0s");
    }
    text
}

/// `device 1`, `devices 1 and 2`; a GPU once.
pub(crate) fn devices(gpus: impl IntoIterator<Item = u32>) -> String {
    let mut gpus: Vec<u32> = gpus.into_iter().collect();
    gpus.sort_unstable();
    gpus.dedup();
    match gpus.split_last() {
        None => "no device".to_owned(),
        Some((only, [])) => format!("device {only}"),
        Some((last, others)) => {
            let others: Vec<String> = others.iter().map(u32::to_string).collect();
            format!("devices {} and {last}", others.join(", "))
        }
    }
}

/// `the utilization of device 1 is not measured`.
pub(crate) fn not_measured(gpus: impl IntoIterator<Item = u32>) -> String {
    format!("the utilization of {} is not measured", devices(gpus))
}

/// `process 4242 (python)`.
pub(crate) fn process(pid: u32, comm: Option<&str>) -> String {
    match comm {
        Some(comm) => format!("process {pid} ({})", name(comm)),
        None => format!("process {pid}"),
    }
}

/// As [`process`], of one that is to end.
pub(crate) fn process_target(target: &ProcessTarget) -> String {
    process(target.pid, target.comm.as_deref())
}

/// Characters that are shown of a name that somebody chose.
const SHOWN_CHARACTERS: usize = 60;

/// A name that somebody chose: on one line, without control characters, and not without end.
pub(crate) fn name(text: &str) -> Cow<'_, str> {
    // Nearly all names are short and plain.
    if text.len() <= SHOWN_CHARACTERS && text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(shortened(&harmless(text), SHOWN_CHARACTERS))
}

/// What breaks a rule, without its user and host: `environment e1 on device 0`.
pub(crate) fn subject(subject: &Subject) -> String {
    match subject {
        Subject::Process { pid, .. } => format!("process {pid}"),
        Subject::Environment { eid, .. } => format!("environment {}", name(eid)),
        Subject::EnvironmentDevice { eid, index, .. } => {
            format!("environment {} on device {index}", name(eid))
        }
        Subject::User { username, .. } => format!("user {}", name(username)),
        Subject::UserDevice { username, index, .. } => format!("user {} on device {index}", name(username)),
    }
}

/// A subject, unless the finding names it: `environment e1 uses 20 GiB on device 0`.
pub(crate) fn unless_named<'s>(subject: &'s str, found: &str) -> Option<&'s str> {
    let name = subject.split(" on device ").next().unwrap_or(subject);
    let rest = found.strip_prefix(name);
    let is_named = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    (!is_named).then_some(subject)
}

/// The word of a stage.
pub(crate) const fn stage(stage: &Stage) -> &'static str {
    match stage {
        Stage::Pending { .. } => "pending",
        Stage::Warned { .. } => "warned",
        Stage::Due => "due",
        Stage::Acted { .. } => "acted",
        Stage::Held { .. } => "held",
    }
}

/// Things that are named before the rest is only counted.
const MOST_NAMED: usize = 10;

/// Some of many things, and how many more there are.
pub(crate) fn listed(things: impl ExactSizeIterator<Item = String>, between: &str) -> String {
    let more = things.len().saturating_sub(MOST_NAMED);
    let named: Vec<String> = things.take(MOST_NAMED).collect();
    match more {
        0 => named.join(between),
        more => format!("{}{between}and {more} more", named.join(between)),
    }
}

/// What would be ended or taken: `device 0 of environment e1, with process 4711 (python3)`.
pub(crate) fn target(target: &Target) -> String {
    match target {
        Target::Process(target) => process_target(target),
        Target::Attachment(target) => attachment_target(target),
    }
}

fn attachment_target(target: &AttachmentTarget) -> String {
    let taken = format!("device {} of environment {}", target.gpu, name(&target.eid));
    match &target.processes[..] {
        [] => taken,
        processes => {
            let named = listed(processes.iter().map(|process| process_target(process)), ", ");
            format!("{taken}, with {named}")
        }
    }
}

/// Owners of processes that end. A uid inside a container may be nobody's outside, and is left out.
pub(crate) fn victims<'t>(targets: impl IntoIterator<Item = &'t Target>) -> BTreeSet<u32> {
    let processes = targets.into_iter().flat_map(Target::processes);
    let outside = processes.filter(|process| process.container_id.is_none());
    outside.map(|process| process.uid).collect()
}

/// The target of a step; nothing if it only says something.
pub(crate) fn step_target(step: &StepKind) -> Option<Target> {
    match step {
        StepKind::Report | StepKind::Warn { .. } => None,
        StepKind::Detach(target) => Some(Target::Attachment(target.clone())),
        StepKind::Terminate(target) | StepKind::Kill(target) => Some(Target::Process(target.clone())),
    }
}

/// The action of a step; nothing for a report or a warning.
pub(crate) const fn action(step: &StepKind) -> Option<Action> {
    match step {
        StepKind::Report | StepKind::Warn { .. } => None,
        StepKind::Detach(_) => Some(Action::Detach),
        StepKind::Terminate(_) => Some(Action::Terminate),
        StepKind::Kill(_) => Some(Action::Kill),
    }
}

/// What a step does to what; nothing if it only says something.
pub(crate) fn deed(step: &StepKind) -> Option<(&'static str, String)> {
    Some((action(step)?.word(), target(&step_target(step)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_said_in_their_largest_units() {
        assert_eq!(memory(80 << 30), "80 GiB");
        assert_eq!(memory(3 << 29), "1.5 GiB");
        assert_eq!(memory(512 << 20), "512 MiB");
        assert_eq!(memory(1), "1 byte");
        assert_eq!(percent(0.05), "5%");
        assert_eq!(percent(0.025), "2.5%");
        assert_eq!(percent(0.07), "7%");
        assert_eq!(duration(7 * 86_400), "7d");
        assert_eq!(duration(7 * 86_400 + 7_261), "7d 2h");
        assert_eq!(duration(90), "1m 30s");
        assert_eq!(duration(0), "0s");
        assert_eq!(devices([2, 1, 2, 0]), "devices 0, 1 and 2");
    }

    #[test]
    fn a_hostile_name_is_no_line_of_its_own() {
        assert_eq!(name("a\nb\u{1b}[31m"), "a\\nb\\u{1b}[31m");
        assert_eq!(name(&"x".repeat(9999)), "x".repeat(60) + "…");
    }
}
