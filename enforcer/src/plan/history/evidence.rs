//! Whether a violation that is not found is over, or only not known, and what is not known of it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{History, ViolationHistory};
use crate::config::Rule;
use crate::kinds::{self, IdleLimit};
use crate::plan::facts::{AttachmentFacts, EnvironmentId, Facts, HostFacts, HostId, ProcessId, UseFacts};
use crate::plan::selector::View;
use crate::plan::{Subject, words};

/// What a violation was concluded from when it was last seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::plan) struct About {
    /// Who is responsible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::plan) username: Option<String>,
    /// GPUs that the process, the environment or the user used or held.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(in crate::plan) gpus: BTreeSet<u32>,
    /// Environments by host and eid.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    eids: BTreeSet<(String, String)>,
    /// GPUs that these environments held, by host and eid.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    held: BTreeSet<(String, String, u32)>,
}

/// Environments that are kept of one violation.
const MOST_ENVIRONMENTS: usize = 64;

/// Attachments that are kept of one violation.
const MOST_HELD: usize = 512;

impl About {
    /// Takes over the present evidence of a violation, which mostly equals the evidence before.
    pub(super) fn follow(&mut self, facts: &Facts<'_>, subject: &Subject, username: &str) {
        let Evident { mut gpus, environments } = Evident::of(facts, subject, username);
        gpus.sort_unstable();
        gpus.dedup();
        let is_of_subject = |gpu: u32| match subject {
            Subject::EnvironmentDevice { index, .. } => index.gpu == gpu,
            _ => true,
        };
        let named = |id: EnvironmentId| {
            let environment = &facts.environments[id];
            let hostname = facts.hosts[environment.host].hostname;
            (hostname, environment.environment.eid.as_str())
        };
        let mut eids: Vec<(&str, &str)> = environments.iter().map(|id| named(*id)).collect();
        let held = environments.iter().flat_map(|id| {
            let (hostname, eid) = named(*id);
            let gpus = facts.attachments_of(*id).iter().map(|it| it.gpu);
            let gpus = gpus.filter(|gpu| is_of_subject(*gpu));
            gpus.map(move |gpu| (hostname, eid, gpu))
        });
        let mut held: Vec<(&str, &str, u32)> = held.take(MOST_HELD).collect();
        eids.sort_unstable();
        held.sort_unstable();
        held.dedup();

        if self.username.as_deref() != Some(username) {
            self.username = Some(username.to_owned());
        }
        if !self.gpus.iter().eq(&gpus) {
            self.gpus = gpus.into_iter().collect();
        }
        let before = self.eids.iter().map(|(hostname, eid)| (&**hostname, &**eid));
        if !before.eq(eids.iter().copied()) {
            self.eids = eids.into_iter().map(|(hostname, eid)| (hostname.to_owned(), eid.to_owned())).collect();
        }
        let before = self.held.iter().map(|(hostname, eid, gpu)| (&**hostname, &**eid, *gpu));
        if !before.eq(held.iter().copied()) {
            let held = held.into_iter().map(|(hostname, eid, gpu)| (hostname.to_owned(), eid.to_owned(), gpu));
            self.held = held.collect();
        }
    }
}

/// The evidence of a violation.
#[derive(Default)]
struct Evident {
    gpus: Vec<u32>,
    /// The environments, each once.
    environments: Vec<EnvironmentId>,
}

impl Evident {
    fn of(facts: &Facts<'_>, subject: &Subject, username: &str) -> Self {
        let mut evident = Self::default();
        match subject {
            Subject::Process { hostname, pid, .. } => {
                if let Some(id) = facts.process(hostname, *pid) {
                    evident.add_process(facts, id);
                }
            }
            Subject::Environment { hostname, eid } => {
                if let Some(id) = facts.environment(hostname, eid) {
                    evident.add_environment(id);
                    let held = facts.attachments_of(id).iter().map(|it| it.gpu);
                    evident.gpus.extend(held);
                    evident.gpus.extend(facts.uses_of(id).map(|used| used.gpu));
                }
            }
            Subject::EnvironmentDevice { hostname, eid, index } => {
                evident.gpus.push(index.gpu);
                if let Some(id) = facts.environment(hostname, eid) {
                    evident.add_environment(id);
                }
            }
            Subject::User { .. } | Subject::UserDevice { .. } => {
                let host = subject.hostname().map(|hostname| facts.host(hostname));
                let on = |id: HostId| host.is_none_or(|host| host == Some(id));
                for used in facts.uses_of_user(username) {
                    if on(used.host) {
                        evident.add_process(facts, used.process);
                    }
                }
                for attachment in facts.attachments_of_user(username) {
                    if on(attachment.host) {
                        evident.gpus.push(attachment.gpu);
                        evident.add_environment(attachment.environment);
                    }
                }
            }
        }
        evident
    }

    fn add_process(&mut self, facts: &Facts<'_>, id: ProcessId) {
        let process = &facts.processes[id];
        let uses = facts.uses[process.uses.clone()].iter();
        self.gpus.extend(uses.map(|used| used.gpu));
        if let Some(environment) = process.environment {
            self.add_environment(environment);
        }
    }

    fn add_environment(&mut self, id: EnvironmentId) {
        if self.environments.len() < MOST_ENVIRONMENTS && !self.environments.contains(&id) {
            self.environments.push(id);
        }
    }
}

/// What is not known of the evidence about a violation that is not found, in one clause; absent if all is known, so that
/// the violation is over.
pub(super) fn unknown<'a>(
    facts: &Facts<'a>,
    view: &View<'_, 'a>,
    history: &History,
    subject: &Subject,
    known: &ViolationHistory,
) -> Option<String> {
    if let Some(hostname) = silent_host(view, subject) {
        return Some(format!("no fresh facts from {}", words::name(hostname)));
    }
    let username = known.about.username.as_deref().unwrap_or_default();
    if groups_are_unknown(facts, view.rule, username) {
        return Some(format!("the groups of {} cannot be told", words::name(username)));
    }
    let mut hosts: Vec<HostId> = match subject.hostname() {
        Some(hostname) => facts.host(hostname).into_iter().collect(),
        None => (0..facts.hosts.len()).collect(),
    };
    hosts.retain(|&host| view.sees_host(host));
    hosts.into_iter().find_map(|host| {
        let evidence = Evidence { facts, view, history, host, subject, known, username };
        evidence.unknown()
    })
}

/// A host without fresh facts that a violation would be seen on.
fn silent_host<'v>(view: &'v View<'_, '_>, subject: &Subject) -> Option<&'v str> {
    let mut silent = view.missing_hosts.iter().copied();
    silent.find(|silent| subject.hostname().is_none_or(|hostname| hostname == *silent))
}

/// Whether it is not known whether a rule looks at a user, or how much it allows.
pub(super) fn groups_are_unknown(facts: &Facts<'_>, rule: &Rule, username: &str) -> bool {
    let selector = &rule.selector;
    let limits = rule.kind.limits();
    let in_limits = limits.is_some_and(|limits| {
        let mut all = limits.overrides.iter().map(|(_, limit)| limit);
        !limits.base.groups.is_empty() || all.any(|limit| !limit.groups.is_empty())
    });
    let asks = selector.groups.is_some() || !selector.except_groups.is_empty() || in_limits;
    let user = facts.user(username).filter(|_| asks);
    user.is_some_and(|user| facts.users[user].groups.is_none())
}

struct Evidence<'e, 'a> {
    facts: &'e Facts<'a>,
    view: &'e View<'e, 'a>,
    history: &'e History,
    host: HostId,
    subject: &'e Subject,
    known: &'e ViolationHistory,
    username: &'e str,
}

impl Evidence<'_, '_> {
    fn host(&self) -> &HostFacts<'_> {
        &self.facts.hosts[self.host]
    }

    fn unknown(&self) -> Option<String> {
        let needs_processes = self.view.needs_processes;
        self.left_out().or_else(|| self.moved()).or_else(|| needs_processes.then(|| self.unknown_use()).flatten())
    }

    /// An environment is not there, or does not hold a device any more, and the state may lack the record of it.
    fn left_out(&self) -> Option<String> {
        if !self.host().state_is_damaged() {
            return None;
        }
        let (facts, hostname, about) = (self.facts, self.host().hostname, &self.known.about);
        let mut eids = about.eids.iter().filter(|(host, _)| host == hostname);
        let mut held = about.held.iter().filter(|(host, _, _)| host == hostname);
        let holds = |eid: &str, gpu: u32| {
            let environment = facts.environment(hostname, eid);
            let attachments = environment.map(|id| facts.attachments_of(id));
            attachments.is_some_and(|all| all.iter().any(|it| it.gpu == gpu))
        };
        let is_left_out = eids.any(|(_, eid)| facts.environment(hostname, eid).is_none())
            || held.any(|(_, eid, gpu)| self.host().holders_are_damaged(*gpu) && !holds(eid, *gpu));
        is_left_out.then(|| "a record of genv's state is damaged or disputed".to_owned())
    }

    /// The reason, if another GPU is at the index of an attachment.
    fn moved(&self) -> Option<String> {
        let (facts, hostname) = (self.facts, self.host().hostname);
        let environment = match self.subject {
            Subject::Process { pid, .. } => facts.processes[facts.process(hostname, *pid)?].environment,
            Subject::Environment { eid, .. } | Subject::EnvironmentDevice { eid, .. } => {
                facts.environment(hostname, eid)
            }
            Subject::User { .. } | Subject::UserDevice { .. } => None,
        };
        let moved = facts.environments[environment?].moved;
        moved.then(|| "the GPUs of the machine have other indices than when it attached them".to_owned())
    }

    fn unknown_use(&self) -> Option<String> {
        let (facts, host) = (self.facts, self.host());
        match self.subject {
            Subject::Process { pid, start_time_ticks, .. } => match facts.process(host.hostname, *pid) {
                None => self.unmeasured(),
                Some(id) => self.unknown_process(id, *start_time_ticks),
            },
            Subject::Environment { eid, .. } | Subject::EnvironmentDevice { eid, .. } => {
                let environment = facts.environment(host.hostname, eid)?;
                let gpus = &self.known.about.gpus;
                let hidden = || gpus.iter().find(|gpu| host.hides_use_of(self.username, **gpu));
                let mut held = facts.attachments_of(environment).iter();
                self.unmeasured()
                    .or_else(|| hidden().map(|gpu| self.hidden(*gpu)))
                    .or_else(|| held.find_map(|it| self.unmeasured_idleness(it)))
                    .or_else(|| facts.uses_of(environment).find_map(|it| self.lacks_memory(it)))
            }
            Subject::User { .. } | Subject::UserDevice { .. } => {
                let counts = |gpu: &u32| match self.subject {
                    Subject::UserDevice { index, .. } => index.gpu == *gpu,
                    _ => true,
                };
                let mut unknown = host.unknown_uses.iter();
                let hidden = unknown.find(|(gpu, it)| counts(gpu) && it.may_be_of(self.username));
                let mut uses = facts.uses_of_user(self.username);
                self.unmeasured()
                    .or_else(|| hidden.map(|(gpu, _)| self.hidden(*gpu)))
                    .or_else(|| uses.find_map(|it| self.lacks_memory(it)))
            }
        }
    }

    /// The driver does not tell the processes on a device. On one that is not listed any more no process goes on.
    fn unmeasured(&self) -> Option<String> {
        let host = self.host();
        let mut gpus = self.known.about.gpus.iter();
        let gpu = gpus.find(|&&gpu| host.device(gpu).is_some() && !host.measures_processes(gpu))?;
        Some(format!("the driver does not tell the processes on device {gpu}"))
    }

    fn hidden(&self, gpu: u32) -> String {
        let name = words::name(self.username);
        format!("a process on device {gpu} may be of {name}, and it is not known where it belongs")
    }

    fn unknown_process(&self, id: ProcessId, start_time_ticks: u64) -> Option<String> {
        let facts = &self.facts.processes[id];
        let process = facts.process;
        if process.start_time_ticks.is_some_and(|it| it != start_time_ticks) {
            return None;
        }
        let is_whole = facts.user.is_some()
            && process.start_time_ticks.is_some()
            && process.uid.is_some()
            && process.username.is_some();
        let pid = process.pid;
        (!is_whole).then(|| format!("it is not known whose process {pid} is, or where it belongs"))
    }

    /// How busy an idle device is now was not measured, or not for as long as the rule asks since it was not.
    fn unmeasured_idleness(&self, attachment: &AttachmentFacts) -> Option<String> {
        let IdleLimit { over, below } = self.view.rule.kind.idle_limit()?;
        let gpu = attachment.gpu;
        if !self.known.about.gpus.contains(&gpu) {
            return None;
        }
        if kinds::sample(self.facts, attachment).is_none() {
            return Some(format!("the use of device {gpu} is not measured"));
        }
        let known = self.history.hosts.get(self.host().hostname)?;
        let eid = &self.facts.environments[attachment.environment].environment.eid;
        let windows = known.idle.get(&self.view.rule.name)?.get(eid)?;
        let window = windows.get(gpu)?.clone();
        let window = kinds::window_now(self.facts, over, window, attachment)?;
        let lacks = window.lacks(over, below);
        let over = words::duration(over.as_secs());
        lacks.then(|| format!("the use of device {gpu} was not measured for a time, and is not yet for {over}"))
    }

    /// A rule about memory lacks the amount of a use.
    fn lacks_memory(&self, used: &UseFacts) -> Option<String> {
        let is_about_memory = self.view.rule.kind.counts_memory();
        let counts = used.host == self.host && self.known.about.gpus.contains(&used.gpu);
        let is_unknown = is_about_memory && !used.memory_is_measured && counts;
        let gpu = used.gpu;
        is_unknown.then(|| format!("the driver does not tell all memory in use on device {gpu}"))
    }
}
