//! The facts are gathered from the input.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _};
use genv_core::attribute;
use genv_core::model::{Attachment, Attribution, DeviceIndex, Environment, Process, Snapshot};

use super::{
    AttachmentFacts, AttachmentId, EnvironmentFacts, EnvironmentId, Facts, HostFacts, HostId, ProcessFacts, UseFacts,
    UserFacts, UserId,
};
use crate::plan::freshness::{Freshness, HostFreshness, LastRead};
use crate::plan::history::HostHistory;
use crate::plan::unknown;
use crate::plan::{History, Input};

/// The attachments of environments on a host's devices. The flag: another GPU was at the index at that time.
type Reservations<'a> = HashMap<(DeviceIndex, &'a str), (&'a Attachment, bool)>;

impl<'a> Facts<'a> {
    /// Indexes an input; the history says which facts are not new.
    pub(in crate::plan) fn new(input: &Input<'a>, history: &History) -> Self {
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
            unattached_uses: Vec::new(),
            hidden_attachments: Vec::new(),
            longest_gap_seconds: 0.0,
            never_uids: never_uids.collect(),
            user_ids: HashMap::new(),
            user_ids_by_group: OnceCell::new(),
            user_ids_by_alias: OnceCell::new(),
            host_ids: HashMap::with_capacity(input.hosts.len()),
            environment_ids: HashMap::with_capacity(environments),
        };
        let mut told: HashMap<&str, u32> = HashMap::with_capacity(input.hosts.len());
        for host in input.hosts {
            *told.entry(&host.hostname).or_default() += 1;
        }
        let mut known_host = history.host_lookup();
        for host in input.hosts {
            let known = known_host(&host.hostname);
            let last = known.map_or_else(LastRead::default, |host| host.read);
            let mut freshness = HostFreshness::of(host, last, input.config, input.now_seconds);
            // Of two by one name nobody knows which is meant.
            if told[host.hostname.as_str()] > 1 {
                freshness = HostFreshness::missing(freshness.longest_gap_seconds);
            }
            let snapshot = host.snapshot.as_deref().filter(|_| freshness.state > Freshness::Missing);
            let longest = facts.longest_gap_seconds.max(freshness.longest_gap_seconds);
            facts.longest_gap_seconds = longest;
            facts.add_host(input, &host.hostname, snapshot, freshness, known);
        }
        let uses_by_gpu = facts.sort();
        facts.list_exceptions();
        facts.compare_users(uses_by_gpu);
        let ratios = facts.attachments.iter().map(|it| facts.utilization(it));
        let ratios: Vec<Option<f64>> = ratios.collect();
        for (attachment, ratio) in facts.attachments.iter_mut().zip(ratios) {
            attachment.utilization_ratio = ratio;
        }
        facts
    }

    fn add_host(
        &mut self,
        input: &Input<'a>,
        hostname: &'a str,
        snapshot: Option<&'a Snapshot>,
        freshness: HostFreshness,
        known: Option<&HostHistory>,
    ) {
        let occupants = known.map(|known| &known.occupants);
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
        let attachments = snapshot.devices.iter().map(|it| it.attachments.len());
        let mut reservations = Reservations::with_capacity(attachments.sum());
        for device in &snapshot.devices {
            let occupants = occupants.filter(|it| it.saw_another(device));
            for attachment in device.attachments.iter() {
                let place = (device.index, attachment.eid.as_str());
                let attached_seconds = attachment.attached_timestamp_seconds;
                // The history covers more time than the snapshot's maker.
                let moved = occupants.is_some_and(|it| it.was_another(device, attached_seconds));
                reservations.entry(place).or_insert((attachment, moved));
            }
        }
        for environment in &snapshot.environments {
            let id = self.add_environment(input, host, environment, &reservations, known);
            self.environment_ids.insert((host, environment.eid.as_str()), id);
        }
        if freshness.gpu > Freshness::Missing {
            let has_ended = |process: &Process| {
                let now = input.now_seconds;
                known.is_some_and(|it| it.has_ended(process, snapshot, &freshness, now))
            };
            for process in snapshot.processes.iter().filter(|it| !has_ended(it)) {
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
        known: Option<&HostHistory>,
    ) -> EnvironmentId {
        let id = self.environments.len();
        let user = self.add_user(input, &environment.username, environment.uid);
        let first = self.attachments.len();
        let mut moved = false;
        let unconfirmed = input.unconfirmed;
        let unconfirmed = unconfirmed.and_then(|it| it.of(self.hosts[host].hostname, &environment.eid));
        for held in environment.devices.iter().filter(|device| device.attached) {
            let index = held.index.whole();
            let reserved = reservations.get(&(index, environment.eid.as_str()));
            moved |= reserved.is_some_and(|(_, moved)| *moved);
            let attachment = reserved.map(|(attachment, _)| attachment);
            let seconds = attachment.and_then(|attachment| attachment.attached_timestamp_seconds);
            let attached_seconds = seconds.map(|seconds| seconds as i64);
            let detached_seconds = known.and_then(|known| {
                let asked_seconds = self.hosts[host].freshness.state_asked_seconds;
                let known = known.attachment(&environment.eid, index.gpu, attached_seconds)?;
                known.detached_by(asked_seconds)
            });
            self.attachments.push(AttachmentFacts {
                environment: id,
                host,
                user,
                gpu: index.gpu,
                memory_bytes: attachment.and_then(|attachment| attachment.memory_bytes),
                attached_seconds,
                detached_seconds,
                unconfirmed: unconfirmed.is_some_and(|gpus| gpus.contains(&{ index.gpu })),
                utilization_ratio: None,
            });
        }
        self.environments.push(EnvironmentFacts {
            environment,
            host,
            user,
            created_seconds: environment.created_timestamp_seconds,
            lease_end_seconds: environment.lease_end_timestamp_seconds,
            attachments: first..self.attachments.len(),
            moved,
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
                let uid = process.uid.filter(|uid| *uid != 0 || process.container_id.is_none());
                let user = name.map(|name| self.add_user(input, name, uid));
                (None, user)
            }
            Attribution::Unknown { .. } => (None, None),
        };
        let id = self.processes.len();
        let first = self.uses.len();
        for device in &process.devices {
            let gpu = device.index.gpu;
            let memory_bytes = device.memory_used_bytes.get().unwrap_or(0);
            let utilization = device.utilization_ratio.get().filter(|ratio| ratio.is_finite());
            if let Some(known) = self.uses[first..].iter_mut().find(|known| known.gpu == gpu) {
                known.memory_bytes = known.memory_bytes.saturating_add(memory_bytes);
                known.shows_use |= device.shows_use();
                known.memory_is_measured &= device.memory_used_bytes.get().is_some();
                let both = known.utilization_ratio.zip(utilization);
                known.utilization_ratio = both.map(|(a, b)| a + b);
            } else {
                self.uses.push(UseFacts {
                    process: id,
                    host,
                    user,
                    gpu,
                    memory_bytes,
                    shows_use: device.shows_use(),
                    memory_is_measured: device.memory_used_bytes.get().is_some(),
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
        let in_container = process.container_id.as_ref().is_some_and(|id| !id.is_empty());
        let within_reach = user.is_some_and(|user| !self.users[user].never)
            && environment.is_none_or(|id| !self.environments[id].moved)
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
            never: input.config.never.users.contains(name) || uid.is_some_and(|uid| self.never_uids.contains(&uid)),
        });
        id
    }

    /// Lists all by user, and uses also by environment; those of one by host and GPU. Returns all uses by host and GPU.
    fn sort(&mut self) -> Vec<usize> {
        let users = self.users.len();
        let (environments, attachments) = (&self.environments, &self.attachments);
        let of_environments = (0..environments.len()).map(|id| (id, Some(environments[id].user)));
        let by_user = by_group(users, of_environments).0;
        let by_gpu = by_host_and_gpu(attachments.len(), |id| (attachments[id].host, attachments[id].gpu));
        let of_attachments = by_gpu.iter().map(|&id| (id, Some(attachments[id].user)));
        self.attachments_by_user = by_group(users, of_attachments).0;
        let (processes, uses) = (&self.processes, &self.uses);
        let by_gpu = by_host_and_gpu(uses.len(), |position| (uses[position].host, uses[position].gpu));
        let of_uses = by_gpu.iter().map(|&position| (position, uses[position].user));
        self.uses_by_user = by_group(users, of_uses).0;
        let of_uses = by_gpu.iter().map(|&position| (position, processes[uses[position].process].environment));
        let (by_environment, ends) = by_group(environments.len(), of_uses);
        self.uses_by_environment = by_environment;
        self.environments_by_user = by_user;
        let mut first = 0;
        for (environment, end) in self.environments.iter_mut().zip(ends) {
            environment.uses = first..end;
            first = end;
        }
        by_gpu
    }

    /// Lists the unattached uses and the hidden attachments, which few kinds of rule look for.
    fn list_exceptions(&mut self) {
        let uses = self.uses_by_environment.iter().copied();
        let is_unattached = |position: &usize| {
            let UseFacts { process, gpu, .. } = self.uses[*position];
            let environment = self.processes[process].environment;
            environment.is_some_and(|id| self.attachments_of(id).iter().all(|attachment| attachment.gpu != gpu))
        };
        let unattached_uses = uses.filter(is_unattached).collect();
        let is_hidden = |id: &AttachmentId| {
            let attachment = &self.attachments[*id];
            let username = self.users[attachment.user].name;
            self.hosts[attachment.host].is_hidden_by(username, attachment.gpu)
        };
        let hidden_attachments = self.attachments_by_user.iter().copied().filter(is_hidden).collect();
        (self.unattached_uses, self.hidden_attachments) = (unattached_uses, hidden_attachments);
    }
}

/// Positions in a list that is in the order of hosts, sorted by GPU within each host; stable.
fn by_host_and_gpu(length: usize, place: impl Fn(usize) -> (HostId, u32)) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..length).collect();
    for on_host in positions.chunk_by_mut(|&a, &b| place(a).0 == place(b).0) {
        on_host.sort_by_key(|&position| place(position).1);
    }
    positions
}

/// Positions by their group, those of one group in their order, and the end of each group among them. A position without
/// a group is left out.
fn by_group(groups: usize, of: impl Iterator<Item = (usize, Option<usize>)> + Clone) -> (Vec<usize>, Vec<usize>) {
    let of = of.filter_map(|(position, group)| Some((position, group?)));
    let mut ends = vec![0; groups];
    of.clone().for_each(|(_, group)| ends[group] += 1);
    let mut number = 0;
    for end in &mut ends {
        // A group begins where the one before it ends, and ends there until its positions are put in.
        number += std::mem::replace(end, number);
    }
    let mut positions = vec![0; number];
    for (position, group) in of {
        positions[ends[group]] = position;
        ends[group] += 1;
    }
    (positions, ends)
}

fn alias(name: &str, uid: Option<u32>) -> Option<String> {
    let alias = format!("uid:{}", uid?);
    (alias != name).then_some(alias)
}
