//! What a kind counts as one, with all that must be ended or taken for it.

use super::Check;
use super::finding::{NEWEST, Piece, Unit};
use crate::plan::facts::{AttachmentFacts, AttachmentId, EnvironmentId, Facts, ProcessId, UseFacts};

/// A process alone.
pub(super) fn process_unit(facts: &Facts<'_>, process: ProcessId, weight: u64) -> Unit {
    let started = facts.processes[process].process.start_time_ticks;
    Unit { weight, newest: started.unwrap_or(0) as f64, pieces: vec![Piece::Process(process)], must_end: vec![process] }
}

/// Attachments that count as one; it began with the first of them that its user made.
pub(super) fn attachments_unit(facts: &Facts<'_>, attachments: &[AttachmentId]) -> Unit {
    let attached = attachments.iter().map(|&id| {
        // An attachment of unknown time counts as the oldest.
        let attachment = &facts.attachments[id];
        if attachment.unconfirmed {
            return NEWEST;
        }
        let ahead = facts.hosts[attachment.host].freshness.clock_ahead_seconds;
        // No attachment is older than its environment.
        let began = facts.environments[attachment.environment].created_seconds;
        let began = began.filter(|at| at.is_finite());
        let attached = attachment.attached_seconds.map(|seconds| seconds as f64);
        let attached = attached.map(|seconds| began.map_or(seconds, |began| seconds.max(began)));
        attached.map_or(f64::MIN, |seconds| seconds - ahead)
    });
    Unit {
        weight: 1,
        newest: attached.fold(NEWEST, f64::min),
        pieces: attachments.iter().copied().map(Piece::Attachment).collect(),
        must_end: Vec::new(),
    }
}

/// Every device that an environment holds or uses, as far as the rule looks at them; absent if it holds and uses none. What a
/// detach left behind is no use.
pub(super) fn environment_unit(check: &Check<'_, '_, '_>, id: EnvironmentId) -> Option<Unit> {
    let Check { view, contexts, .. } = check;
    let facts = view.facts;
    let environment = &facts.environments[id];
    if !view.sees_environment(id) {
        return None;
    }
    let attachments = environment.attachments.clone().filter(|&id| view.sees_gpu(facts.attachments[id].gpu));
    let mut pieces: Vec<Piece> = attachments.map(Piece::Attachment).collect();
    let is_held = |attachment: &AttachmentFacts| !attachment.unconfirmed && view.sees_gpu(attachment.gpu);
    let all_attachments = facts.attachments_of(id);
    let holds_gpu = |gpu: u32| all_attachments.iter().any(|attachment| attachment.gpu == gpu && is_held(attachment));
    let mut processes: Vec<ProcessId> = Vec::new();
    let busy = view.rule.busy();
    let uses = facts.uses_of(id).filter(|used| used.shows_use);
    for used in uses.filter(|used| view.sees_gpu(used.gpu)) {
        let stays = |attachment: &AttachmentFacts| !holds_gpu(attachment.gpu);
        let is_left_behind = if holds_gpu(used.gpu) {
            contexts.leaves_behind(used, busy, stays)
        } else {
            contexts.left_behind(used, busy)
        };
        if is_left_behind.is_none() {
            processes.push(used.process);
        }
    }
    processes.sort_unstable();
    processes.dedup();
    let elsewhere = processes.iter().copied().filter(|&process| {
        let mut uses = facts.uses[facts.processes[process].uses.clone()].iter();
        !uses.any(|used| used.shows_use && holds_gpu(used.gpu))
    });
    pieces.extend(elsewhere.map(Piece::Process));
    if pieces.is_empty() && processes.is_empty() {
        return None;
    }
    let is_users = !processes.is_empty() || all_attachments.iter().any(is_held);
    let created = environment.created_seconds;
    let ahead = facts.hosts[environment.host].freshness.clock_ahead_seconds;
    let created = created.filter(|at| at.is_finite());
    let created = created.map_or(f64::MIN, |at| at - ahead);
    Some(Unit { weight: 1, newest: if is_users { created } else { NEWEST }, pieces, must_end: processes })
}

/// Uses by the same process are one after the other.
pub(super) fn by_process(uses: &[&UseFacts]) -> Vec<(ProcessId, u64)> {
    let mut processes: Vec<(ProcessId, u64)> = uses.iter().map(|used| (used.process, used.memory_bytes)).collect();
    processes.sort_unstable();
    let mut sums: Vec<(ProcessId, u64)> = Vec::with_capacity(processes.len());
    for (process, bytes) in processes {
        match sums.last_mut() {
            Some(last) if last.0 == process => last.1 = last.1.saturating_add(bytes),
            _ => sums.push((process, bytes)),
        }
    }
    sums
}
