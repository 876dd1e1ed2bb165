//! What breaks a rule: one file for each kind.

mod env_devices;
mod env_memory;
mod idle;
mod max_age;
mod max_devices_per_user;
mod max_environments_per_user;
mod max_hosts_per_user;
mod max_memory_per_user;
mod max_processes_per_environment;
mod non_env_processes;
mod unknown_processes;

use super::Subject;
use super::facts::{AttachmentFacts, AttachmentId, EnvironmentId, Facts, HostId, ProcessId, UseFacts, UserId};
use super::history::Past;
use super::left_behind::{Busy, Contexts};
use super::limits::Applied;
use super::selector::View;
use crate::config::{Limits, RuleKind, Scope};

/// Something that breaks a rule.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) subject: Subject,
    pub(super) user: UserId,
    /// Absent where all hosts count together.
    pub(super) host: Option<HostId>,
    pub(super) found: String,
    pub(super) allowed: String,
    /// How to end it, in words that the commands follow.
    pub(super) advice: String,
    /// By how much the limit is exceeded, in what the units weigh.
    pub(super) excess: u64,
    pub(super) units: Vec<Unit>,
    /// Why it waits, if the kind itself says so.
    pub(super) held: Option<String>,
}

impl Finding {
    /// Whether it would not be found without attachments that nothing shows to be their user's doing.
    pub(super) fn is_unconfirmed(&self) -> bool {
        let unconfirmed = self.units.iter().filter(|unit| unit.newest >= NEWEST);
        let weight = unconfirmed.fold(0_u64, |sum, unit| sum.saturating_add(unit.weight));
        weight >= self.excess
    }
}

/// What counts as one for a rule, and can be taken as one.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) weight: u64,
    /// When it began; the larger the newer, in whatever the kind compares.
    pub(super) newest: f64,
    pub(super) pieces: Vec<Piece>,
    /// Processes that must end for the unit to be gone.
    pub(super) must_end: Vec<ProcessId>,
}

/// What can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Process(ProcessId),
    Attachment(AttachmentId),
}

/// Everything that breaks a rule, in no order.
pub(super) fn findings(view: &View<'_, '_>, past: &Past<'_>, now_seconds: f64) -> Vec<Finding> {
    let contexts = Contexts::new(view.facts, past, now_seconds);
    match &view.rule.kind {
        RuleKind::NonEnvProcesses => non_env_processes::findings(view),
        RuleKind::EnvDevices => env_devices::findings(view, &contexts),
        RuleKind::EnvMemory => env_memory::findings(view),
        RuleKind::MaxDevicesPerUser { limits, scope } => max_devices_per_user::findings(view, limits, *scope),
        RuleKind::MaxEnvironmentsPerUser { limits, scope } => {
            max_environments_per_user::findings(view, &contexts, limits, *scope)
        }
        RuleKind::MaxHostsPerUser { limits } => max_hosts_per_user::findings(view, limits),
        RuleKind::MaxProcessesPerEnvironment { .. } => max_processes_per_environment::findings(view),
        RuleKind::MaxMemoryPerUser { limits, per, scope } => max_memory_per_user::findings(view, limits, *per, *scope),
        RuleKind::MaxAge { leases, .. } => max_age::findings(view, &contexts, *leases, now_seconds),
        RuleKind::Idle { below, over, only_if_free_devices_below } => {
            let idle =
                idle::Idle { below: *below, over: *over, only_if_free_devices_below: *only_if_free_devices_below };
            idle.findings(view, past)
        }
        RuleKind::UnknownProcesses { over } => unknown_processes::findings(view, *over, past, now_seconds),
    }
}

pub(super) use idle::{is_unmeasured, sample, unmeasured, window_now};

/// What counts together, and the limit that it is held against.
struct Counted<'i, 'a, T> {
    items: &'i [T],
    user: UserId,
    /// Absent where all hosts count together.
    host: Option<HostId>,
    limit: Applied<'a>,
}

/// Cuts items that are sorted by user and host into what counts together, as far as there is a limit. Where all hosts
/// count together, what is on a host with a limit of its own is held against that besides.
fn counted<'i, 'a, T>(
    view: &View<'_, 'a>,
    limits: &'a Limits<u64>,
    scope: Scope,
    items: &'i [T],
    place: impl Fn(&T) -> (UserId, HostId),
) -> Vec<Counted<'i, 'a, T>> {
    let mut all = Vec::new();
    if scope == Scope::AllHosts {
        for items in items.chunk_by(|a, b| place(a).0 == place(b).0) {
            let (user, _) = place(&items[0]);
            all.extend(view.limit(user, None).map(|limit| Counted { items, user, host: None, limit }));
        }
        if limits.overrides.is_empty() {
            return all;
        }
    }
    for items in items.chunk_by(|a, b| place(a) == place(b)) {
        let (user, host) = place(&items[0]);
        let limit = view.limit(user, Some(host));
        let limit = limit.filter(|limit| scope == Scope::Host || limit.host.is_some());
        all.extend(limit.map(|limit| Counted { items, user, host: Some(host), limit }));
    }
    all
}

/// What is more than the limit, of units that count one each. `said` says what was found and how to end it, of their
/// number and of how many are too many.
fn too_many<T>(
    facts: &Facts<'_>,
    counted: &Counted<'_, '_, T>,
    units: Vec<Unit>,
    said: impl FnOnce(u64, u64) -> (String, String),
) -> Option<Finding> {
    let Counted { user, host, limit, .. } = *counted;
    let number = units.len() as u64;
    if number <= limit.value {
        return None;
    }
    let excess = number - limit.value;
    let (found, advice) = said(number, excess);
    Some(Finding {
        subject: user_subject(facts, user, host),
        user,
        host,
        found,
        allowed: format!("{} {limit}", limit.value),
        advice,
        excess,
        units,
        held: None,
    })
}

/// A user on a host, or over all.
fn user_subject(facts: &Facts<'_>, user: UserId, host: Option<HostId>) -> Subject {
    Subject::User {
        username: facts.users[user].name.to_owned(),
        hostname: host.map(|host| facts.hosts[host].hostname.to_owned()),
    }
}

/// A process alone.
fn process_unit(facts: &Facts<'_>, process: ProcessId, weight: u64) -> Unit {
    let started = facts.processes[process].process.start_time_ticks;
    Unit { weight, newest: started.unwrap_or(0) as f64, pieces: vec![Piece::Process(process)], must_end: vec![process] }
}

/// When what nobody attached for sure began: it is taken before all that a user did.
const NEWEST: f64 = f64::INFINITY;

/// Attachments that count as one; it began with the first of them that its user made.
fn attachments_unit(facts: &Facts<'_>, attachments: &[AttachmentId]) -> Unit {
    let attached = attachments.iter().map(|&id| {
        // What is attached since nobody knows when is the oldest.
        let attachment = &facts.attachments[id];
        if attachment.unconfirmed {
            return NEWEST;
        }
        let ahead = facts.hosts[attachment.host].freshness.clock_ahead_seconds;
        // Nobody attached anything before the environment began.
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
fn environment_unit(view: &View<'_, '_>, contexts: &Contexts<'_, '_>, id: EnvironmentId) -> Option<Unit> {
    let facts = view.facts;
    let environment = &facts.environments[id];
    if !view.sees_environment(id) {
        return None;
    }
    let attachments: Vec<AttachmentId> =
        environment.attachments.clone().filter(|&id| view.sees_gpu(facts.attachments[id].gpu)).collect();
    let is_held = |&id: &AttachmentId| !facts.attachments[id].unconfirmed;
    let held = |gpu: u32| {
        let mut held = attachments.iter().filter(|id| is_held(id));
        held.any(|&id| facts.attachments[id].gpu == gpu)
    };
    let mut processes: Vec<ProcessId> = Vec::new();
    let mut elsewhere: Vec<ProcessId> = Vec::new();
    let busy = Busy::of(view.rule);
    let uses = facts.uses_of(id).filter(|used| used.shows_use);
    for used in uses.filter(|used| view.sees_gpu(used.gpu)) {
        let stays = |attachment: &AttachmentFacts| !held(attachment.gpu);
        let is_left_behind =
            if held(used.gpu) { contexts.leaves_behind(used, busy, stays) } else { contexts.left_behind(used, busy) };
        if is_left_behind.is_none() {
            processes.push(used.process);
        }
    }
    processes.sort_unstable();
    processes.dedup();
    for &process in &processes {
        let uses = &facts.uses[facts.processes[process].uses.clone()];
        if !uses.iter().any(|used| used.shows_use && held(used.gpu)) {
            elsewhere.push(process);
        }
    }
    if attachments.is_empty() && processes.is_empty() {
        return None;
    }
    let pieces = attachments.iter().copied().map(Piece::Attachment);
    let is_users = !processes.is_empty() || attachments.iter().any(is_held);
    let created = environment.created_seconds;
    let ahead = facts.hosts[environment.host].freshness.clock_ahead_seconds;
    let created = created.filter(|at| at.is_finite());
    let created = created.map_or(f64::MIN, |at| at - ahead);
    Some(Unit {
        weight: 1,
        newest: if is_users { created } else { NEWEST },
        pieces: pieces.chain(elsewhere.into_iter().map(Piece::Process)).collect(),
        must_end: processes,
    })
}

/// Uses by the same process are one after the other.
fn by_process(uses: &[&UseFacts]) -> Vec<(ProcessId, u64)> {
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
