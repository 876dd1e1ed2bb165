//! The input, indexed once for all rules: hosts that tell something new or old, users, environments, attachments, and
//! which process of whom uses which GPU.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use genv_core::attribute;
use genv_core::model::{Attachment, Attribution, DeviceIndex, Environment, Process, Snapshot};

use super::freshness::{Freshness, HostFreshness, LastRead};
use super::unknown::{self, UnknownUses};
use super::{History, Input};

/// Positions in the lists of [`Facts`].
pub(super) type HostId = usize;
pub(super) type UserId = usize;
pub(super) type EnvironmentId = usize;
pub(super) type AttachmentId = usize;
pub(super) type ProcessId = usize;

/// What environments reserve of the devices of a host.
type Reservations<'a> = HashMap<(DeviceIndex, &'a str), &'a Attachment>;

/// See the module.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) hosts: Vec<HostFacts<'a>>,
    pub(super) users: Vec<UserFacts<'a>>,
    pub(super) environments: Vec<EnvironmentFacts<'a>>,
    pub(super) attachments: Vec<AttachmentFacts>,
    pub(super) processes: Vec<ProcessFacts<'a>>,
    /// Each GPU that a process uses, by process.
    pub(super) uses: Vec<UseFacts>,
    /// Sorted by user and host.
    pub(super) environments_by_user: Vec<EnvironmentId>,
    /// Sorted by user, host and GPU.
    pub(super) attachments_by_user: Vec<AttachmentId>,
    /// Positions in `uses`, sorted by user, host and GPU; only of processes of which the user is known.
    pub(super) uses_by_user: Vec<usize>,
    /// Positions in `uses` of processes in an environment, sorted by it and GPU.
    pub(super) uses_by_environment: Vec<usize>,
    /// The longest of all hosts' gaps.
    longest_gap_seconds: f64,
    /// Users whom the configuration names by their uids as out of reach.
    never_uids: BTreeSet<u32>,
    user_ids: HashMap<&'a str, UserId>,
    host_ids: HashMap<&'a str, HostId>,
    environment_ids: HashMap<(HostId, &'a str), EnvironmentId>,
}

#[derive(Debug)]
pub(super) struct HostFacts<'a> {
    pub(super) hostname: &'a str,
    /// Absent where it may not be looked at.
    pub(super) snapshot: Option<&'a Snapshot>,
    pub(super) freshness: HostFreshness,
    pub(super) environments: Range<EnvironmentId>,
    pub(super) processes: Range<ProcessId>,
    /// By GPU that they use, processes of which it is not known where they belong.
    pub(super) unknown_uses: BTreeMap<u32, UnknownUses<'a>>,
    /// How many such processes there are, by user.
    pub(super) unknown_by_user: BTreeMap<&'a str, u64>,
    /// By pid; empty until a process is asked for.
    process_ids: OnceCell<HashMap<u32, ProcessId>>,
}

impl HostFacts<'_> {
    /// What a GPU tells of its own utilization; 0 if it tells none.
    fn utilization_of(&self, gpu: u32) -> f64 {
        let devices = self.snapshot.map_or(&[][..], |it| &it.devices);
        let mut devices = devices.iter();
        let device = devices.find(|it| it.index == DeviceIndex::gpu(gpu));
        let ratio = device.and_then(|device| device.measurements.utilization_ratio);
        ratio.filter(|ratio| ratio.is_finite()).unwrap_or_default()
    }

    /// Whether the host has a GPU by this index.
    pub(super) fn lists_gpu(&self, gpu: u32) -> bool {
        let devices = self.snapshot.map_or(&[][..], |it| &it.devices);
        devices.iter().any(|it| it.index == DeviceIndex::gpu(gpu))
    }

    /// Whether a record of the state is damaged, so that what is not there may exist all the same.
    pub(super) fn state_is_damaged(&self) -> bool {
        self.state_error().is_some()
    }

    /// Whether an entry of the state is damaged that may say who holds a GPU.
    pub(super) fn holders_are_damaged(&self, gpu: u32) -> bool {
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
    pub(super) fn hides_use_of(&self, username: &str, gpu: u32) -> bool {
        let unknown = self.unknown_uses.get(&gpu);
        unknown.is_some_and(|unknown| unknown.may_be_of(username))
    }

    /// Whether a process of this user uses the GPU of which it is not known where it belongs.
    pub(super) fn is_hidden_by(&self, username: &str, gpu: u32) -> bool {
        let unknown = self.unknown_uses.get(&gpu);
        unknown.is_some_and(|unknown| unknown.are_of(username))
    }

    /// Whether all processes on all GPUs are known.
    pub(super) fn measures_all_processes(&self) -> bool {
        let devices = self.snapshot.map_or(&[][..], |it| &it.devices);
        let mut wholes = devices.iter().filter(|it| it.index.mig.is_none());
        wholes.all(|device| self.measures_processes(device.index.gpu))
    }

    /// Whether all processes on a GPU are known.
    pub(super) fn measures_processes(&self, gpu: u32) -> bool {
        self.snapshot.is_some_and(|it| it.processes_known(gpu))
    }
}

#[derive(Debug)]
pub(super) struct UserFacts<'a> {
    pub(super) name: &'a str,
    pub(super) uid: Option<u32>,
    /// `uid:1234`, as which configurations may know a user who has a name.
    alias: Option<String>,
    /// Absent if they could not be told: the user may be in any.
    pub(super) groups: Option<&'a BTreeSet<String>>,
    /// Out of reach of every rule.
    pub(super) never: bool,
}

impl UserFacts<'_> {
    /// The name, and what else the user is called.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name).chain(self.alias.as_deref())
    }

    pub(super) fn is_in(&self, names: &BTreeSet<String>) -> bool {
        self.names().any(|name| names.contains(name))
    }
}

#[derive(Debug)]
pub(super) struct EnvironmentFacts<'a> {
    pub(super) environment: &'a Environment,
    pub(super) host: HostId,
    pub(super) user: UserId,
    pub(super) attachments: Range<AttachmentId>,
    /// In [`Facts::uses_by_environment`].
    pub(super) uses: Range<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct AttachmentFacts {
    pub(super) environment: EnvironmentId,
    pub(super) host: HostId,
    pub(super) user: UserId,
    pub(super) gpu: u32,
    /// What it claims; absent: the whole device.
    pub(super) memory_bytes: Option<u64>,
    /// Unix time, in whole seconds as the state has it.
    pub(super) attached_seconds: Option<i64>,
    /// Whether nothing shows that its user attached the device.
    pub(super) unconfirmed: bool,
    /// Utilization by the processes of its environment, as a part of the time that others left of the GPU. Absent if it was
    /// not measured for all of them.
    pub(super) utilization_ratio: Option<f64>,
}

#[derive(Debug)]
pub(super) struct ProcessFacts<'a> {
    pub(super) process: &'a Process,
    pub(super) host: HostId,
    /// For whom it runs; absent if that, or where it belongs, is unknown.
    pub(super) user: Option<UserId>,
    /// Whose it is although nobody knows where it belongs; absent where `user` is there, and where it may be anybody's.
    pub(super) unknown_owner: Option<UserId>,
    pub(super) environment: Option<EnvironmentId>,
    pub(super) uses: Range<usize>,
    /// It can be named without a doubt, and no rule is forbidden to end it.
    pub(super) within_reach: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct UseFacts {
    pub(super) process: ProcessId,
    pub(super) gpu: u32,
    /// What was measured of it, on all MIG devices of the GPU.
    pub(super) memory_bytes: u64,
    /// Whether the driver told the memory on all of them.
    pub(super) memory_is_measured: bool,
    /// Absent if it was not measured on any of them.
    pub(super) utilization_ratio: Option<f64>,
    /// Utilization by processes of other users on the GPU: what was measured of them, or what the device itself tells beyond
    /// the processes of this user, if that is more, for drivers tell nothing of shares below a percent.
    pub(super) others_ratio: f64,
}

impl UseFacts {
    /// Utilization as a part of the time that processes of other users left of the GPU. Absent if it was not measured.
    pub(super) fn of_what_is_left(&self) -> Option<f64> {
        of_what_is_left(self.utilization_ratio?, self.others_ratio)
    }
}

/// `own` utilization as a part of the time that processes of other users leave of a GPU, so that a crowd makes none of
/// them idle. Absent where the others leave no time at all, and nothing shows what `own` would be.
fn of_what_is_left(own: f64, others: f64) -> Option<f64> {
    /// Drivers tell whole percents.
    const RESOLUTION: f64 = 0.01;
    let left = 1.0 - others;
    if own >= left && own > 0.0 {
        return Some(1.0);
    }
    (left >= RESOLUTION).then(|| own / left)
}

impl<'a> Facts<'a> {
    /// Indexes an input; the history says which facts are not new.
    pub(super) fn new(input: &Input<'a>, history: &History) -> Self {
        let never = input.config.never.users.iter();
        let never_uids = never.filter_map(|name| name.strip_prefix("uid:")?.parse().ok());
        let snapshots = || input.hosts.iter().filter_map(|it| it.snapshot.as_deref());
        let environments = snapshots().map(|it| it.environments.len()).sum();
        let processes = snapshots().map(|it| it.processes.len()).sum();
        let mut facts = Self {
            hosts: Vec::with_capacity(input.hosts.len()),
            users: Vec::new(),
            environments: Vec::with_capacity(environments),
            attachments: Vec::with_capacity(environments),
            processes: Vec::with_capacity(processes),
            uses: Vec::with_capacity(processes),
            environments_by_user: Vec::new(),
            attachments_by_user: Vec::new(),
            uses_by_user: Vec::new(),
            uses_by_environment: Vec::new(),
            longest_gap_seconds: 0.0,
            never_uids: never_uids.collect(),
            user_ids: HashMap::new(),
            host_ids: HashMap::with_capacity(input.hosts.len()),
            environment_ids: HashMap::with_capacity(environments),
        };
        let mut told: HashMap<&str, u32> = HashMap::with_capacity(input.hosts.len());
        for host in input.hosts {
            *told.entry(&host.hostname).or_default() += 1;
        }
        for host in input.hosts {
            let known = history.hosts.get(&host.hostname);
            let last = known.map_or_else(LastRead::default, |host| host.read);
            let mut freshness = HostFreshness::of(host, last, input.config, input.now_seconds);
            // Of two by one name nobody knows which is meant.
            if told[host.hostname.as_str()] > 1 {
                freshness = HostFreshness::missing(freshness.longest_gap_seconds);
            }
            let snapshot = host
                .snapshot
                .as_deref()
                .filter(|_| freshness.state > Freshness::Missing);
            let longest = facts.longest_gap_seconds.max(freshness.longest_gap_seconds);
            facts.longest_gap_seconds = longest;
            facts.add_host(input, &host.hostname, snapshot, freshness);
        }
        facts.sort();
        facts.compare_users();
        let ratios = facts.attachments.iter().map(|it| facts.utilization(it));
        let ratios: Vec<Option<f64>> = ratios.collect();
        for (attachment, ratio) in facts.attachments.iter_mut().zip(ratios) {
            attachment.utilization_ratio = ratio;
        }
        facts
    }

    /// A host by its name.
    pub(super) fn host(&self, hostname: &str) -> Option<HostId> {
        self.host_ids.get(hostname).copied()
    }

    /// A user by name.
    pub(super) fn user(&self, username: &str) -> Option<UserId> {
        self.user_ids.get(username).copied()
    }

    /// An environment of a host.
    pub(super) fn environment(&self, hostname: &str, eid: &str) -> Option<EnvironmentId> {
        let host = self.host(hostname)?;
        self.environment_ids.get(&(host, eid)).copied()
    }

    /// A process of a host.
    pub(super) fn process(&self, hostname: &str, pid: u32) -> Option<ProcessId> {
        let host = &self.hosts[self.host(hostname)?];
        let ids = host.process_ids.get_or_init(|| {
            let ids = host.processes.clone();
            ids.map(|id| (self.processes[id].process.pid, id)).collect()
        });
        ids.get(&pid).copied()
    }

    /// What the processes of a user use on all hosts.
    pub(super) fn uses_of_user(&self, username: &str) -> impl Iterator<Item = &UseFacts> {
        let user = self.user(username);
        let of = |position: usize| self.processes[self.uses[position].process].user;
        let all = &self.uses_by_user;
        let first = all.partition_point(|&position| of(position) < user);
        let last = all.partition_point(|&position| of(position) <= user);
        all[first..last]
            .iter()
            .filter(move |_| user.is_some())
            .map(|&position| &self.uses[position])
    }

    /// The devices that the environments of a user are attached to, on all hosts.
    pub(super) fn attachments_of_user(
        &self,
        username: &str,
    ) -> impl Iterator<Item = &AttachmentFacts> {
        let user = self.user(username);
        let all = &self.attachments_by_user;
        let of = |id: AttachmentId| Some(self.attachments[id].user);
        let first = all.partition_point(|&id| of(id) < user);
        let last = all.partition_point(|&id| of(id) <= user);
        all[first..last].iter().map(|&id| &self.attachments[id])
    }

    /// The longest gap of a host, or of all.
    pub(super) fn longest_gap_seconds(&self, host: Option<HostId>) -> f64 {
        host.map_or(self.longest_gap_seconds, |host| {
            self.hosts[host].freshness.longest_gap_seconds
        })
    }

    /// What the processes of an environment use, by GPU.
    pub(super) fn uses_of(&self, environment: EnvironmentId) -> impl Iterator<Item = &UseFacts> {
        let range = self.environments[environment].uses.clone();
        self.uses_by_environment[range]
            .iter()
            .map(|&position| &self.uses[position])
    }

    /// The devices that an environment is attached to.
    pub(super) fn attachments_of(&self, environment: EnvironmentId) -> &[AttachmentFacts] {
        &self.attachments[self.environments[environment].attachments.clone()]
    }

    fn add_host(
        &mut self,
        input: &Input<'a>,
        hostname: &'a str,
        snapshot: Option<&'a Snapshot>,
        freshness: HostFreshness,
    ) {
        let host = self.hosts.len();
        self.host_ids.entry(hostname).or_insert(host);
        let environments = self.environments.len();
        let processes = self.processes.len();
        self.hosts.push(HostFacts {
            hostname,
            snapshot,
            freshness,
            environments: environments..environments,
            processes: processes..processes,
            unknown_uses: BTreeMap::new(),
            unknown_by_user: BTreeMap::new(),
            process_ids: OnceCell::new(),
        });
        let Some(snapshot) = snapshot else { return };
        let mut reservations = Reservations::new();
        for device in &snapshot.devices {
            for attachment in &device.attachments {
                let place = (device.index, attachment.eid.as_str());
                reservations.entry(place).or_insert(attachment);
            }
        }
        for environment in &snapshot.environments {
            let id = self.add_environment(input, host, environment, &reservations);
            self.environment_ids
                .insert((host, environment.eid.as_str()), id);
        }
        if freshness.gpu > Freshness::Missing {
            for process in &snapshot.processes {
                self.add_process(input, host, process);
            }
        }
        self.hosts[host].environments = environments..self.environments.len();
        self.hosts[host].processes = processes..self.processes.len();
    }

    fn add_environment(
        &mut self,
        input: &Input<'a>,
        host: HostId,
        environment: &'a Environment,
        reservations: &Reservations<'_>,
    ) -> EnvironmentId {
        let id = self.environments.len();
        let user = self.add_user(input, &environment.username, environment.uid);
        let first = self.attachments.len();
        let unconfirmed = input.unconfirmed;
        let unconfirmed =
            unconfirmed.and_then(|it| it.of(self.hosts[host].hostname, &environment.eid));
        for held in environment.devices.iter().filter(|device| device.attached) {
            let index = held.index.whole();
            let attachment = reservations.get(&(index, environment.eid.as_str()));
            let seconds = attachment.and_then(|attachment| attachment.attached_timestamp_seconds);
            self.attachments.push(AttachmentFacts {
                environment: id,
                host,
                user,
                gpu: index.gpu,
                memory_bytes: attachment.and_then(|attachment| attachment.memory_bytes),
                attached_seconds: seconds.map(|seconds| seconds as i64),
                unconfirmed: unconfirmed.is_some_and(|gpus| gpus.contains(&index.gpu)),
                utilization_ratio: None,
            });
        }
        self.environments.push(EnvironmentFacts {
            environment,
            host,
            user,
            attachments: first..self.attachments.len(),
            uses: 0..0,
        });
        id
    }

    fn add_process(&mut self, input: &Input<'a>, host: HostId, process: &'a Process) {
        let (environment, user) = match &process.attribution {
            Attribution::Environment { eid } => {
                let environment = self.environment_ids.get(&(host, eid.as_str())).copied();
                let user = environment.map(|id| self.environments[id].user);
                (environment, user)
            }
            Attribution::Outside { .. } => {
                let name = process.username.as_deref();
                // Root of a container is not this machine's root.
                let uid = process
                    .uid
                    .filter(|uid| *uid != 0 || process.container_id.is_none());
                let user = name.map(|name| self.add_user(input, name, uid));
                (None, user)
            }
            Attribution::Unknown { .. } => (None, None),
        };
        let id = self.processes.len();
        let first = self.uses.len();
        for device in &process.devices {
            let gpu = device.index.gpu;
            let memory_bytes = device.memory_used_bytes.unwrap_or(0);
            let utilization = device.utilization_ratio.filter(|ratio| ratio.is_finite());
            if let Some(known) = self.uses[first..].iter_mut().find(|known| known.gpu == gpu) {
                known.memory_bytes = known.memory_bytes.saturating_add(memory_bytes);
                known.memory_is_measured &= device.memory_used_bytes.is_some();
                let both = known.utilization_ratio.zip(utilization);
                known.utilization_ratio = both.map(|(a, b)| a + b);
            } else {
                self.uses.push(UseFacts {
                    process: id,
                    gpu,
                    memory_bytes,
                    memory_is_measured: device.memory_used_bytes.is_some(),
                    utilization_ratio: utilization,
                    others_ratio: 0.0,
                });
            }
        }
        let mut unknown_owner = None;
        if user.is_none() {
            let owner = attribute::unknown_owner(process);
            unknown_owner = owner.map(|name| self.add_user(input, name, process.uid));
            let facts = &mut self.hosts[host];
            let counted_as = process.username.as_deref();
            let counted_as = counted_as.unwrap_or(unknown::UNKNOWN_USER);
            *facts.unknown_by_user.entry(counted_as).or_default() += 1;
            for used in &self.uses[first..] {
                facts.unknown_uses.entry(used.gpu).or_default().add(owner);
            }
        }
        let never = &input.config.never.users;
        let own_name_is_never = || {
            let name = process.username.as_ref();
            name.is_none_or(|name| never.contains(name))
        };
        // An empty container id would make uid 0 of the host look like uid 0 of a container.
        let in_container = process
            .container_id
            .as_ref()
            .is_some_and(|id| !id.is_empty());
        let within_reach = user.is_some_and(|user| !self.users[user].never)
            && process.pid > 1
            && process.start_time_ticks.is_some()
            && process.uid.is_some_and(|uid| match uid {
                0 => in_container,
                uid => !self.never_uids.contains(&uid),
            })
            && !own_name_is_never();
        self.processes.push(ProcessFacts {
            process,
            host,
            user,
            unknown_owner,
            environment,
            uses: first..self.uses.len(),
            within_reach,
        });
    }

    fn add_user(&mut self, input: &Input<'a>, name: &'a str, uid: Option<u32>) -> UserId {
        if let Some(&id) = self.user_ids.get(name) {
            let known = &mut self.users[id];
            known.never |= uid.is_some_and(|uid| self.never_uids.contains(&uid));
            if known.uid.is_none() {
                known.uid = uid;
                known.alias = alias(name, uid);
            }
            return id;
        }
        let id = self.users.len();
        self.user_ids.insert(name, id);
        self.users.push(UserFacts {
            name,
            uid,
            alias: alias(name, uid),
            groups: input.groups.get(name),
            never: input.config.never.users.contains(name)
                || uid.is_some_and(|uid| self.never_uids.contains(&uid)),
        });
        id
    }

    fn sort(&mut self) {
        self.environments_by_user = (0..self.environments.len()).collect();
        let environments = &self.environments;
        // They are listed by host.
        self.environments_by_user
            .sort_by_key(|&id| environments[id].user);
        self.attachments_by_user = (0..self.attachments.len()).collect();
        let attachments = &self.attachments;
        self.attachments_by_user.sort_by_cached_key(|&id| {
            let attachment = &attachments[id];
            (attachment.user, attachment.host, attachment.gpu)
        });
        let processes = &self.processes;
        let uses = &self.uses;
        let of = |position: usize| &processes[uses[position].process];
        let all = 0..uses.len();
        let mut by_user: Vec<_> = all
            .clone()
            .filter(|&position| of(position).user.is_some())
            .collect();
        by_user.sort_by_cached_key(|&position| {
            let process = of(position);
            (process.user, process.host, uses[position].gpu)
        });
        let mut by_environment: Vec<_> = all
            .filter(|&position| of(position).environment.is_some())
            .collect();
        by_environment
            .sort_by_cached_key(|&position| (of(position).environment, uses[position].gpu));
        let mut first = 0;
        for group in by_environment.chunk_by(|&a, &b| of(a).environment == of(b).environment) {
            let end = first + group.len();
            if let Some(environment) = of(group[0]).environment {
                self.environments[environment].uses = first..end;
            }
            first = end;
        }
        self.uses_by_user = by_user;
        self.uses_by_environment = by_environment;
    }
}

impl Facts<'_> {
    /// How busy the processes of an environment keep an attached GPU.
    fn utilization(&self, attachment: &AttachmentFacts) -> Option<f64> {
        let host = &self.hosts[attachment.host];
        let gpu = attachment.gpu;
        let owner = self.users[attachment.user].name;
        if host.hides_use_of(owner, gpu) || !host.measures_processes(gpu) {
            return None;
        }
        let (mut own, mut others) = (0.0, None);
        for used in self.uses_of(attachment.environment) {
            if used.gpu == gpu {
                own += used.utilization_ratio?;
                others = Some(used.others_ratio);
            }
        }
        match others {
            Some(others) => of_what_is_left(own, others),
            // Who has no process uses nothing, whatever others do.
            None => Some(0.0),
        }
    }

    /// Fills in what processes of other users make of each GPU.
    fn compare_users(&mut self) {
        for host in &self.hosts {
            let processes = &self.processes[host.processes.clone()];
            let first = processes.first().map_or(0, |process| process.uses.start);
            let end = processes.last().map_or(0, |process| process.uses.end);
            let user = |used: &UseFacts| {
                let process = &self.processes[used.process];
                process.user.or(process.unknown_owner)
            };
            let uses = &mut self.uses[first..end];
            let mut positions: Vec<(u32, Option<UserId>, usize)> = uses
                .iter()
                .enumerate()
                .map(|(position, used)| (used.gpu, user(used), position))
                .collect();
            positions.sort_unstable();
            for on_gpu in positions.chunk_by(|a, b| a.0 == b.0) {
                let all = sum(uses, on_gpu).max(host.utilization_of(on_gpu[0].0));
                for of_user in on_gpu.chunk_by(|a, b| a.1 == b.1) {
                    if of_user.len() < on_gpu.len() {
                        let rest = (all - sum(uses, of_user)).max(0.0);
                        let of_user = of_user.iter().map(|(_, _, position)| *position);
                        of_user.for_each(|position| uses[position].others_ratio = rest);
                    }
                }
            }
        }
    }
}

/// Utilization by uses at these positions, as far as it was measured.
fn sum(uses: &[UseFacts], positions: &[(u32, Option<UserId>, usize)]) -> f64 {
    let ratios = positions.iter();
    let ratios = ratios.map(|(_, _, position)| uses[*position].utilization_ratio);
    ratios.flatten().sum()
}

fn alias(name: &str, uid: Option<u32>) -> Option<String> {
    let alias = format!("uid:{}", uid?);
    (alias != name).then_some(alias)
}
