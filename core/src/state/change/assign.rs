//! The assignment of devices: which environment gets them now, and which process waits in the queue.

use super::refusal::Refusal;
use super::request::{Attached, Enter, Facts, Permission, Reply, Requester, Wish};
use super::state::EditableState;
use crate::state::allocate::{AttachRequest, DeviceKind, DeviceUsage, Selection};
use crate::state::data::{Activation, Configuration, MemberId};
use crate::state::queue::Waiting;

/// The greatest age of facts by which a device counts as unused. Facts from the future count as old: the clock was set
/// back.
const OLDEST_FACTS_SECONDS: f64 = 2.0;

/// A request for devices.
#[derive(Clone, Copy)]
pub(super) enum Asked<'a> {
    Enter(&'a Enter),
    Attach { eid: &'a str, permission: Permission, wish: &'a Wish },
}

/// What an attempt has done.
struct Attempt {
    /// Absent for [`Asked::Attach`].
    activation: Option<Activation>,
    /// Whether devices were requested.
    asks_devices: bool,
    added: Vec<u32>,
}

impl Asked<'_> {
    fn eid(&self) -> &str {
        match self {
            Self::Enter(enter) => &enter.eid,
            Self::Attach { eid, .. } => eid,
        }
    }

    const fn wish(&self) -> &Wish {
        match self {
            Self::Enter(enter) => &enter.wish,
            Self::Attach { wish, .. } => wish,
        }
    }

    fn reply(&self, attempt: Attempt, state: &EditableState, passed: &[Waiting]) -> Reply {
        let attached = Attached {
            added: attempt.added,
            passed: passed.to_vec(),
            requested: state.requested.clone().filter(|_| attempt.asks_devices),
        };
        match attempt.activation {
            Some(activation) => Reply::Entered(activation, attached),
            None if attempt.asks_devices => Reply::Attached(attached),
            None => Reply::NothingConfigured,
        }
    }
}

/// Gives an environment its devices, or a place in the queue.
///
/// A process behind others in the queue gets devices if it delays none of them. A process that waits changes only
/// the queue, and what a new list of the machine's devices changes.
///
/// # Errors
/// The request is refused.
pub(super) fn assign(
    mut before: EditableState,
    asked: Asked<'_>,
    requester: Requester,
    facts: &Facts,
) -> Result<(EditableState, Reply), Refusal> {
    // The request of an earlier change is not this one's.
    before.requested = None;
    if let Some(inventory) = &facts.inventory {
        before.merge_inventory(inventory);
    }
    let wish = asked.wish();
    let ahead = before.queue_position(requester.pid).unwrap_or(before.queue.len());
    let usage = usable_facts(&before, facts, wish.force);
    let mut after = before.clone();
    let outcome = match attempt(&mut after, asked, requester.uid, &usage) {
        Ok(done) if !done.asks_devices => {
            after.leave_queue(requester.pid);
            let reply = asked.reply(done, &after, &[]);
            return Ok((after, reply));
        }
        Ok(done) => Ok(done),
        Err(Refusal::Devices { error, .. }) => Err(error),
        Err(refusal) => return Err(refusal),
    };
    if ahead == 0 && facts.taken_seconds.is_none() {
        return Ok((before, Reply::FactsNeeded));
    }
    let refusal = match outcome {
        Ok(done) => {
            let waiting = &before.queue[..ahead];
            let needs_no_pass = ahead == 0 || done.added.is_empty() || wish.over_subscribe;
            let environment = (asked.eid(), &done.added[..]);
            let (now, then) = (before.expectation(&facts.usage), after.expectation(&facts.usage));
            if needs_no_pass || now.delays_none(&then, waiting, environment, wish.pass_queue) {
                if facts.taken_seconds.is_none() {
                    return Ok((before, Reply::FactsNeeded));
                }
                after.leave_queue(requester.pid);
                let reply = asked.reply(done, &after, if needs_no_pass { &[] } else { waiting });
                return Ok((after, reply));
            }
            Refusal::OthersWait(waiting.to_vec())
        }
        Err(error) => {
            let may_become_free = attempt_alone(&before, asked, requester.uid, usage).is_ok();
            Refusal::Devices { error, may_become_free }
        }
    };
    if !wish.wait || !refusal.is_temporary() {
        // Only facts refuse a request for good.
        return if facts.taken_seconds.is_none() { Ok((before, Reply::FactsNeeded)) } else { Err(refusal) };
    }
    let requested = after.requested;
    let ahead = before.enqueue(requester.pid, requested.clone());
    Ok((before, Reply::Waits { ahead, requested, refusal }))
}

/// The use of devices for the choice. Without a survey: the models alone, which do not change. With an old survey: busy
/// devices stay busy, and every other device is unknown.
fn usable_facts(state: &EditableState, facts: &Facts, force: bool) -> DeviceUsage {
    let Some(taken_seconds) = facts.taken_seconds else {
        return DeviceUsage { models: facts.usage.models.clone(), ..DeviceUsage::default() };
    };
    let mut usage = facts.usage.clone();
    if !(0.0..=OLDEST_FACTS_SECONDS).contains(&(state.now_seconds - taken_seconds)) {
        let indices = state.devices.iter().map(|it| it.index);
        usage.unknown.extend(indices.filter(|index| !facts.usage.busy.contains(index)));
    }
    if force {
        usage.outside.clear();
    }
    usage
}

/// The attempt without the attachments of other environments, and without other use of devices.
fn attempt_alone(
    state: &EditableState,
    asked: Asked<'_>,
    uid: u32,
    mut usage: DeviceUsage,
) -> Result<Attempt, Refusal> {
    let mut alone = state.clone();
    for other in state.environments.iter().filter(|it| it.eid != asked.eid()) {
        alone.detach(&other.eid, None)?;
    }
    usage.outside.clear();
    attempt(&mut alone, asked, uid, &usage)
}

/// Changes the state as if nobody else waited.
fn attempt(state: &mut EditableState, asked: Asked<'_>, uid: u32, usage: &DeviceUsage) -> Result<Attempt, Refusal> {
    let eid = asked.eid();
    let had = state.attached(eid);
    let (activation, selection, kind) = match asked {
        Asked::Enter(enter) => {
            let (activation, selection, kind) = state.enter(enter, uid)?;
            (Some(activation), selection, kind)
        }
        Asked::Attach { eid, permission, wish } => {
            state.check(permission, eid, uid, "attach")?;
            let count = wish.count.or(state.configuration(eid)?.gpus);
            (None, selection(wish, count, &wish.kind, &had), wish.kind.clone())
        }
    };
    let asks_devices = selection.is_some();
    if let Some(selection) = selection {
        let over_subscribe = asked.wish().over_subscribe;
        let request = AttachRequest { selection, kind, over_subscribe, usage: usage.clone() };
        state.attach(eid, &request)?;
    }
    let added = state.attached(eid).into_iter().filter(|it| !had.contains(it));
    Ok(Attempt { activation, asks_devices, added: added.collect() })
}

impl EditableState {
    /// Creates or joins an environment, and configures it. Returns the devices to attach. The local configuration does
    /// not change an existing environment.
    fn enter(&mut self, enter: &Enter, uid: u32) -> Result<(Activation, Option<Selection>, DeviceKind), Refusal> {
        let Enter { eid, wish, .. } = enter;
        self.check_may_enter(eid, uid)?;
        let activation = self.activate(eid, uid, enter.username.as_deref(), &MemberId::Process(enter.member));
        let indices = u32::try_from(wish.indices.len()).ok().filter(|count| *count > 0);
        let number = indices.or(wish.count);
        let (known, kind, lease) = match activation {
            Activation::Created => (enter.local.clone(), &enter.kind_if_new, enter.local_lease),
            Activation::Joined => (self.configuration(eid)?, &wish.kind, None),
        };
        let one_of_kind = (!kind.is_any()).then_some(1);
        let gpus = match activation {
            Activation::Created => number.or(known.gpus).or(one_of_kind),
            Activation::Joined => wish.count.or(known.gpus),
        };
        let configuration = Configuration {
            name: enter.name.clone().or(known.name),
            gpus,
            gpu_memory: enter.gpu_memory.or(known.gpu_memory),
        };
        self.configure(eid, configuration)?;
        if let Some(duration) = enter.lease.or(lease) {
            self.lease(eid, duration);
        }
        let attached = self.attached(eid);
        let is_asked = number.is_some() || !kind.is_any();
        let attaches = enter.attach && (attached.is_empty() || is_asked);
        let selection = attaches.then(|| selection(wish, gpus, kind, &attached)).flatten();
        Ok((activation, selection, kind.clone()))
    }
}

/// The particular devices, or else this number of devices. With a kind and without a number: as many devices as are
/// attached, and at least one.
fn selection(wish: &Wish, number: Option<u32>, kind: &DeviceKind, attached: &[u32]) -> Option<Selection> {
    if !wish.indices.is_empty() {
        return Some(Selection::Indices(wish.indices.clone()));
    }
    let of_kind = || u32::try_from(attached.len().max(1)).unwrap_or(u32::MAX);
    let number = number.or_else(|| (!kind.is_any()).then(of_kind));
    number.map(Selection::Count)
}
