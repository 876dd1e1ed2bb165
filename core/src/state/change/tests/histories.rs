//! Random histories of requests, deaths and clock steps: what has to hold after each step.

use proptest::prelude::*;
use proptest::{collection, option, sample};

use super::*;
use crate::outside::OutsideUse;
use crate::state::allocate::fits;
use crate::state::data::DeviceState;
use crate::state::expected::Expectation;

/// Which devices a history asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Whole,
    Shared,
    Over,
}

#[derive(Clone, Debug)]
enum Step {
    Ask {
        pid: u32,
        is_root: bool,
        request: Request,
    },
    Dies(u32),
    Clock(i32),
    /// The answer of the driver to later requests, and its age; without an age it is not asked.
    Driver {
        age_seconds: Option<u8>,
        busy: BTreeSet<u32>,
        unknown: BTreeSet<u32>,
        outside: BTreeSet<u32>,
        lost: BTreeSet<u32>,
    },
}

/// Each user has processes of their own.
fn user(pid: u32) -> u32 {
    [ALICE, BOB, CAROL][pid as usize % 3]
}

fn any_wish(mode: Mode) -> impl Strategy<Value = Wish> {
    let indices = prop_oneof![3 => Just(BTreeSet::new()), 1 => collection::btree_set(0..5_u32, 1..3)];
    let flags = (prop::bool::weighted(0.4), prop::bool::weighted(0.1), any::<bool>(), prop::bool::weighted(0.1));
    (indices, option::of(0..4_u32), flags).prop_map(move |(indices, count, (over, force, wait, pass_queue))| Wish {
        indices,
        count,
        over_subscribe: over && mode == Mode::Over,
        force,
        wait,
        pass_queue,
        ..Wish::default()
    })
}

fn any_enter(mode: Mode, eid: String, pid: u32) -> impl Strategy<Value = Request> {
    let lease = || option::of((1..7200_u64).prop_map(Duration::from_secs));
    let memory = option::weighted(0.7, (1..17_u64).prop_map(|it| MemoryAmount::mebibytes(it << 10)));
    (any_wish(mode), memory, lease(), lease(), any::<bool>()).prop_map(
        move |(wish, gpu_memory, lease, local_lease, attach)| {
            let (eid, gpu_memory) = (eid.clone(), gpu_memory.filter(|_| mode != Mode::Whole));
            let enter = Enter { eid, member: pid, gpu_memory, lease, local_lease, attach, wish, ..Enter::default() };
            Request::Enter(Box::new(enter))
        },
    )
}

fn any_request(mode: Mode, pid: u32) -> impl Strategy<Value = Request> {
    let own = ["a", "b", "c"][pid as usize % 3];
    let eid = prop_oneof![7 => Just(own), 3 => sample::select(vec!["a", "b", "c", "d"])];
    eid.prop_flat_map(move |eid: &'static str| {
        let (own, member) = (move || eid.to_owned(), MemberId::Process(pid));
        let permission = || prop_oneof![Just(Permission::Owner), Just(Permission::OwnerOrRoot)];
        let configuration = (permission(), option::of(option::of(0..4_u32)), option::of(Just(None)));
        prop_oneof![
            4 => any_enter(mode, own(), pid),
            4 => (permission(), any_wish(mode)).prop_map(move |(permission, wish)| {
                Request::Attach { eid: own(), permission, wish }
            }),
            2 => (permission(), collection::vec(0..5_u32, 0..2)).prop_map(move |(permission, indices)| {
                Request::Detach { eid: own(), permission, indices }
            }),
            1 => (pid..pid + 2, 0..5_u32, option::of(Just(1_000_000))).prop_map(move |(pid, index, attached_seconds)| {
                Request::DetachSeen(SeenAttachment { eid: own(), uid: user(pid), index, attached_seconds })
            }),
            2 => any::<(bool, bool)>().prop_map(move |(all, as_shell)| {
                Request::Leave { eid: (!all).then(own), member: MemberId::Process(pid), as_shell }
            }),
            1 => Just(Request::Join { eid: own(), member, founder: None }),
            1 => Just(Request::HandOver { eid: own(), from: pid, to: pid + 3 }),
            1 => configuration.prop_map(move |(permission, gpus, gpu_memory)| {
                let change = ConfigurationChange { gpus, gpu_memory, ..ConfigurationChange::default() };
                Request::Configure { eid: own(), permission, change }
            }),
            1 => (1..LONGEST_LEASE.as_secs()).prop_map(move |more| {
                Request::Extend { eid: own(), more: Duration::from_secs(more) }
            }),
            1 => Just(Request::Withdraw),
            1 => Just(Request::ResetEnvironments),
            1 => collection::vec(4..17_u64, 1..5).prop_map(|gibibytes| {
                let mebibytes = gibibytes.into_iter().map(|it| Some(it << 10));
                Request::ResetDevices(Inventory::new((0..).zip(mebibytes)))
            }),
        ]
    })
}

fn any_step(mode: Mode) -> impl Strategy<Value = Step> {
    let indices = |most| collection::btree_set(0..4_u32, 0..most);
    prop_oneof![
        12 => (10..22_u32, prop::bool::weighted(0.05)).prop_flat_map(move |(pid, is_root)| {
            any_request(mode, pid).prop_map(move |request| Step::Ask { pid, is_root, request })
        }),
        2 => (10..25_u32).prop_map(Step::Dies),
        1 => (-60..7200).prop_map(Step::Clock),
        1 => (option::weighted(0.8, 0..4_u8), indices(3), indices(2), indices(2), indices(2)).prop_map(
            |(age_seconds, busy, unknown, outside, lost)| Step::Driver { age_seconds, busy, unknown, outside, lost },
        ),
    ]
}

fn any_history() -> impl Strategy<Value = (Mode, Vec<u64>, Vec<Step>)> {
    let modes = [Mode::Whole, Mode::Shared, Mode::Over];
    sample::select(modes.to_vec())
        .prop_flat_map(|mode| (Just(mode), collection::vec(4..17_u64, 1..5), collection::vec(any_step(mode), 1..40)))
}

/// One request of a history.
struct Asked<'a> {
    mode: Mode,
    uid: u32,
    pid: u32,
    request: &'a Request,
    facts: &'a Facts,
}

fn run(mode: Mode, gibibytes: &[u64], steps: &[Step]) -> Result<(), TestCaseError> {
    let mut lab = Lab { now_seconds: 1e6, ..Lab::new(gibibytes) };
    let mut age_seconds = Some(0);
    for step in steps {
        match step {
            Step::Ask { pid, is_root, request } => {
                lab.facts.taken_seconds = age_seconds.map(|age| lab.now_seconds - f64::from(age));
                let (before, pid) = (lab.clone(), if *is_root { *pid + 20 } else { *pid });
                let uid = if *is_root { ROOT } else { user(pid) };
                let asked = Asked { mode, uid, pid, request, facts: &before.facts };
                match lab.ask(uid, pid, request) {
                    Ok(reply) => {
                        let again = before.clone().ask(uid, pid, request);
                        prop_assert_eq!(again.as_ref(), Ok(&reply));
                        check(&before.state, &lab.state, &asked, &reply)?;
                    }
                    Err(refusal) => check_refusal(&before, &asked, &refusal)?,
                }
            }
            Step::Dies(pid) => {
                lab.state.queue.retain(|it| it.pid != *pid);
                for environment in &mut lab.state.environments {
                    environment.members.retain(|it| it.pid != *pid);
                }
                let EditableState { environments, devices, .. } = &mut lab.state;
                end_environments(environments, devices);
            }
            Step::Clock(seconds) => lab.now_seconds += f64::from(*seconds),
            Step::Driver { age_seconds: age, busy, unknown, outside, lost } => {
                age_seconds = *age;
                let outside = outside.iter().map(|&gpu| (gpu, vec![OutsideUse { gpu, ..OutsideUse::default() }]));
                let (busy, unknown, lost) = (busy.clone(), unknown.clone(), lost.clone());
                lab.facts.usage =
                    DeviceUsage { busy, unknown, lost, outside: outside.collect(), ..DeviceUsage::default() };
            }
        }
    }
    Ok(())
}

/// A request that may be granted later, and no other, is granted where nobody else holds, uses or awaits devices.
fn check_refusal(before: &Lab, asked: &Asked<'_>, refusal: &Refusal) -> Result<(), TestCaseError> {
    if asked.facts.taken_seconds.is_none() || !refusal.is_shortage() {
        return Ok(());
    }
    let eid = match asked.request {
        Request::Enter(enter) => &enter.eid,
        Request::Attach { eid, .. } => eid,
        _ => return Ok(()),
    };
    let mut alone = before.clone();
    alone.state.queue.clear();
    alone.facts.usage.outside.clear();
    for device in &mut alone.state.devices {
        device.attachments.retain(|it| it.eid == *eid);
    }
    let granted = alone.ask(asked.uid, asked.pid, asked.request);
    prop_assert_eq!(granted.is_ok(), refusal.is_temporary(), "{:?}", granted);
    Ok(())
}

fn check(before: &EditableState, after: &EditableState, asked: &Asked<'_>, reply: &Reply) -> Result<(), TestCaseError> {
    let Asked { mode, uid, pid, request, .. } = *asked;
    // What a request does not decide about is as it was.
    let unchanged = |state: &EditableState, queue: &EditableState| EditableState {
        queue: queue.queue.clone(),
        uid,
        now_seconds: after.now_seconds,
        requested: None,
        ..state.clone()
    };
    match reply {
        Reply::Waits { .. } => prop_assert_eq!(unchanged(after, before), unchanged(before, before)),
        Reply::FactsNeeded => prop_assert_eq!(unchanged(after, after), unchanged(before, before)),
        _ => {}
    }
    check_shape(mode, before, after)?;
    if uid != ROOT {
        check_others(before, after, uid)?;
    }
    match reply {
        Reply::Entered(_, attached) | Reply::Attached(attached) => {
            prop_assert!(after.queue_position(pid).is_none());
            if !attached.added.is_empty() {
                check_added(before, after, asked, &attached.added)?;
            }
        }
        _ => {}
    }
    match (request, reply) {
        (Request::Enter(enter), Reply::Entered(Activation::Created, _)) => {
            let lease = enter.lease.or(enter.local_lease);
            let end = lease.map(|it| (after.now_seconds + it.as_secs_f64()).floor());
            prop_assert_eq!(after.lease_end(&enter.eid), end);
        }
        (Request::DetachSeen(seen), _) => {
            prop_assert_eq!(before.environment(&seen.eid).map(|it| it.uid), Some(seen.uid));
            let attached = |it: &&AttachmentState| it.eid == seen.eid;
            let attachments = before.devices.iter().filter(|it| it.index == seen.index).flat_map(|it| &it.attachments);
            let attached_seconds = attachments.clone().find(attached).unwrap().attached_timestamp_seconds;
            prop_assert!(seen.attached_seconds.is_none_or(|it| attached_seconds.unwrap().floor() == it as f64));
            let mut expected = before.clone();
            expected.detach(&seen.eid, Some(seen.index)).unwrap();
            prop_assert_eq!(&after.devices, &expected.devices);
        }
        (Request::Extend { eid, more }, _) => {
            let begin = before.lease_end(eid).unwrap_or_default().max(after.now_seconds);
            let end = after.lease_end(eid).unwrap();
            prop_assert!((begin + more.as_secs_f64() - end).abs() <= 1.0);
            prop_assert!(end <= after.now_seconds + LONGEST_LEASE.as_secs_f64());
        }
        _ => {}
    }
    Ok(())
}

/// No device is given twice, no environment is without a member, and the queue keeps its order.
fn check_shape(mode: Mode, before: &EditableState, after: &EditableState) -> Result<(), TestCaseError> {
    for device in &after.devices {
        let total = device.total_memory.unwrap().bytes();
        let claims = device.attachments.iter().map(|it| it.gpu_memory.map_or(total, MemoryAmount::bytes));
        prop_assert!(mode == Mode::Over || claims.sum::<u64>() <= total, "{:?}", device);
        for attachment in &device.attachments {
            prop_assert!(after.environment(&attachment.eid).is_some());
            prop_assert_eq!(device.attachments.iter().filter(|it| it.eid == attachment.eid).count(), 1);
        }
    }
    for environment in &after.environments {
        let distinct: BTreeSet<u32> = environment.pids().collect();
        prop_assert!(!distinct.is_empty() && distinct.len() == environment.members.len());
    }
    let pids = |of: &EditableState, others: &EditableState| -> Vec<u32> {
        let both = of.queue.iter().filter(|it| others.queue_position(it.pid).is_some());
        both.map(|it| it.pid).collect()
    };
    prop_assert_eq!(pids(before, after), pids(after, before));
    let distinct: BTreeSet<u32> = after.queue.iter().map(|it| it.pid).collect();
    prop_assert_eq!(distinct.len(), after.queue.len());
    for waiting in &after.queue {
        prop_assert!(after.queue.iter().filter(|it| it.uid == waiting.uid).count() <= MOST_OF_ONE_USER);
    }
    Ok(())
}

/// Nothing of another user has changed.
fn check_others(before: &EditableState, after: &EditableState, uid: u32) -> Result<(), TestCaseError> {
    let others = |state: &EditableState| -> Vec<EnvironmentState> {
        state.environments.iter().filter(|it| it.uid != uid).cloned().collect()
    };
    prop_assert_eq!(others(before), others(after));
    let attachments = |state: &EditableState| -> Vec<(u32, AttachmentState)> {
        let of = |device: &DeviceState| {
            let index = device.index;
            device.attachments.clone().into_iter().map(move |it| (index, it))
        };
        let all = state.devices.iter().flat_map(of);
        all.filter(|(_, it)| others(before).iter().any(|other| other.eid == it.eid)).collect()
    };
    prop_assert_eq!(attachments(before), attachments(after));
    for other in others(before) {
        prop_assert_eq!(before.lease_end(&other.eid), after.lease_end(&other.eid));
    }
    let waiting = |state: &EditableState| -> Vec<u32> {
        state.queue.iter().filter(|it| it.uid != uid).map(|it| it.pid).collect()
    };
    prop_assert_eq!(waiting(before), waiting(after));
    Ok(())
}

/// The new devices of an environment may be assigned, and delay nobody who came first.
fn check_added(
    before: &EditableState,
    after: &EditableState,
    asked: &Asked<'_>,
    added: &[u32],
) -> Result<(), TestCaseError> {
    let Facts { usage, taken_seconds, .. } = asked.facts;
    let (eid, wish) = match asked.request {
        Request::Enter(enter) => (&enter.eid, &enter.wish),
        Request::Attach { eid, wish, .. } => (eid, wish),
        _ => return Err(TestCaseError::fail("only these attach")),
    };
    let is_taken = |index: &u32| usage.lost.contains(index) || !wish.force && usage.outside.contains_key(index);
    prop_assert!(!added.iter().any(is_taken));
    let age_seconds = after.now_seconds - taken_seconds.unwrap();
    if wish.indices.is_empty() && !wish.over_subscribe && age_seconds <= 2.0 {
        let memory = after.configuration(eid).unwrap().gpu_memory;
        let is_used = |index: &u32| usage.busy.contains(index) || usage.unknown.contains(index);
        let is_left = |device: &&DeviceState| {
            let own = |of: &EditableState| of.attached(eid).contains(&device.index);
            !own(before)
                && !own(after)
                && !is_used(&device.index)
                && !is_taken(&device.index)
                && fits(device, eid, memory)
        };
        let left = before.devices.iter().find(is_left);
        prop_assert!(!added.iter().any(is_used) || left.is_none(), "{:?} is unused", left);
    }
    let ahead = before.queue_position(asked.pid).unwrap_or(before.queue.len());
    if asked.mode == Mode::Whole && ahead > 0 && !wish.pass_queue {
        // An environment may change its lease, whoever waits.
        let (leases, now_seconds) = (&after.leases, after.now_seconds);
        let time = |devices| Expectation { devices, leases, usage, now_seconds }.times(&before.queue[..1])[0];
        let (then, now) = (time(&before.devices), time(&after.devices));
        prop_assert!(then.is_none_or(|then| now.is_some_and(|now| now <= then)), "{:?} {:?}", then, now);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]
    #[test]
    fn no_history_gives_what_is_anothers((mode, gibibytes, steps) in any_history()) {
        run(mode, &gibibytes, &steps)?;
    }
}
