//! What was seen in a cycle.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::evidence::About;
use super::{History, ViolationHistory};
use crate::config::{Action, Rule};
use crate::plan::facts::{Facts, HostId};
use crate::plan::freshness::Freshness;
use crate::plan::judge::is_open;
use crate::plan::selector::View;
use crate::plan::{Input, Key, Plan, Stage, Subject, Target, hold};

/// For how long a process that was signalled is remembered though no device lists it, while not all processes are known.
const LONGEST_UNLISTED_SECONDS: f64 = 3600.0;

impl History {
    /// Notes what the plan of a cycle found: what is seen and since when, what is gone, and how busy attachments were. What
    /// the input does not show now, because a host is silent, is kept as it is.
    pub fn follow(&mut self, input: &Input<'_>, plan: &Plan) {
        // Before the first publication nobody is there, and nobody is gone.
        if input.hosts.is_empty() {
            return;
        }
        let facts = Facts::new(input, self);
        let views: BTreeMap<&str, View<'_, '_>> = input
            .config
            .rules
            .iter()
            .map(|rule| (rule.name.as_str(), View::new(&facts, rule)))
            .collect();
        self.follow_violations(input, &facts, &views, plan);
        for host in 0..facts.hosts.len() {
            self.follow_host(input, &facts, &views, host);
        }
        self.hosts
            .retain(|hostname, _| facts.host(hostname).is_some());
    }

    fn follow_violations<'a>(
        &mut self,
        input: &Input<'_>,
        facts: &Facts<'a>,
        views: &BTreeMap<&str, View<'_, 'a>>,
        plan: &Plan,
    ) {
        let now = input.now_seconds;
        let mut seen: BTreeMap<Key, ViolationHistory> = BTreeMap::new();
        for violation in &plan.violations {
            let Some(view) = views.get(violation.key.rule.as_str()) else {
                continue;
            };
            let rule = view.rule;
            let username = violation.username.as_str();
            let known = self.violations.remove_entry(&violation.key);
            let (key, known) = known.map_or_else(
                || (violation.key.clone(), None),
                |(key, known)| (key, Some(known)),
            );
            let known = known.filter(|_| self.knows(rule));
            let unconfirmed = plan.unconfirmed.contains(&key);
            if let Some(known) = known.as_ref().filter(|it| it.unconfirmed != unconfirmed) {
                self.remember(rule, &key, known, now);
            }
            let known = known.filter(|known| known.counts_for(unconfirmed));
            let known = known.map(Cow::Owned);
            let known = self.progress(facts, rule, &key, (username, unconfirmed), known, now);
            let mut known = known.map_or_else(|| ViolationHistory::begin(now), Cow::into_owned);
            known.unconfirmed = unconfirmed;
            known.about = About::of(facts, &key.subject, username);
            known.unknown_seconds = None;
            known.since_seconds = violation.since_seconds;
            let open = |target: &Target| is_open(self, rule, target);
            let acted_before = known.acted_seconds.is_some_and(|acted| acted < now);
            if acted_before && wants_new_round(rule, &known, &violation.targets, open) {
                if known.may_resume(rule, now) {
                    known.resume();
                } else {
                    known.begin_round(now);
                }
            }
            let hostname = violation.hostname.as_deref();
            let host = hostname.and_then(|hostname| facts.host(hostname));
            if let Stage::Held { .. } = violation.stage {
                if hold::resets(rule, now, &input.config.timezone) {
                    known.begin_round(now);
                }
                known.seen.wait();
            } else if view.freshness(host) == Freshness::New {
                known.seen.observe(now, facts.longest_gap_seconds(host));
            }
            known.put_off = plan.put_off.contains(&key);
            let acts_first = known.acted_seconds.is_none_or(|acted| acted >= now);
            if violation.stage == Stage::Due && acts_first {
                let open = violation.targets.iter().filter(|target| open(target));
                known.chosen.extend(open.map(Target::identity));
            }
            seen.insert(key, known);
        }
        // The others are over, unless that is not known.
        for frozen in &plan.frozen {
            if let Some((key, mut known)) = self.violations.remove_entry(&frozen.key) {
                known.unknown_seconds = Some(frozen.unknown_since_seconds);
                known.seen.wait();
                seen.insert(key, known);
            }
        }
        for (key, known) in std::mem::take(&mut self.violations) {
            let view = views.get(key.rule.as_str());
            if let Some(view) = view.filter(|view| self.knows(view.rule)) {
                self.remember(view.rule, &key, &known, now);
            }
        }
        self.violations = seen;
        self.forget_old_progress(&input.config.rules, now);
        let rules = input.config.rules.iter();
        self.kinds = rules
            .map(|rule| (rule.name.clone(), rule.kind.word().to_owned()))
            .collect();
    }

    fn follow_host<'a>(
        &mut self,
        input: &Input<'_>,
        facts: &Facts<'a>,
        views: &BTreeMap<&str, View<'_, 'a>>,
        id: HostId,
    ) {
        let host = &facts.hosts[id];
        let freshness = &host.freshness;
        if freshness.read.snapshot_seconds.is_none() {
            return;
        }
        let known = self.hosts.entry(host.hostname.to_owned()).or_default();
        known.read.follow(freshness, input.now_seconds);
        if freshness.state == Freshness::Missing {
            return;
        }

        let environments = &facts.environments[host.environments.clone()];
        let state_is_known = freshness.state == Freshness::New && !host.state_is_damaged();
        if state_is_known && !known.attachments.is_empty() {
            let held: BTreeSet<(&str, u32)> = environments
                .iter()
                .flat_map(|environment| {
                    let eid = environment.environment.eid.as_str();
                    let attachments = &facts.attachments[environment.attachments.clone()];
                    attachments
                        .iter()
                        .map(move |attachment| (eid, attachment.gpu))
                })
                .collect();
            known.attachments.retain(|eid, gpus| {
                gpus.retain(|gpu, _| held.contains(&(eid.as_str(), *gpu)));
                !gpus.is_empty()
            });
        }
        if freshness.gpu < Freshness::New {
            return;
        }
        if !known.processes.is_empty() {
            let running: BTreeMap<u32, Option<u64>> = facts.processes[host.processes.clone()]
                .iter()
                .map(|process| (process.process.pid, process.process.start_time_ticks))
                .collect();
            let lists_all = host.measures_all_processes();
            let (now, gap) = (input.now_seconds, freshness.longest_gap_seconds);
            known
                .processes
                .retain(|pid, process| match running.get(pid) {
                    Some(Some(started)) => {
                        process.seen.observe(now, gap);
                        *started == process.start_time_ticks
                    }
                    Some(None) => {
                        process.seen.wait();
                        true
                    }
                    None => {
                        process.seen.wait();
                        let acted = process.killed_seconds.or(process.terminated_seconds);
                        let age = acted.map(|acted| (now - acted).abs());
                        !lists_all && age.is_some_and(|age| age <= LONGEST_UNLISTED_SECONDS)
                    }
                });
        }
        known.follow_contexts(facts, id, input.now_seconds);
        known.follow_hidden(facts, id, &input.config.rules, input.now_seconds);
        known.follow_idle(id, views);
    }
}

/// Whether all that a violation was for is done, and something came that nobody was warned of.
pub(in crate::plan) fn wants_new_round(
    rule: &Rule,
    known: &ViolationHistory,
    targets: &[Target],
    is_open: impl Fn(&Target) -> bool,
) -> bool {
    if rule.action <= Action::Warn || known.acted_seconds.is_none() {
        return false;
    }
    let mut open = targets.iter().filter(|target| is_open(target)).peekable();
    open.peek().is_some() && open.all(|target| !known.chosen.contains(&target.identity()))
}

impl Target {
    /// What makes it the same one in the next cycle.
    pub(in crate::plan) fn identity(&self) -> Subject {
        match self {
            Self::Process(target) => Subject::Process {
                hostname: target.hostname.clone(),
                pid: target.pid,
                start_time_ticks: target.start_time_ticks,
            },
            Self::Attachment(target) => target.identity(),
        }
    }
}
