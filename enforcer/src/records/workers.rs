//! Processes that work in an environment. A shell ends at logout while its jobs go on. As long as a job lives and
//! works, the record of the environment counts as it did while the shell lived.

use std::collections::BTreeMap;

use genv_core::model::{ConfirmedChange, DeviceIndex, Process};
use genv_core::proc::INITIAL_PID_NAMESPACE;
use genv_core::state::{linger_seconds, lingers};

use super::judgement::Judgement;
use super::known::Known;
use super::places::of;

/// The limit of remembered workers of one environment.
const MAX_WORKERS: usize = 256;

/// A later context is saved after this part of the linger time.
const PART_OF_LINGER: f64 = 0.125;

impl Judgement<'_, '_> {
    /// Whether a worker of an environment lives, and the environment would go on without a shell: the worker has a
    /// context on one of its devices, or one of its processes had one within the linger time.
    pub(super) fn works(&mut self, eid: &str) -> bool {
        let Some(known) = self.known.get(eid) else {
            return false;
        };
        let uid = known.uid;
        let processes = self.snapshot.processes.iter();
        let at_work = processes.filter(|it| is_on_device_of(it, known));
        let at_work = at_work.filter_map(|it| of(it)).filter(|it| known.workers.contains_key(it));
        let at_work: Vec<(u32, u64)> = at_work.collect();
        if at_work.into_iter().any(|it| self.lives(it, uid)) {
            return true;
        }
        let context_seconds = self.known[eid].context_seconds;
        let now_seconds = self.snapshot.timestamp_seconds;
        if !lingers(context_seconds, now_seconds, linger_seconds()) {
            return false;
        }
        self.remember_joined(eid, uid);
        self.has_worker(eid, uid)
    }

    /// Whether a worker of an environment lives, whether it works or not.
    pub(super) fn has_worker(&mut self, eid: &str, uid: Option<u32>) -> bool {
        let known = self.known.get(eid);
        let workers: Vec<(u32, u64)> = known.into_iter().flat_map(|it| it.workers.keys().copied()).collect();
        workers.into_iter().any(|it| self.lives(it, uid))
    }

    /// Remembers processes that commands of its user recorded, such as a job without a context between two runs.
    fn remember_joined(&mut self, eid: &str, uid: Option<u32>) {
        let Some(uid) = uid else {
            return;
        };
        let confirmed = self.confirmed_by(uid).iter().filter(|it| it.eid == eid);
        let joined = confirmed.filter_map(|it| {
            let ConfirmedChange::Joined { pid } = it.change else {
                return None;
            };
            let process = it.process?;
            let is_of_machine = process.pid_namespace == INITIAL_PID_NAMESPACE;
            is_of_machine.then_some(((pid, process.start_time_ticks), it.at_seconds))
        });
        let joined: BTreeMap<(u32, u64), f64> = joined.collect();
        for (it, at_seconds) in joined {
            if !self.known[eid].workers.contains_key(&it)
                && self.lives(it, Some(uid))
                && let Some(known) = self.known.get_mut(eid)
            {
                self.judged.changed |= remember(known, it, at_seconds);
            }
        }
    }

    /// Remembers the processes that the files show in environments of their users, and the last time that one of them
    /// had a context on a device of its environment. Forgets ended processes.
    pub(super) fn remember_workers(&mut self) {
        // No evidence shows whether processes of another host live.
        if self.witness.is_none() {
            return;
        }
        let snapshot = self.snapshot;
        for (position, process) in snapshot.processes.iter().enumerate() {
            let moved = self.moved.get(&position);
            let eid = moved.unwrap_or(&process.attribution).eid();
            let known = eid.and_then(|eid| self.known.get_mut(eid));
            let known = known.filter(|it| it.uid.is_some() && it.uid == process.uid);
            let (Some(known), Some(of)) = (known, of(process)) else {
                continue;
            };
            if moved.is_none() {
                self.judged.changed |= remember(known, of, self.read_seconds);
            }
            if is_on_device_of(process, known) {
                self.judged.changed |= note_context(known, snapshot.timestamp_seconds);
            }
        }
        let is_measured = |gpu: u32| {
            let mut devices = snapshot.devices.iter();
            devices.any(|it| it.index == DeviceIndex::gpu(gpu) && it.processes_measured)
        };
        let mut unseen = Vec::new();
        for (eid, known) in self.known.iter_mut() {
            if known.workers.is_empty() {
                continue;
            }
            // The processes with a context on such a device are not known: the environment may have one.
            if !known.devices.gpus().all(is_measured) {
                self.judged.changed |= note_context(known, snapshot.timestamp_seconds);
            }
            let is_unseen = |(_, seen): &(&(u32, u64), &f64)| **seen != self.read_seconds;
            let of_it = known.workers.iter().filter(is_unseen);
            unseen.extend(of_it.map(|(it, _)| (eid.clone(), known.uid, *it)));
        }
        for (eid, uid, it) in unseen {
            if !self.lives(it, uid)
                && let Some(known) = self.known.get_mut(&eid)
            {
                known.workers.remove(&it);
                self.judged.changed = true;
            }
        }
    }
}

fn is_on_device_of(process: &Process, known: &Known) -> bool {
    let mut devices = process.devices.iter();
    devices.any(|it| known.devices.contains(it.index.gpu))
}

/// Whether there is a change to save.
fn remember(known: &mut Known, of: (u32, u64), seen_seconds: f64) -> bool {
    if !known.workers.contains_key(&of) && known.workers.len() >= MAX_WORKERS {
        return false;
    }
    known.workers.insert(of, seen_seconds).is_none()
}

/// Whether there is a change to save.
fn note_context(known: &mut Known, now_seconds: f64) -> bool {
    let noted = known.noted_context_seconds;
    known.context_seconds = Some(now_seconds);
    let is_old = !lingers(noted, now_seconds, linger_seconds() * PART_OF_LINGER);
    if is_old {
        known.noted_context_seconds = Some(now_seconds);
    }
    is_old
}
