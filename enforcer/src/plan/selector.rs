//! What one rule looks at.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use super::facts::{AttachmentFacts, EnvironmentId, Facts, HostId, UseFacts, UserFacts, UserId};
use super::freshness::Freshness;
use super::limits::{Applied, LimitTable};
use crate::config::{Rule, Selector};

/// The facts as one rule sees them: what its selector matches, without users who are out of reach and without hosts
/// of which nothing is known.
#[derive(Debug)]
pub(crate) struct View<'f, 'a> {
    pub(crate) facts: &'f Facts<'a>,
    pub(crate) rule: &'a Rule,
    users: Vec<bool>,
    /// Users that the selector matches, including users out of reach: an attachment that others made in a user's name
    /// is not the user's.
    named_users: Vec<bool>,
    hosts: Vec<bool>,
    /// Hosts that it matches and of which the facts that it needs are missing.
    pub(crate) missing_hosts: Vec<&'a str>,
    /// Whether the rule looks at more than environments and attachments.
    pub(crate) needs_processes: bool,
    /// Of the newest facts that it looks at.
    freshness: Freshness,
    /// Empty until it is asked for a limit.
    limits: OnceCell<LimitTable<'a>>,
}

/// The views of rules, by the names of the rules.
pub(crate) type Views<'f, 'a> = BTreeMap<&'a str, View<'f, 'a>>;

/// The views of all rules on the facts.
pub(crate) fn views<'f, 'a>(facts: &'f Facts<'a>, rules: &'a [Rule]) -> Views<'f, 'a> {
    let views = rules.iter();
    views.map(|rule| (rule.name.as_str(), View::new(facts, rule))).collect()
}

impl<'f, 'a> View<'f, 'a> {
    pub(crate) fn new(facts: &'f Facts<'a>, rule: &'a Rule) -> Self {
        let needs_processes = rule.kind.needs_processes();
        let selector = &rule.selector;
        let mut missing_hosts = Vec::new();
        let mut newest = Freshness::Missing;
        let listed = selector.hosts.as_ref().map(|hosts| facts.are_in(hosts));
        let except = facts.are_in(&selector.except_hosts);
        let hosts = facts.hosts.iter().enumerate().map(|(id, host)| {
            let matches = listed.as_ref().is_none_or(|listed| listed[id]) && !except[id];
            let freshness = host.freshness.for_rule(needs_processes);
            let missing = freshness == Freshness::Missing;
            if matches {
                newest = newest.max(freshness);
            }
            if matches && missing {
                missing_hosts.push(host.hostname);
            }
            matches && !missing
        });
        let hosts = hosts.collect();
        let users = facts.users.iter();
        let named_users: Vec<bool> = users.map(|user| matches_user(selector, user)).collect();
        let users = facts.users.iter().zip(&named_users);
        let users = users.map(|(user, is_named)| !user.never && *is_named);
        Self {
            facts,
            rule,
            users: users.collect(),
            named_users,
            hosts,
            missing_hosts,
            needs_processes,
            freshness: newest,
            limits: OnceCell::new(),
        }
    }

    pub(crate) fn sees_user(&self, user: UserId) -> bool {
        self.users[user]
    }

    pub(crate) fn sees_host(&self, host: HostId) -> bool {
        self.hosts[host]
    }

    pub(crate) fn sees_gpu(&self, gpu: u32) -> bool {
        let selector = &self.rule.selector;
        let listed = selector.devices.as_ref();
        listed.is_none_or(|devices| devices.contains(&gpu)) && !selector.except_devices.contains(&gpu)
    }

    /// Attachments, sorted by user, host and GPU.
    pub(crate) fn attachments(&self) -> impl Iterator<Item = usize> {
        let ids = self.facts.attachments_by_user.iter().copied();
        ids.filter(|&id| self.sees_attachment(&self.facts.attachments[id]))
    }

    pub(crate) fn sees_attachment(&self, attachment: &AttachmentFacts) -> bool {
        let is_in_reach = self.users[attachment.user] || attachment.unconfirmed && self.named_users[attachment.user];
        is_in_reach && self.hosts[attachment.host] && self.sees_gpu(attachment.gpu)
    }

    /// Whether the rule sees an environment: one of a user in reach, or one that has only attachments that its user may
    /// not have made.
    pub(crate) fn sees_environment(&self, id: EnvironmentId) -> bool {
        let environment = &self.facts.environments[id];
        let mut attachments = self.facts.attachments[environment.attachments.clone()].iter();
        let is_in_reach = self.users[environment.user]
            || self.named_users[environment.user] && attachments.len() > 0 && attachments.all(|it| it.unconfirmed);
        is_in_reach && self.hosts[environment.host]
    }

    /// Uses by processes of which the user is known, sorted by user, host and GPU.
    pub(crate) fn uses(&self) -> impl Iterator<Item = &'f UseFacts> {
        let positions = self.facts.uses_by_user.iter();
        let uses = positions.map(|&position| &self.facts.uses[position]);
        uses.filter(|used| {
            used.user.is_some_and(|user| self.users[user]) && self.hosts[used.host] && self.sees_gpu(used.gpu)
        })
    }

    /// The limit of a user, on a host or over all; absent: none.
    pub(crate) fn limit(&self, user: UserId, host: Option<HostId>) -> Option<Applied<'a>> {
        let limits = self.rule.kind.limits()?;
        let table = self.limits.get_or_init(|| LimitTable::new(limits, self.facts));
        table.get(self.facts, user, host)
    }

    /// How fresh the facts are that a violation is concluded from, on a host or over all.
    pub(crate) fn freshness(&self, host: Option<HostId>) -> Freshness {
        host.map_or(self.freshness, |host| self.facts.hosts[host].freshness.for_rule(self.needs_processes))
    }
}

fn matches_user(selector: &Selector, user: &UserFacts<'_>) -> bool {
    let is_in_any = |names: &BTreeSet<String>| Some(!user.groups?.is_disjoint(names));
    let listed = selector.users.as_ref();
    let grouped = selector.groups.as_ref();
    listed.is_none_or(|users| user.is_in(users))
        // Nobody is matched, or not excepted, because of groups that could not be told.
        && grouped.is_none_or(|names| is_in_any(names).unwrap_or(false))
        && !user.is_in(&selector.except_users)
        && (selector.except_groups.is_empty()
            || !is_in_any(&selector.except_groups).unwrap_or(true))
}
