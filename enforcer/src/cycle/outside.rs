//! Use of devices by processes whose environment does not hold them. Users' commands do not assign such a device.

use std::cell::LazyCell;
use std::collections::BTreeSet;

use genv_core::model::{Attribution, Device, HostSnapshot, Process, Snapshot};
use genv_core::outside::{OutsideUse, computes};

use super::Cycle;
use crate::config::Never;
use crate::execute::ProtectedPrograms;

impl Cycle {
    /// The uses of this machine's devices by processes whose environment does not hold them, from the files that commands read.
    /// Absent while a source fails.
    pub(super) fn outside(&self, hosts: &[HostSnapshot], never: &Never) -> Option<OutsideUses> {
        let here = hosts.iter().find(|host| host.hostname == self.hostname)?;
        let snapshot = here.snapshot.as_ref().filter(|_| here.up)?;
        let mut sources = snapshot.collectors.values();
        let is_whole = sources.all(|it| it.success && it.current);
        (is_whole && !snapshot.simulated).then(|| uses(snapshot, never))
    }
}

/// Uses that count, and uses by root and by processes exempt by `never`, which do not count.
#[derive(Debug, Default)]
pub(super) struct OutsideUses {
    pub(super) counted: Vec<OutsideUse>,
    pub(super) exempt: Vec<OutsideUse>,
    /// The GPUs that answer, can run programs, and have no other process than these.
    pub(super) known: Vec<u32>,
}

fn uses(snapshot: &Snapshot, never: &Never) -> OutsideUses {
    let programs = LazyCell::new(|| ProtectedPrograms::of(never));
    let is_exempt = |it: &OutsideUse| {
        // Root may work for any user.
        it.uid == 0
            || never.users.contains(&it.username)
            || never.users.contains(&format!("uid:{}", it.uid))
            || programs.exemption(it.pid).is_some()
    };
    let mut all = OutsideUses::default();
    // The GPUs with a process that no use names: in an environment that holds the GPU, without a known user or
    // environment, or with graphics alone.
    let mut unnamed = BTreeSet::new();
    for process in &snapshot.processes {
        let uses = uses_of(process, snapshot);
        let gpus = process.devices.iter().map(|it| it.index.gpu);
        unnamed.extend(gpus.filter(|gpu| !uses.iter().any(|it| it.gpu == *gpu)));
        // The check of the program is the slowest part: once per process.
        match uses.first() {
            Some(first) if is_exempt(first) => all.exempt.extend(uses),
            _ => all.counted.extend(uses),
        }
    }
    let is_known = |it: &Device| {
        let gpu = it.index.gpu;
        snapshot.sees_all_processes && it.up && !it.mig_unsplit && snapshot.use_measured(gpu) && !unnamed.contains(&gpu)
    };
    let whole = snapshot.devices.iter().filter(|it| it.index.mig.is_none());
    all.known = whole.filter(|it| is_known(it)).map(|it| it.index.gpu).collect();
    all
}

/// The uses of GPUs on which a process computes and which its environment does not hold.
fn uses_of(process: &Process, snapshot: &Snapshot) -> Vec<OutsideUse> {
    let (Some(uid), Some(username), Some(start_time_ticks)) =
        (process.uid, &process.username, process.start_time_ticks)
    else {
        return Vec::new();
    };
    let held = match &process.attribution {
        Attribution::Outside { .. } => &[][..],
        Attribution::Environment { eid } => match snapshot.environment(eid) {
            Some(environment) => &environment.devices,
            None => return Vec::new(),
        },
        Attribution::Unknown { .. } => return Vec::new(),
    };
    let is_held = |gpu: u32| {
        let mut held = held.iter();
        held.any(|device| device.attached && device.index.gpu == gpu)
    };
    let mut uses: Vec<OutsideUse> = Vec::new();
    for device in process.devices.iter().filter(|it| computes(it.process_type) && !is_held(it.index.gpu)) {
        let gpu = device.index.gpu;
        match uses.iter_mut().find(|it| it.gpu == gpu) {
            // The process uses several parts of the GPU.
            Some(known) => {
                let both = known.memory_used_bytes.zip(device.memory_used_bytes.get());
                known.memory_used_bytes = both.map(|(a, b)| a.saturating_add(b));
            }
            None => uses.push(OutsideUse {
                gpu,
                pid: process.pid,
                start_time_ticks,
                uid,
                username: username.clone(),
                memory_used_bytes: device.memory_used_bytes.get(),
                started_timestamp_seconds: None,
            }),
        }
    }
    uses
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use genv_core::model::{DeviceIndex, ProcessDevice, ProcessType};

    use super::*;
    use crate::plan::tests::lab::Lab;

    /// A process with 1 GiB on each of these devices.
    fn process(pid: u32, uid: u32, state: &str, devices: &[(u32, u8, ProcessType)]) -> Arc<Process> {
        let reason = String::new();
        let devices = devices.iter().map(|&(gpu, part, process_type)| ProcessDevice {
            index: DeviceIndex::mig(gpu, part),
            process_type,
            memory_used_bytes: Some(1 << 30).into(),
            utilization_ratio: None.into(),
        });
        Arc::new(Process {
            pid,
            start_time_ticks: Some(7),
            uid: Some(uid),
            username: Some(format!("user{uid}")),
            comm: None,
            container_id: None,
            attribution: match state {
                "outside" => Attribution::Outside { reason },
                "unknown" => Attribution::Unknown { reason },
                eid => Attribution::Environment { eid: eid.to_owned() },
            },
            devices: devices.collect(),
        })
    }

    #[test]
    fn published_uses_are_computations_on_unheld_devices_and_those_of_root_and_exempt_users_do_not_count() {
        use ProcessType::{Compute, ComputeAndGraphics, Graphics};
        let mut lab = Lab::new(1, 4).holder("e1", "user2000", &[(3, 60.0)]);
        lab.eid("gpu01", "e1").uid = None;
        // No process of this machine has these pids.
        let snapshot = Snapshot {
            processes: vec![
                process(u32::MAX, 2000, "outside", &[(0, 0, Compute), (0, 1, Compute), (1, 0, Graphics)]),
                process(u32::MAX - 1, 2000, "outside", &[(2, 0, ComputeAndGraphics)]),
                process(u32::MAX - 2, 2000, "unknown", &[(3, 0, Compute)]),
                process(u32::MAX - 3, 2000, "e1", &[(3, 0, Compute), (4, 0, Compute)]),
                process(u32::MAX - 4, 0, "outside", &[(3, 0, Compute)]),
                process(u32::MAX - 5, 2001, "outside", &[(3, 0, Compute)]),
                process(u32::MAX - 6, 2002, "outside", &[(3, 0, Compute)]),
            ],
            environments: lab.hosts.remove(0).environments,
            ..Snapshot::default()
        };
        let never = Never { users: ["user2001", "uid:2002"].map(str::to_owned).into(), ..Never::default() };
        let found = uses(&snapshot, &never);
        let exempt: Vec<u32> = found.exempt.iter().map(|it| it.pid).collect();
        assert_eq!(exempt, [u32::MAX - 4, u32::MAX - 5, u32::MAX - 6]);
        let found = found.counted.iter().map(|it| (it.gpu, it.pid, it.memory_used_bytes));
        assert_eq!(
            found.collect::<Vec<_>>(),
            [(0, u32::MAX, Some(2 << 30)), (2, u32::MAX - 1, Some(1 << 30)), (4, u32::MAX - 3, Some(1 << 30))]
        );
    }

    #[test]
    fn only_a_gpu_whose_processes_are_all_named_is_known() {
        let never = Never { users: ["user2001".to_owned()].into(), ..Never::default() };
        let lab = || Lab::new(1, 1).holder("e1", "user2000", &[(0, 60.0)]).hosts.remove(0);
        let known = |snapshot: &Snapshot| uses(snapshot, &never).known == [0];
        assert!(known(&lab()));
        let without_user = Process { uid: None, ..Process::clone(&process(u32::MAX, 2000, "outside", &[])) };
        let on = |process_type| vec![(0, 0, process_type)];
        for (uid, state, process_type, is_known) in [
            (2000, "outside", ProcessType::Compute, true),
            (2001, "outside", ProcessType::Compute, true),
            (0, "outside", ProcessType::Compute, true),
            (2000, "unknown", ProcessType::Compute, false),
            (2000, "e1", ProcessType::Compute, false),
            (0, "outside", ProcessType::Graphics, false),
        ] {
            let processes = vec![process(u32::MAX, uid, state, &on(process_type))];
            assert_eq!(known(&Snapshot { processes, ..lab() }), is_known, "{uid} {state} {process_type:?}");
        }
        let devices = process(u32::MAX, 2000, "outside", &on(ProcessType::Compute)).devices.clone();
        let processes = vec![Arc::new(Process { devices, ..without_user })];
        assert!(!known(&Snapshot { processes, ..lab() }));
        let changes: [fn(&mut Device); 4] = [
            |it| it.up = false,
            |it| it.mig_unsplit = true,
            |it| it.processes_measured = false,
            |it| it.use_unexplained = true,
        ];
        for change in changes {
            let mut snapshot = lab();
            change(&mut snapshot.devices[0]);
            assert!(!known(&snapshot));
        }
        assert!(!known(&Snapshot { sees_all_processes: false, ..lab() }));
    }
}
