//! The use of devices from outside environments, by the enforcer's published file and the driver's answer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use genv_core::attribute::{Attributor, LiveEnvironment, live_environments};
use genv_core::enforcement::{ENFORCER_DIRECTORY, Enforcement};
use genv_core::gpu::GpuSample;
use genv_core::outside::{OutsideUse, computes};
use genv_core::proc::{ProcessRead, ProcessRequest, ProcessSource, ProcessTable, in_initial_pid_namespace};
use genv_core::state::allocate::DeviceUsage;
use genv_core::state::{Contexts, EnvironmentState, State};

use crate::ago::now_seconds;
use crate::machine::NoSample;

/// The largest age of the enforcer's published file, and of the facts in an exporter's snapshot.
pub(crate) const MAX_AGE_SECONDS: f64 = 15.0;

/// The processes that use each GPU.
pub(crate) type OutsideUses = BTreeMap<u32, Vec<OutsideUse>>;

/// The use of the devices at one moment.
pub(crate) struct DeviceUse {
    /// The driver's answer, or the reason why it is missing.
    pub(crate) sample: Result<GpuSample, NoSample>,
    /// The processes on each GPU whose processes are all known.
    pub(crate) contexts: Contexts,
    /// The processes of all users except root that use devices outside of environments.
    pub(crate) outside: OutsideUses,
    /// The GPUs of which the enforcer knows all processes; none without a recent file of the enforcer.
    pub(crate) published_known: BTreeSet<u32>,
}

impl DeviceUse {
    /// The use of GPUs that cannot be queried.
    pub(crate) fn unknown(reason: NoSample) -> Self {
        Self {
            sample: Err(reason),
            contexts: Contexts::new(),
            outside: OutsideUses::new(),
            published_known: BTreeSet::new(),
        }
    }

    /// Whether all outside processes of a GPU are known.
    pub(crate) fn knows_outside(&self, gpu: u32) -> bool {
        self.published_known.contains(&gpu) || self.contexts.contains_key(&gpu)
    }
}

/// The enforcer's published uses.
pub(crate) struct Published {
    uses: Vec<OutsideUse>,
    /// Uses that do not prevent an assignment.
    exempt: Vec<OutsideUse>,
    /// The GPUs that have no other process than these.
    pub(crate) known: BTreeSet<u32>,
}

/// The uses that this machine's enforcer published within [`MAX_AGE_SECONDS`]. Processes may have ended or started since then.
pub(crate) fn published() -> Option<Published> {
    let status = Enforcement::read(Path::new(ENFORCER_DIRECTORY)).ok()??;
    let age_seconds = now_seconds() - status.updated_timestamp_seconds;
    // A file from the future is not recent: the clock was set back.
    let is_recent = (-1.0..=MAX_AGE_SECONDS).contains(&age_seconds);
    let (exempt, known) = (status.exempt_outside, status.outside_known.into_iter().collect());
    status.outside.filter(|_| is_recent).map(|uses| Published { uses, exempt, known })
}

/// The use of the state's devices while the driver does not answer. Nothing is known of a device that the enforcer does not know.
pub(crate) fn usage_without_driver(published: Option<&Published>, state: &State) -> DeviceUsage {
    let uses = published.into_iter().flat_map(|it| it.uses.iter().chain(&it.exempt));
    let is_known = |gpu: &u32| published.is_some_and(|it| it.known.contains(gpu));
    DeviceUsage {
        busy: uses.map(|it| it.gpu).collect(),
        unknown: state.devices.iter().map(|it| it.index).filter(|it| !is_known(it)).collect(),
        ..DeviceUsage::default()
    }
}

/// The remaining published uses, and the uses by the driver's answer that are not exempt. The published file lacks processes
/// and detached devices of the last seconds.
pub(crate) fn current_uses(
    published: Published,
    sample: Option<&GpuSample>,
    contexts: Option<&Contexts>,
    state: &State,
    processes: &mut dyn ProcessSource,
) -> OutsideUses {
    let Published { uses, exempt, known: _ } = published;
    let mut present = remaining(uses, contexts, state, processes);
    let of_driver = sample.map(|sample| uses_by_driver(sample, state, processes));
    for it in of_driver.into_iter().flatten().flat_map(|(_, uses)| uses) {
        let is_it = |other: &OutsideUse| {
            (other.gpu, other.pid, other.start_time_ticks) == (it.gpu, it.pid, it.start_time_ticks)
        };
        let known = present.entry(it.gpu).or_default();
        if !exempt.iter().chain(known.iter()).any(is_it) {
            known.push(it);
        }
    }
    present.retain(|_, uses| !uses.is_empty());
    present
}

/// The published uses that continue, by /proc, the state and the driver's answer, if any.
fn remaining(
    published: Vec<OutsideUse>,
    contexts: Option<&Contexts>,
    state: &State,
    processes: &mut dyn ProcessSource,
) -> OutsideUses {
    // In another pid namespace these pids are other processes.
    if !in_initial_pid_namespace() {
        return by_gpu(published);
    }
    let pids = published.iter().map(|it| it.pid).collect();
    with_attribution(pids, state, processes, |table, attributor| {
        by_gpu(published.into_iter().filter_map(|mut it| {
            match table.processes.get(&it.pid)? {
                ProcessRead::Present(facts) if facts.start_time_ticks == it.start_time_ticks => {}
                // The process is hidden (hidepid).
                ProcessRead::Unreadable => {}
                ProcessRead::Present(_) | ProcessRead::Vanished => return None,
            }
            let lineage = table.lineage.get(&it.pid);
            it.started_timestamp_seconds = lineage.map(|it| it.start_timestamp_seconds);
            let known = contexts.and_then(|contexts| contexts.get(&it.gpu));
            let is_gone = known.is_some_and(|pids| !pids.contains(&it.pid));
            let attribution = attributor.attribute(it.pid);
            let mut eid = attribution.eid().into_iter();
            let is_held = eid.any(|eid| state.attached(eid).contains(&it.gpu));
            (!is_gone && !is_held).then_some(it)
        }))
    })
}

/// The compute processes in the driver's answer that are proven to be in no environment that holds the GPU.
pub(crate) fn uses_by_driver(sample: &GpuSample, state: &State, processes: &mut dyn ProcessSource) -> OutsideUses {
    let mut uses: HashMap<(u32, u32), Option<u64>> = HashMap::new();
    for device in &sample.devices {
        let computing = device.processes.iter().flatten();
        for process in computing.filter(|it| computes(it.process_type)) {
            let memory = process.memory_used_bytes;
            uses.entry((device.index.gpu, process.pid))
                // The process uses several parts of the GPU.
                .and_modify(|known| *known = known.zip(memory).map(|(a, b)| a.saturating_add(b)))
                .or_insert(memory);
        }
    }
    if uses.is_empty() {
        return OutsideUses::new();
    }
    let pids = uses.keys().map(|(_, pid)| *pid).collect();
    let mut outside = with_attribution(pids, state, processes, |table, attributor| {
        let of = |((gpu, pid), memory_used_bytes)| {
            let Some(ProcessRead::Present(facts)) = table.processes.get(&pid) else {
                return None;
            };
            let lineage = table.lineage.get(&pid);
            let holds = |eid: &str| state.attached(eid).contains(&gpu);
            let user = table.user(facts).filter(|_| attributor.is_without(pid, holds))?;
            // Root may work for any user.
            (user != 0).then(|| OutsideUse {
                gpu,
                pid,
                start_time_ticks: facts.start_time_ticks,
                uid: user,
                username: String::new(),
                memory_used_bytes,
                started_timestamp_seconds: lineage.map(|it| it.start_timestamp_seconds),
            })
        };
        uses.into_iter().filter_map(of).collect::<Vec<_>>()
    });
    for it in &mut outside {
        it.username = processes.username(it.uid);
    }
    outside.sort_by_key(|it| it.pid);
    by_gpu(outside)
}

/// The uses that prevent an assignment to a user: neither the user's own, nor those of a user who holds a part of the device.
pub(crate) fn uses_of_others(
    mut uses: OutsideUses,
    user: u32,
    state: &State,
    processes: &mut dyn ProcessSource,
) -> OutsideUses {
    let own = processes.owner(user);
    uses.retain(|gpu, uses| {
        let device = state.devices.iter().find(|it| it.index == *gpu);
        let attachments = device.into_iter().flat_map(|it| &it.attachments);
        let holders: Vec<u32> = attachments
            .filter_map(|held| state.environments.iter().find(|it| it.eid == held.eid))
            .map(|it| processes.owner(it.uid))
            .collect();
        uses.retain(|it| it.uid != own && !holders.contains(&it.uid));
        !uses.is_empty()
    });
    uses
}

fn by_gpu(uses: impl IntoIterator<Item = OutsideUse>) -> OutsideUses {
    let mut all = OutsideUses::new();
    for it in uses {
        all.entry(it.gpu).or_default().push(it);
    }
    all
}

/// Reads processes, and calls a function with their attribution.
fn with_attribution<T>(
    pids: Vec<u32>,
    state: &State,
    processes: &mut dyn ProcessSource,
    read: impl FnOnce(&ProcessTable, &Attributor<'_>) -> T,
) -> T {
    let members = state.environments.iter().flat_map(EnvironmentState::pids);
    let table = processes.read(&ProcessRequest { processes: pids, members: members.collect() });
    let mut live = live_environments(state, &table);
    // A listed environment has its processes even after its last shell has ended.
    for environment in &state.environments {
        if !live.iter().any(|it| it.environment.eid == environment.eid) {
            live.push(LiveEnvironment::without_members(environment));
        }
    }
    read(&table, &Attributor::new(state, &live, true, &table))
}

#[cfg(test)]
mod tests {
    use genv_core::gpu::DeviceSample;
    use genv_core::model::{DeviceIndex, DeviceMeasurements};
    use genv_core::state::DeviceState;

    use super::*;
    use crate::device_facts::outside_uses;

    /// Processes that nobody may read.
    struct Hidden;

    impl ProcessSource for Hidden {
        fn read(&mut self, request: &ProcessRequest) -> ProcessTable {
            let hidden = |pid: &u32| (*pid, ProcessRead::Unreadable);
            ProcessTable { processes: request.processes.iter().map(hidden).collect(), ..ProcessTable::default() }
        }

        fn username(&mut self, uid: u32) -> String {
            format!("uid:{uid}")
        }
    }

    fn used(gpu: u32) -> OutsideUse {
        OutsideUse {
            gpu,
            pid: 7,
            start_time_ticks: 7,
            uid: 1000,
            username: "alice".to_owned(),
            memory_used_bytes: None,
            started_timestamp_seconds: None,
        }
    }

    #[test]
    fn a_snapshot_of_an_exporter_ends_no_use_that_the_enforcer_published_later() {
        let published = || Published { uses: vec![used(0)], exempt: Vec::new(), known: [0].into() };
        let device = DeviceSample {
            lost: false,
            measurements: DeviceMeasurements { utilization_ratio: Some(0.0), ..DeviceMeasurements::default() },
            processes: Some(Vec::new()),
            ..DeviceSample::lost(DeviceIndex::gpu(0), String::new())
        };
        let sample = GpuSample { devices: vec![device], ..GpuSample::default() };
        let uses = |is_of_exporter| {
            outside_uses(Some(published()), Some(&sample), is_of_exporter, &State::default(), &mut Hidden)
        };
        assert!(uses(true).contains_key(&0));
        // In another pid namespace no answer of the driver ends a published use.
        assert_eq!(uses(false).contains_key(&0), !in_initial_pid_namespace());
    }

    #[test]
    fn without_the_driver_only_a_device_that_the_enforcer_knows_and_no_process_uses_is_unused() {
        let device = |index| DeviceState { index, ..DeviceState::default() };
        let state = State { devices: (0..4).map(device).collect(), ..State::default() };
        let published = Published { uses: vec![used(0)], exempt: vec![used(1)], known: [0, 1, 2].into() };
        let expected = |busy: &[u32], unknown: &[u32]| DeviceUsage {
            busy: busy.iter().copied().collect(),
            unknown: unknown.iter().copied().collect(),
            ..DeviceUsage::default()
        };
        assert_eq!(usage_without_driver(Some(&published), &state), expected(&[0, 1], &[3]));
        assert_eq!(usage_without_driver(None, &state), expected(&[], &[0, 1, 2, 3]));
    }
}
