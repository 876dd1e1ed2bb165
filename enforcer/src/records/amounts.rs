//! How much its user has of a record: devices, memory and time, the most of what was seen and what is confirmed.

use genv_core::model::{DeviceIndex, Environment, EnvironmentDevice, Snapshot};

use super::known::{HeldDevice, Known, Reservations, is_less, is_short};
use crate::by_gpu::ByGpu;

/// A record whose time of making is later than now by more than this was not made then: clocks of machines that share a
/// state differ by less.
const FUTURE_SECONDS: f64 = 60.0;

/// A record beside what is known of it.
#[derive(Default)]
pub(super) struct Compared {
    /// The record as it counts, if that differs.
    pub(super) counts: Option<Environment>,
    /// What it reserves of GPUs, where that is not what the files say.
    pub(super) reserved: ByGpu<HeldDevice>,
    pub(super) why: Vec<String>,
    /// Whether something is to be written down.
    pub(super) changed: bool,
}

/// What a record reserves of each GPU now.
pub(super) fn held(environment: &Environment, reservations: &Reservations<'_>, seen_seconds: f64) -> ByGpu<HeldDevice> {
    let attached = environment.devices.iter().filter(|device| device.attached);
    let held = attached.map(|device| {
        let gpu = device.index.whole().gpu;
        let reserved = reservations.reserved(&environment.eid, gpu);
        let (memory_bytes, attached_seconds) = reserved.unwrap_or_default();
        let held = HeldDevice {
            memory_bytes,
            attached_seconds,
            seen_seconds,
            unconfirmed: false,
            taken_seconds: None,
            unread: reserved.is_none(),
        };
        (gpu, held)
    });
    held.collect()
}

/// Whether a record has less memory than its user had.
pub(super) fn is_lessened(known: &Known, environment: &Environment, now: &ByGpu<HeldDevice>) -> bool {
    let less = |(gpu, held): (u32, &HeldDevice)| {
        let first = known.devices.get(gpu);
        first.is_some_and(|first| held.is_less(first))
    };
    is_less(environment.gpu_memory_bytes, known.memory_bytes) || now.iter().any(less)
}

/// Compares a record with what is known of it, and remembers what it gives. `gone` are devices that it lost while processes
/// of it use them; `shown` tells whether the record names its user.
pub(super) fn compare(
    environment: &Environment,
    known: &mut Known,
    now: &ByGpu<HeldDevice>,
    gone: &[u32],
    shown: bool,
    snapshot: &Snapshot,
    read_seconds: f64,
) -> Compared {
    let mut compared = Compared::default();
    let why = &mut compared.why;
    let latest = snapshot.timestamp_seconds + FUTURE_SECONDS;
    let times = (known.created_seconds, known.impossible_seconds);
    let created = created(environment, known, latest, why);
    compared.changed |= times != (known.created_seconds, known.impossible_seconds);

    let mut memory_bytes = environment.gpu_memory_bytes;
    if is_less(memory_bytes, known.memory_bytes) {
        let of_all = |(_, held): (u32, &HeldDevice)| held.memory_bytes.is_none() && !held.unread;
        if now.iter().any(of_all) {
            why.push("its memory was lowered".to_owned());
        }
        memory_bytes = known.memory_bytes;
    } else if shown {
        compared.changed |= known.memory_bytes != memory_bytes;
        known.memory_bytes = memory_bytes;
        known.memory_seen_seconds = read_seconds;
    }
    for (gpu, held) in now.iter() {
        match known.devices.get_mut(gpu) {
            Some(first) if held.is_less(first) => {
                why.push(format!("its memory on device {gpu} was lowered"));
                let memory_bytes = first.memory_bytes;
                compared.reserved.insert(gpu, HeldDevice { memory_bytes, ..*held });
            }
            Some(first) if shown && !held.unread => {
                compared.changed |= first.memory_bytes != held.memory_bytes;
                *first = HeldDevice { unconfirmed: first.unconfirmed, taken_seconds: first.taken_seconds, ..*held };
            }
            Some(_) | None => {}
        }
    }
    // What another user may have added, and is gone, was never its user's.
    let before = known.devices.len();
    known.devices.retain(|gpu, held| now.contains(gpu) || !held.unconfirmed);
    compared.changed |= known.devices.len() != before;
    let kept = gone.iter().filter_map(|gpu| Some((*gpu, *known.devices.get(*gpu)?)));
    let kept: Vec<(u32, HeldDevice)> = kept.collect();
    for (gpu, held) in &kept {
        why.push(format!("device {gpu} was taken from it"));
        compared.reserved.insert(*gpu, *held);
    }
    let lease_end = lease_end(environment, known);
    let differs = created != environment.created_timestamp_seconds
        || lease_end != environment.lease_end_timestamp_seconds
        || memory_bytes != environment.gpu_memory_bytes
        || !kept.is_empty();
    if differs {
        let mut counts = environment.clone();
        counts.created_timestamp_seconds = created;
        counts.lease_end_timestamp_seconds = lease_end;
        counts.gpu_memory_bytes = memory_bytes;
        kept.iter().for_each(|(gpu, _)| attach(&mut counts, *gpu));
        compared.counts = Some(counts);
    }
    compared
}

/// When the environment began, at the earliest that is borne out: what the record says, when the oldest living member
/// was started, and when it was first seen.
fn created(environment: &Environment, known: &mut Known, latest: f64, why: &mut Vec<String>) -> Option<f64> {
    let claimed = environment.created_timestamp_seconds;
    let claimed = claimed.filter(|it| it.is_finite());
    if claimed.is_some_and(|it| it > latest) {
        known.impossible_seconds = claimed;
    }
    if claimed.is_some() && claimed == known.impossible_seconds {
        why.push("it was made in the future, by its own word".to_owned());
    } else if let Some(claimed) = claimed {
        if known.created_seconds.is_some_and(|first| claimed < first) {
            why.push("its time of making was moved back".to_owned());
        } else {
            known.created_seconds = Some(claimed);
        }
    }
    let bounds = [known.created_seconds, environment.oldest_member_started_timestamp_seconds, known.seen_seconds];
    bounds.into_iter().flatten().reduce(f64::max)
}

/// When its lease ends. If the wall clock was turned forward since the environment was first seen, that much later.
fn lease_end(environment: &Environment, known: &Known) -> Option<f64> {
    let end = environment.lease_end_timestamp_seconds?;
    let turned = Some(known.turned_seconds).filter(|it| !is_short(it) && *it > 0.0);
    Some(end + turned.unwrap_or_default())
}

/// Shows an environment as attached to a device.
fn attach(environment: &mut Environment, gpu: u32) {
    let index = DeviceIndex::gpu(gpu);
    let devices = &mut environment.devices;
    if let Some(device) = devices.iter_mut().find(|device| device.index == index) {
        device.attached = true;
        return;
    }
    devices.push(EnvironmentDevice {
        index,
        attached: true,
        memory_used_bytes: None.into(),
        memory_capacity_bytes: None.into(),
        utilization_ratio: None.into(),
        last_active_timestamp_seconds: None.into(),
    });
}
