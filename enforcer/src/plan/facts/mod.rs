//! The input, indexed once for all rules: hosts that tell something new or old, users, environments, attachments, and
//! which process of whom uses which GPU.

mod gather;
mod utilization;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use foldhash::HashMap;
use genv_core::model::{Device, DeviceIndex, Environment, Process, Snapshot};

use super::freshness::HostFreshness;
use super::unknown::UnknownUses;
use crate::config::HostSet;

/// Positions in the lists of [`Facts`].
pub(crate) type HostId = usize;
pub(crate) type UserId = usize;
pub(crate) type EnvironmentId = usize;
pub(crate) type AttachmentId = usize;
pub(crate) type ProcessId = usize;

/// See the module.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) hosts: Vec<HostFacts<'a>>,
    pub(crate) users: Vec<UserFacts<'a>>,
    pub(crate) environments: Vec<EnvironmentFacts<'a>>,
    pub(crate) attachments: Vec<AttachmentFacts>,
    pub(crate) processes: Vec<ProcessFacts<'a>>,
    /// Each GPU that a process uses, by process.
    pub(crate) uses: Vec<UseFacts>,
    /// Sorted by user and host.
    pub(crate) environments_by_user: Vec<EnvironmentId>,
    /// Sorted by user, host and GPU.
    pub(crate) attachments_by_user: Vec<AttachmentId>,
    /// Positions in `uses`, sorted by user, host and GPU; only of processes of which the user is known.
    pub(crate) uses_by_user: Vec<usize>,
    /// Positions in `uses` of processes in an environment, sorted by it and GPU.
    pub(crate) uses_by_environment: Vec<usize>,
    /// Of these, the uses of GPUs to which the environment is not attached.
    pub(crate) unattached_uses: Vec<usize>,
    /// Attachments whose use is hidden by a process of their user of unknown attribution; sorted by user, host and GPU.
    pub(crate) hidden_attachments: Vec<AttachmentId>,
    /// The longest of all hosts' gaps.
    longest_gap_seconds: f64,
    /// Users whom the configuration names by their uids as out of reach.
    never_uids: BTreeSet<u32>,
    user_ids: HashMap<&'a str, UserId>,
    /// By group; empty until a group is asked for.
    user_ids_by_group: OnceCell<HashMap<String, Vec<UserId>>>,
    /// Empty until an alias is asked for.
    user_ids_by_alias: OnceCell<HashMap<String, Vec<UserId>>>,
    host_ids: HashMap<&'a str, HostId>,
    environment_ids: HashMap<(HostId, &'a str), EnvironmentId>,
}

#[derive(Debug)]
pub(crate) struct HostFacts<'a> {
    pub(crate) hostname: &'a str,
    /// Absent where it may not be looked at.
    pub(crate) snapshot: Option<&'a Snapshot>,
    pub(crate) freshness: HostFreshness,
    pub(crate) environments: Range<EnvironmentId>,
    pub(crate) processes: Range<ProcessId>,
    /// By GPU that they use, processes of which it is not known where they belong.
    pub(in crate::plan) unknown_uses: BTreeMap<u32, UnknownUses<'a>>,
    /// How many such processes there are, by user.
    pub(crate) unknown_by_user: BTreeMap<&'a str, u64>,
    /// By pid; empty until a process is asked for.
    process_ids: OnceCell<HashMap<u32, ProcessId>>,
}

impl HostFacts<'_> {
    /// A GPU by its index.
    pub(crate) fn device(&self, gpu: u32) -> Option<&Device> {
        let is_it = |device: &&Device| device.index == DeviceIndex::gpu(gpu);
        let devices = &self.snapshot?.devices;
        // The indices mostly are the positions.
        let at_position = devices.get(gpu as usize).filter(is_it);
        at_position.or_else(|| devices.iter().find(is_it))
    }

    /// What a GPU tells of its own utilization; 0 if it tells none.
    fn utilization_of(&self, gpu: u32) -> f64 {
        let device = self.device(gpu);
        let ratio = device.and_then(|device| device.measurements.utilization_ratio);
        ratio.filter(|ratio| ratio.is_finite()).unwrap_or_default()
    }

    /// The UUID of a GPU, if the GPU reports one.
    pub(crate) fn uuid_of(&self, gpu: u32) -> Option<&str> {
        let uuid = self.device(gpu)?.uuid.as_str();
        Some(uuid).filter(|uuid| !uuid.is_empty())
    }

    /// Whether the state is damaged or lacks records, so that what is not there may exist all the same.
    pub(crate) fn state_is_damaged(&self) -> bool {
        self.state_error().is_some()
    }

    /// Whether an entry of `devices.json`, the file of genv 1.x, was left out that may say who holds a GPU.
    pub(crate) fn holders_are_damaged(&self, gpu: u32) -> bool {
        let entries = self.state_error().unwrap_or_default().split("; ");
        let mut entries = entries.filter_map(|entry| entry.strip_prefix("devices.json: "));
        // One of which the index is whole is named by it.
        let of_gpu = format!("device {gpu}: ");
        entries.any(|entry| entry.starts_with(&of_gpu) || !entry.starts_with("device "))
    }

    fn state_error(&self) -> Option<&str> {
        let status = self.snapshot?.collectors.get("state")?;
        status.error.as_deref()
    }

    /// Whether a process of which it is not known where it belongs may be of this user and uses the GPU.
    pub(crate) fn hides_use_of(&self, username: &str, gpu: u32) -> bool {
        let unknown = self.unknown_uses.get(&gpu);
        unknown.is_some_and(|unknown| unknown.may_be_of(username))
    }

    /// Whether a process of this user uses the GPU of which it is not known where it belongs.
    pub(crate) fn is_hidden_by(&self, username: &str, gpu: u32) -> bool {
        let unknown = self.unknown_uses.get(&gpu);
        unknown.is_some_and(|unknown| unknown.are_of(username))
    }

    /// Whether all processes on all GPUs are known.
    pub(crate) fn measures_all_processes(&self) -> bool {
        let devices = self.snapshot.map_or(&[][..], |it| &it.devices);
        let mut wholes = devices.iter().filter(|it| it.index.mig.is_none());
        wholes.all(|device| self.measures_processes(device.index.gpu))
    }

    /// Whether all processes on a GPU are known, and explain the readings of the GPU itself.
    pub(crate) fn measures_processes(&self, gpu: u32) -> bool {
        self.snapshot.is_some_and(|it| it.use_measured(gpu))
    }

    /// Whether the use of a GPU by processes is known: it is measured, or the GPU is known to be unused.
    pub(crate) fn knows_use(&self, gpu: u32) -> bool {
        self.measures_processes(gpu) || self.device(gpu).is_some_and(|device| device.measurement_stuck)
    }
}

#[derive(Debug)]
pub(crate) struct UserFacts<'a> {
    pub(crate) name: &'a str,
    pub(crate) uid: Option<u32>,
    /// `uid:1234`, as which configurations may know a user who has a name.
    alias: Option<String>,
    /// Absent if they could not be told: the user may be in any.
    pub(crate) groups: Option<&'a BTreeSet<String>>,
    /// Out of reach of every rule.
    pub(crate) never: bool,
}

impl UserFacts<'_> {
    /// The name, and what else the user is called.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name).chain(self.alias.as_deref())
    }

    pub(crate) fn is_in(&self, names: &BTreeSet<String>) -> bool {
        self.names().any(|name| names.contains(name))
    }
}

#[derive(Debug)]
pub(crate) struct EnvironmentFacts<'a> {
    pub(crate) environment: &'a Environment,
    pub(crate) host: HostId,
    pub(crate) user: UserId,
    /// Unix time by the clock of its host.
    pub(crate) created_seconds: Option<f64>,
    /// The end of its lease, Unix time by the clock of its host.
    pub(crate) lease_end_seconds: Option<f64>,
    pub(crate) attachments: Range<AttachmentId>,
    /// Whether the environment attached an index while another GPU was there. The environment's GPUs are not known
    /// then.
    pub(crate) moved: bool,
    /// In [`Facts::uses_by_environment`].
    pub(crate) uses: Range<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AttachmentFacts {
    pub(crate) environment: EnvironmentId,
    pub(crate) host: HostId,
    pub(crate) user: UserId,
    pub(crate) gpu: u32,
    /// What it claims; absent: the whole device.
    pub(crate) memory_bytes: Option<u64>,
    /// Unix time, in whole seconds as the state has it.
    pub(crate) attached_seconds: Option<i64>,
    /// The time of its detach, Unix time; absent where a state that was read afterwards shows the attachment again.
    pub(crate) detached_seconds: Option<f64>,
    /// Whether nothing shows that its user made the attachment.
    pub(crate) unconfirmed: bool,
    /// Utilization by the processes of its environment, as a part of the time that others left of the GPU. Absent if it was
    /// not measured for all of them.
    pub(crate) utilization_ratio: Option<f64>,
}

#[derive(Debug)]
pub(crate) struct ProcessFacts<'a> {
    pub(crate) process: &'a Process,
    pub(crate) host: HostId,
    /// For whom it runs; absent if that, or where it belongs, is unknown.
    pub(crate) user: Option<UserId>,
    /// Whose it is although nobody knows where it belongs; absent where `user` is there, and where it may be anybody's.
    pub(crate) unknown_owner: Option<UserId>,
    pub(crate) environment: Option<EnvironmentId>,
    pub(crate) uses: Range<usize>,
    /// It can be named without a doubt, and no rule is forbidden to end it.
    pub(crate) within_reach: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct UseFacts {
    pub(crate) process: ProcessId,
    pub(crate) host: HostId,
    /// For whom the process runs; absent as in [`ProcessFacts`].
    pub(crate) user: Option<UserId>,
    pub(crate) gpu: u32,
    /// What was measured of it, on all MIG devices of the GPU.
    pub(crate) memory_bytes: u64,
    /// Whether one of its uses [shows use](genv_core::model::ProcessDevice::shows_use).
    pub(crate) shows_use: bool,
    /// Whether the driver told the memory on all of them.
    pub(crate) memory_is_measured: bool,
    /// Absent if it was not measured on any of them.
    pub(crate) utilization_ratio: Option<f64>,
    /// Utilization by processes of other users on the GPU: what was measured of them, or what the device itself tells beyond
    /// the processes of this user, if that is more, for drivers tell nothing of shares below a percent.
    pub(crate) others_ratio: f64,
}

impl<'a> Facts<'a> {
    /// A host by its name.
    pub(crate) fn host(&self, hostname: &str) -> Option<HostId> {
        self.host_ids.get(hostname).copied()
    }

    /// Whether each host is in a set.
    pub(crate) fn are_in(&self, set: &HostSet) -> Vec<bool> {
        // A search in a set of names takes longer than one for a host, but the set may have many more names.
        let is_distinct = self.host_ids.len() == self.hosts.len();
        if is_distinct && set.0.len() < self.hosts.len() {
            let mut are_in = vec![false; self.hosts.len()];
            let ids = set.0.iter().filter_map(|name| self.host(name));
            ids.for_each(|id| are_in[id] = true);
            return are_in;
        }
        let hosts = self.hosts.iter();
        hosts.map(|host| set.0.contains(host.hostname)).collect()
    }

    /// A user by name.
    pub(crate) fn user(&self, username: &str) -> Option<UserId> {
        self.user_ids.get(username).copied()
    }

    /// The users who are known to be members of a group.
    pub(crate) fn members(&self, group: &str) -> &[UserId] {
        let by_group = self.user_ids_by_group.get_or_init(|| {
            let users = self.users.iter().enumerate();
            let groups =
                users.flat_map(|(id, user)| user.groups.into_iter().flatten().map(move |group| (&**group, id)));
            by_name(groups)
        });
        by_group.get(group).map_or(&[], Vec::as_slice)
    }

    /// The users with an alias such as `uid:1234`; several may share a uid.
    pub(crate) fn with_alias(&self, alias: &str) -> &[UserId] {
        let by_alias = self.user_ids_by_alias.get_or_init(|| {
            let users = self.users.iter().enumerate();
            by_name(users.filter_map(|(id, user)| Some((user.alias.as_deref()?, id))))
        });
        by_alias.get(alias).map_or(&[], Vec::as_slice)
    }

    /// An environment of a host.
    pub(crate) fn environment(&self, hostname: &str, eid: &str) -> Option<EnvironmentId> {
        let host = self.host(hostname)?;
        self.environment_ids.get(&(host, eid)).copied()
    }

    /// A process of a host.
    pub(crate) fn process(&self, hostname: &str, pid: u32) -> Option<ProcessId> {
        let host = &self.hosts[self.host(hostname)?];
        let ids = host.process_ids.get_or_init(|| {
            let ids = host.processes.clone();
            ids.map(|id| (self.processes[id].process.pid, id)).collect()
        });
        ids.get(&pid).copied()
    }

    /// What the processes of a user use on all hosts.
    pub(crate) fn uses_of_user(&self, username: &str) -> impl Iterator<Item = &UseFacts> {
        let user = self.user(username);
        let of = |position: usize| self.uses[position].user;
        let all = &self.uses_by_user;
        let first = all.partition_point(|&position| of(position) < user);
        let last = all.partition_point(|&position| of(position) <= user);
        all[first..last].iter().filter(move |_| user.is_some()).map(|&position| &self.uses[position])
    }

    /// The devices that the environments of a user are attached to, on all hosts.
    pub(crate) fn attachments_of_user(&self, username: &str) -> impl Iterator<Item = &AttachmentFacts> {
        let user = self.user(username);
        let all = &self.attachments_by_user;
        let of = |id: AttachmentId| Some(self.attachments[id].user);
        let first = all.partition_point(|&id| of(id) < user);
        let last = all.partition_point(|&id| of(id) <= user);
        all[first..last].iter().map(|&id| &self.attachments[id])
    }

    /// The longest gap of a host, or of all.
    pub(crate) fn longest_gap_seconds(&self, host: Option<HostId>) -> f64 {
        host.map_or(self.longest_gap_seconds, |host| self.hosts[host].freshness.longest_gap_seconds)
    }

    /// What the processes of an environment use, by GPU.
    pub(crate) fn uses_of(&self, environment: EnvironmentId) -> impl Iterator<Item = &UseFacts> {
        let range = self.environments[environment].uses.clone();
        self.uses_by_environment[range].iter().map(|&position| &self.uses[position])
    }

    /// What the processes of an environment use of a GPU.
    pub(crate) fn uses_on(&self, environment: EnvironmentId, gpu: u32) -> impl Iterator<Item = &UseFacts> {
        let all = &self.uses_by_environment[self.environments[environment].uses.clone()];
        let of = |position: &usize| self.uses[*position].gpu;
        let first = all.partition_point(|position| of(position) < gpu);
        all[first..].iter().map(|&position| &self.uses[position]).take_while(move |used| used.gpu == gpu)
    }

    /// The devices that an environment is attached to.
    pub(crate) fn attachments_of(&self, environment: EnvironmentId) -> &[AttachmentFacts] {
        &self.attachments[self.environments[environment].attachments.clone()]
    }
}

/// Users by a name that several may have.
fn by_name<'n>(named: impl Iterator<Item = (&'n str, UserId)>) -> HashMap<String, Vec<UserId>> {
    let mut by_name: HashMap<String, Vec<UserId>> = HashMap::default();
    for (name, id) in named {
        match by_name.get_mut(name) {
            Some(ids) => ids.push(id),
            None => _ = by_name.insert(name.to_owned(), vec![id]),
        }
    }
    by_name
}
