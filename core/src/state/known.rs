//! The last known facts of environments that hold devices: the record of `envs.json`, the devices, and the last time at
//! which one of its processes had a context on them.
//!
//! genv 1.x removes an environment when its members have ended, even if its jobs run, and a damaged file loses
//! environments too. `genv-members.json` keeps the facts to restore an environment.

use std::collections::{BTreeSet, HashMap, HashSet};

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::data::{KnownEnvironment, KnownEnvironments, all_attached};
use super::shape::Times;
use super::{AttachmentState, DeviceState, EnvironmentState, State, liveness};
use crate::model::{MemoryAmount, parse_local_time};
use crate::proc::ProcessTable;

/// The most known environments of one user, and of all users: every user may write the file.
const MOST_OF_A_USER: usize = 64;
const MOST_KNOWN: usize = 1_000;

/// The form in `genv-members.json`.
#[derive(Serialize, Deserialize)]
pub(super) struct FileKnown {
    eid: String,
    creation: String,
    uid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    username: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpus: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpu_memory: Option<String>,
    devices: Vec<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    context_seconds: Option<i64>,
}

impl KnownEnvironment {
    #[expect(clippy::cast_possible_truncation, reason = "clocks show less than the year 9999")]
    pub(super) fn to_file(&self, times: &Times) -> FileKnown {
        let environment = &self.environment;
        FileKnown {
            eid: environment.eid.clone(),
            creation: times.text(environment.created_timestamp_seconds),
            uid: environment.uid,
            username: environment.username.clone(),
            name: environment.name.clone(),
            gpus: environment.gpus,
            gpu_memory: environment.gpu_memory.map(|amount| amount.to_string()),
            devices: self.devices.iter().copied().collect(),
            context_seconds: self.context_seconds.map(|seconds| seconds.floor() as i64),
        }
    }

    pub(super) fn of_file(file: FileKnown, time_zone: &TimeZone) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "files end with the year 9999")]
        let seconds = |seconds: i64| seconds as f64;
        let created = parse_local_time(&file.creation, time_zone).ok();
        let memory = file.gpu_memory.and_then(|text| MemoryAmount::from_file(&text).ok());
        Self {
            environment: EnvironmentState {
                eid: file.eid,
                uid: file.uid,
                username: file.username,
                created_timestamp_seconds: created.map(seconds),
                name: file.name,
                gpus: file.gpus,
                gpu_memory: memory,
                members: Vec::new(),
                kernel_ids: Vec::new(),
            },
            devices: file.devices.into_iter().collect(),
            context_seconds: file.context_seconds.map(seconds),
        }
    }

    /// Whether these are facts of this environment, and not of an earlier one with the same id.
    pub(super) fn is_of(&self, environment: &EnvironmentState) -> bool {
        let whole = |it: &EnvironmentState| it.created_timestamp_seconds.map(f64::floor);
        self.environment.uid == environment.uid && whole(&self.environment) == whole(environment)
    }
}

/// The known environments after a change: those that hold devices, and those that may still be restored. The latter are
/// in `before` and not in `changed`, so that the change did not end them.
pub(super) fn after(
    environments: &[EnvironmentState],
    devices: &[DeviceState],
    changed: &[EnvironmentState],
    before: &KnownEnvironments,
) -> KnownEnvironments {
    let held = all_attached(devices);
    let holding = environments.iter().filter_map(|environment| {
        let devices = held.get(environment.eid.as_str())?;
        let known = before.get(&environment.eid);
        let known = known.filter(|known| known.is_of(environment));
        Some(KnownEnvironment {
            environment: EnvironmentState { members: Vec::new(), kernel_ids: Vec::new(), ..environment.clone() },
            devices: devices.iter().copied().collect(),
            context_seconds: known.and_then(|known| known.context_seconds),
        })
    });
    let listed: HashSet<&str> = environments.iter().chain(changed).map(|it| it.eid.as_str()).collect();
    let missing = before.iter().filter(|(eid, _)| !listed.contains(eid.as_str())).map(|(_, known)| known.clone());
    let mut of_users: HashMap<u32, usize> = HashMap::new();
    let is_few = |known: &KnownEnvironment| {
        let number = of_users.entry(known.environment.uid).or_default();
        *number += 1;
        *number <= MOST_OF_A_USER
    };
    holding.chain(missing).filter(is_few).take(MOST_KNOWN).map(|known| (known.environment.eid.clone(), known)).collect()
}

/// Records that a process of an environment has a context on its devices now.
pub(super) fn note_context(known: &mut KnownEnvironments, environment: &EnvironmentState, now_seconds: f64) {
    let of_it = known.get_mut(&environment.eid);
    if let Some(known) = of_it.filter(|known| known.is_of(environment)) {
        known.context_seconds = Some(now_seconds);
        return;
    }
    let new = KnownEnvironment {
        environment: environment.clone(),
        devices: BTreeSet::new(),
        context_seconds: Some(now_seconds),
    };
    known.insert(environment.eid.clone(), new);
}

/// Known environments that are no longer listed, or are listed without a living member and without a device: genv 1.x
/// cleared them when their members ended, or a damaged file lost them. Each has those of its devices that are free or
/// still attached to it. Environments with a lost member are left out.
pub(super) fn cleared(state: &State, table: &ProcessTable) -> Vec<(EnvironmentState, Vec<u32>)> {
    if state.recorded.known.is_empty() {
        return Vec::new();
    }
    let listed: HashMap<&str, &EnvironmentState> = state.environments.iter().map(|it| (it.eid.as_str(), it)).collect();
    let attachments = state.devices.iter().flat_map(|device| &device.attachments);
    let attached: HashSet<&str> = attachments.map(|it| it.eid.as_str()).collect();
    let lost = state.recorded.lost.iter().map(|it| it.eid.as_str());
    let lost: HashSet<&str> = lost.collect();
    let written = state.written_timestamp_seconds;
    let was_cleared = |known: &&KnownEnvironment| {
        let eid = known.environment.eid.as_str();
        !lost.contains(eid)
            && listed.get(eid).is_none_or(|listed| {
                !attached.contains(eid)
                    && known.is_of(listed)
                    && listed.kernel_ids.is_empty()
                    && !liveness::has_shell(listed, table, written)
            })
    };
    let with_devices = |known: &KnownEnvironment| {
        let eid = &known.environment.eid;
        let devices = state.devices.iter().filter(|it| {
            let mut attachments = it.attachments.iter();
            it.attachments.is_empty() && known.devices.contains(&it.index)
                || attachments.any(|attachment| attachment.eid == *eid)
        });
        let devices = devices.map(|it| it.index);
        (known.environment.clone(), devices.collect())
    };
    let known = state.recorded.known.values();
    known.filter(was_cleared).map(with_devices).collect()
}

/// Restores a cleared environment, attached to the free ones of these devices.
pub(super) fn put_back(state: &mut State, environment: EnvironmentState, devices: &[u32], now_seconds: f64) {
    let free = state.devices.iter_mut().filter(|it| devices.contains(&it.index) && it.attachments.is_empty());
    for device in free {
        device.attachments.push(AttachmentState {
            eid: environment.eid.clone(),
            gpu_memory: environment.gpu_memory,
            attached_timestamp_seconds: Some(now_seconds),
        });
    }
    if state.environments.iter().all(|it| it.eid != environment.eid) {
        state.environments.push(environment);
    }
}
