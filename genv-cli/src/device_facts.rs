//! Facts from one answer of the driver: contexts, models, the use of devices, and the processes of an environment.

use std::collections::{BTreeMap, BTreeSet};

use genv_core::attribute::{Attributor, LiveEnvironment, live_environments};
use genv_core::collect::seems_unused;
use genv_core::gpu::GpuSample;
use genv_core::model::Attribution;
use genv_core::proc::{Claim, ProcessRead, ProcessRequest, ProcessSource};
use genv_core::state::allocate::DeviceUsage;
use genv_core::state::{Contexts, EnvironmentState, ProcessId, State};

use crate::outside::{self, OutsideUses, Published};

/// A process of an environment, or of its user, that works on the environment's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceProcess {
    pub(crate) id: ProcessId,
    /// Whether the process hides its environment, for example by overwriting its variables.
    pub(crate) hides_environment: bool,
    pub(crate) comm: String,
    pub(crate) devices: Vec<u32>,
}

/// The processes of an environment with a context on a device that the environment holds, and processes of its user that may
/// be such processes.
pub(crate) fn processes_of_environment(
    contexts: &Contexts,
    state: &State,
    eid: &str,
    processes: &mut dyn ProcessSource,
) -> Vec<DeviceProcess> {
    let held = state.attached(eid);
    let rows = held.iter().flat_map(|device| {
        let pids = contexts.get(device).into_iter().flatten();
        pids.map(|pid| (*pid, *device))
    });
    let mut devices_by_pid: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (pid, device) in rows {
        devices_by_pid.entry(pid).or_default().insert(device);
    }
    let members = state.environments.iter().flat_map(EnvironmentState::pids);
    let table = processes
        .read(&ProcessRequest { processes: devices_by_pid.keys().copied().collect(), members: members.collect() });
    let mut live = live_environments(state, &table);
    // A listed environment has its processes even after its last shell has ended.
    if !live.iter().any(|live| live.environment.eid == eid) {
        let mut environments = state.environments.iter();
        let listed = environments.find(|it| it.eid == eid);
        live.extend(listed.map(LiveEnvironment::without_members));
    }
    let attributor = Attributor::new(state, &live, true, &table);
    let environment = state.environments.iter().find(|it| it.eid == eid);
    let user = environment.map(|it| table.owner(it.uid));
    let describe = |(pid, devices): (u32, BTreeSet<u32>)| {
        let Some(ProcessRead::Present(facts)) = table.processes.get(&pid) else {
            return None;
        };
        let start_time_ticks = facts.start_time_ticks;
        let attribution = attributor.attribute(pid);
        let is_own = attribution.eid() == Some(eid);
        let hides_environment = matches!(attribution, Attribution::Unknown { .. })
            && matches!(facts.claim, Claim::Missing(_))
            && table.user(facts) == user;
        (is_own || hides_environment).then(|| DeviceProcess {
            hides_environment,
            id: ProcessId { pid, start_time_ticks },
            comm: facts.comm.clone(),
            devices: devices.into_iter().collect(),
        })
    };
    devices_by_pid.into_iter().filter_map(describe).collect()
}

/// The processes with a context on each GPU whose processes are all known.
pub(crate) fn contexts(sample: &GpuSample) -> Contexts {
    let mut contexts = Contexts::new();
    for device in &sample.devices {
        let pids = device.processes.iter().flatten().map(|process| process.pid);
        contexts.entry(device.index.gpu).or_default().extend(pids);
    }
    // The contexts of a GPU are unknown if those of one of its parts are unknown, or if no other value confirms an empty list
    // of processes.
    let is_unused = |gpu| contexts.get(&gpu).is_none_or(BTreeSet::is_empty);
    let unknown = sample
        .devices
        .iter()
        .filter(|it| it.lost || !it.processes_known() || is_unused(it.index.gpu) && !seems_unused(&it.measurements));
    let unknown: BTreeSet<u32> = unknown.map(|it| it.index.gpu).collect();
    contexts.retain(|gpu, _| !unknown.contains(gpu));
    contexts
}

fn models(sample: &GpuSample) -> BTreeMap<u32, String> {
    let whole = sample.devices.iter().filter(|it| it.index.mig.is_none());
    let named = whole.filter_map(|it| Some((it.index.gpu, it.name.clone()?)));
    named.collect()
}

/// The uses by a recent file of the enforcer, if there is one, and by a sample of the GPUs. One of an exporter, which may be
/// older than the file, shows no use as ended.
pub(crate) fn outside_uses(
    published: Option<Published>,
    sample: Option<&GpuSample>,
    is_of_exporter: bool,
    state: &State,
    processes: &mut dyn ProcessSource,
) -> OutsideUses {
    match (published, sample) {
        (Some(published), sample) => {
            let contexts = sample.filter(|_| !is_of_exporter).map(contexts);
            outside::current_uses(published, sample, contexts.as_ref(), state, processes)
        }
        (None, Some(sample)) => outside::uses_by_driver(sample, state, processes),
        (None, None) => OutsideUses::new(),
    }
}

/// The use of the devices for an environment.
pub(crate) fn usage(sample: &GpuSample, state: &State, eid: &str, processes: &mut dyn ProcessSource) -> DeviceUsage {
    let rows = sample.devices.iter().flat_map(|device| {
        let pids = device.processes.iter().flatten();
        pids.map(|process| (device.index.gpu, process.pid))
    });
    let rows: Vec<(u32, u32)> = rows.collect();
    let answering: BTreeSet<u32> =
        sample.devices.iter().filter(|device| !device.lost).map(|device| device.index.gpu).collect();
    // A device in the state that the driver does not list is lost.
    let listed = state.devices.iter().map(|device| device.index);
    let found = sample.devices.iter().map(|device| device.index.gpu);
    let lost = listed.chain(found.clone()).filter(|it| !answering.contains(it));
    let known = contexts(sample);
    let mig_unsplit = sample.devices.iter().filter(|device| device.mig_unsplit);
    let mut usage = DeviceUsage {
        busy: rows.iter().map(|(gpu, _)| *gpu).collect(),
        unknown: found.filter(|gpu| !known.contains_key(gpu)).collect(),
        lost: lost.collect(),
        mig_unsplit: mig_unsplit.map(|device| device.index.gpu).collect(),
        models: models(sample),
        ..DeviceUsage::default()
    };
    let attached = !state.attached(eid).is_empty();
    if attached && !rows.is_empty() {
        let members = state.environments.iter().flat_map(EnvironmentState::pids);
        let table = processes.read(&ProcessRequest {
            processes: rows.iter().map(|(_, pid)| *pid).collect(),
            members: members.collect(),
        });
        let live = live_environments(state, &table);
        let attributor = Attributor::new(state, &live, true, &table);
        let own = |pid: u32| attributor.attribute(pid).eid() == Some(eid);
        let own = rows.iter().filter(|(_, pid)| own(*pid));
        usage.own = own.map(|(gpu, _)| *gpu).collect();
    }
    usage
}

#[cfg(test)]
mod tests;
