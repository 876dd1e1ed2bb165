//! Whether a violation that is not found is over, or only not known.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::ViolationHistory;
use crate::config::{Rule, RuleKind};
use crate::plan::facts::{Facts, HostFacts, HostId, ProcessId, UseFacts};
use crate::plan::selector::View;
use crate::plan::{Subject, rules};

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
}

/// Environments that are kept of one violation.
const MOST_ENVIRONMENTS: usize = 64;

impl About {
    pub(super) const fn new() -> Self {
        Self {
            username: None,
            gpus: BTreeSet::new(),
            eids: BTreeSet::new(),
        }
    }

    pub(super) fn of(facts: &Facts<'_>, subject: &Subject, username: &str) -> Self {
        let mut about = Self {
            username: Some(username.to_owned()),
            ..Self::default()
        };
        let hostname = subject.hostname();
        match subject {
            Subject::Process { hostname, pid, .. } => {
                if let Some(id) = facts.process(hostname, *pid) {
                    about.add_process(facts, id);
                }
            }
            Subject::Environment { hostname, eid } => {
                about.eids.insert((hostname.clone(), eid.clone()));
                if let Some(id) = facts.environment(hostname, eid) {
                    let held = facts.attachments_of(id).iter().map(|it| it.gpu);
                    about.gpus.extend(held);
                    about.gpus.extend(facts.uses_of(id).map(|used| used.gpu));
                }
            }
            Subject::EnvironmentDevice {
                hostname,
                eid,
                index,
            } => {
                about.eids.insert((hostname.clone(), eid.clone()));
                about.gpus.insert(index.gpu);
            }
            Subject::User { .. } | Subject::UserDevice { .. } => {
                let on = |host: HostId| {
                    let host = facts.hosts[host].hostname;
                    hostname.is_none_or(|hostname| hostname == host)
                };
                for used in facts.uses_of_user(username) {
                    if on(facts.processes[used.process].host) {
                        about.add_process(facts, used.process);
                    }
                }
                for attachment in facts.attachments_of_user(username) {
                    if on(attachment.host) {
                        about.gpus.insert(attachment.gpu);
                        about.add_environment(facts, attachment.environment);
                    }
                }
            }
        }
        about
    }

    fn add_process(&mut self, facts: &Facts<'_>, id: ProcessId) {
        let process = &facts.processes[id];
        let uses = facts.uses[process.uses.clone()].iter();
        self.gpus.extend(uses.map(|used| used.gpu));
        if let Some(environment) = process.environment {
            self.add_environment(facts, environment);
        }
    }

    fn add_environment(&mut self, facts: &Facts<'_>, environment: usize) {
        if self.eids.len() < MOST_ENVIRONMENTS {
            let environment = &facts.environments[environment];
            let hostname = facts.hosts[environment.host].hostname;
            let eid = environment.environment.eid.clone();
            self.eids.insert((hostname.to_owned(), eid));
        }
    }
}

/// Whether a part of the evidence about a violation that is not found is not known, on hosts that tell something.
pub(super) fn is_unknown(
    facts: &Facts<'_>,
    view: &View<'_, '_>,
    subject: &Subject,
    known: &ViolationHistory,
) -> bool {
    let username = known.about.username.as_deref().unwrap_or_default();
    if groups_are_unknown(facts, view.rule, username) {
        return true;
    }
    let mut hosts: Vec<HostId> = match subject.hostname() {
        Some(hostname) => facts.host(hostname).into_iter().collect(),
        None => (0..facts.hosts.len()).collect(),
    };
    hosts.retain(|&host| view.sees_host(host));
    hosts.into_iter().any(|host| {
        let evidence = Evidence {
            facts,
            view,
            host,
            subject,
            known,
            username,
        };
        evidence.is_unknown()
    })
}

/// Whether nobody can tell whether a rule looks at a user, or how much it allows.
fn groups_are_unknown(facts: &Facts<'_>, rule: &Rule, username: &str) -> bool {
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
    host: HostId,
    subject: &'e Subject,
    known: &'e ViolationHistory,
    username: &'e str,
}

impl Evidence<'_, '_> {
    fn host(&self) -> &HostFacts<'_> {
        &self.facts.hosts[self.host]
    }

    fn is_unknown(&self) -> bool {
        self.is_left_out() || self.view.needs_processes() && self.use_is_unknown()
    }

    /// Whether an environment is not there that may have been left out, because a record is damaged.
    fn is_left_out(&self) -> bool {
        if !self.host().state_is_damaged() {
            return false;
        }
        let hostname = self.host().hostname;
        let here = self.known.about.eids.iter();
        let mut here = here.filter(|(host, _)| host == hostname);
        here.any(|(_, eid)| self.facts.environment(hostname, eid).is_none())
    }

    fn use_is_unknown(&self) -> bool {
        let (facts, host) = (self.facts, self.host());
        let gpus = &self.known.about.gpus;
        // On a device that is not listed any more no process goes on.
        let unmeasured = || {
            let mut listed = gpus.iter().filter(|gpu| host.lists_gpu(**gpu));
            listed.any(|&gpu| !host.measures_processes(gpu))
        };
        match self.subject {
            Subject::Process {
                pid,
                start_time_ticks,
                ..
            } => match facts.process(host.hostname, *pid) {
                None => unmeasured(),
                Some(id) => {
                    let process = &facts.processes[id];
                    let started = process.process.start_time_ticks;
                    let is_other = started.is_some_and(|started| started != *start_time_ticks);
                    let is_whole = process.user.is_some()
                        && started.is_some()
                        && process.process.uid.is_some()
                        && process.process.username.is_some();
                    !is_other && !is_whole
                }
            },
            Subject::Environment { eid, .. } | Subject::EnvironmentDevice { eid, .. } => {
                let Some(environment) = facts.environment(host.hostname, eid) else {
                    return false;
                };
                let mut held = facts.attachments_of(environment).iter();
                let idle_is_unknown = matches!(self.view.rule.kind, RuleKind::Idle { .. })
                    && held.any(|it| gpus.contains(&it.gpu) && rules::sample(facts, it).is_none());
                let hidden = |gpu: &u32| host.hides_use_of(self.username, *gpu);
                idle_is_unknown
                    || unmeasured()
                    || gpus.iter().any(hidden)
                    || facts
                        .uses_of(environment)
                        .any(|used| self.lacks_memory(used))
            }
            Subject::User { .. } | Subject::UserDevice { .. } => {
                let counts = |gpu: &u32| match self.subject {
                    Subject::UserDevice { index, .. } => index.gpu == *gpu,
                    _ => true,
                };
                let mut unknown = host.unknown_uses.iter();
                let mut uses = facts.uses_of_user(self.username);
                unmeasured()
                    || unknown.any(|(gpu, it)| counts(gpu) && it.may_be_of(self.username))
                    || uses.any(|used| {
                        facts.processes[used.process].host == self.host && self.lacks_memory(used)
                    })
            }
        }
    }

    /// Whether a rule about memory lacks the amount of a use.
    fn lacks_memory(&self, used: &UseFacts) -> bool {
        let is_about_memory = matches!(
            self.view.rule.kind,
            RuleKind::EnvMemory | RuleKind::MaxMemoryPerUser { .. }
        );
        is_about_memory && !used.memory_is_measured && self.known.about.gpus.contains(&used.gpu)
    }
}
