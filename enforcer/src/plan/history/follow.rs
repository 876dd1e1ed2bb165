//! What was seen in a cycle.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{History, ViolationHistory};
use crate::config::{Action, Rule};
use crate::plan::facts::{Facts, HostId};
use crate::plan::freshness::Freshness;
use crate::plan::hold::Hold;
use crate::plan::judge::is_open;
use crate::plan::selector::Views;
use crate::plan::{Input, Key, Plan, Stage, Subject, Target, Violation};

/// For how long a process that was signalled is remembered though no device lists it, while not all processes are known.
const LONGEST_UNLISTED_SECONDS: f64 = 3600.0;

impl History {
    /// Notes the findings of a cycle's plan.
    pub(in crate::plan) fn follow<'a>(
        &mut self,
        input: &Input<'a>,
        facts: &Facts<'a>,
        views: &Views<'_, 'a>,
        plan: &Plan,
    ) {
        // Before the first publication nobody is there, and nobody is gone.
        if input.hosts.is_empty() {
            return;
        }
        self.follow_violations(input, facts, views, plan);
        for host in 0..facts.hosts.len() {
            self.follow_host(input, facts, views, host);
        }
        self.hosts.retain(|hostname, _| facts.host(hostname).is_some());
    }

    fn follow_violations<'a>(&mut self, input: &Input<'_>, facts: &Facts<'a>, views: &Views<'_, 'a>, plan: &Plan) {
        let now = input.now_seconds;
        let holds = input.config.rules.iter().map(|rule| (rule.name.as_str(), Hold::new(input, rule)));
        let holds: BTreeMap<&str, Hold<'_>> = holds.collect();
        let mut planned: Vec<&Violation> = plan.violations.iter().collect();
        planned.sort_by_key(|violation| &violation.key);
        let mut planned = planned.into_iter().peekable();
        let mut violations = std::mem::take(&mut self.violations);
        let (mut new, mut others) = (Vec::new(), Vec::new());
        for (key, known) in &mut violations {
            new.extend(std::iter::from_fn(|| planned.next_if(|it| it.key < *key)));
            if planned.peek().is_none_or(|it| it.key != *key) {
                others.push(key.clone());
            }
            while let Some(violation) = planned.next_if(|it| it.key == *key) {
                let rule = views[key.rule.as_str()].rule;
                let unconfirmed = violation.unconfirmed;
                let is_of_rule = self.knows(rule);
                if is_of_rule && known.unconfirmed != unconfirmed {
                    self.remember(rule, key, known, now);
                }
                if !is_of_rule || !known.counts_for(unconfirmed) {
                    new.push(violation);
                    continue;
                }
                let user = (violation.username.as_str(), unconfirmed);
                let last = Some(Cow::Borrowed(&*known));
                let farther = self.progress(facts, rule, key, user, last, now);
                if let Some(Cow::Owned(farther)) = farther {
                    *known = farther;
                }
                self.follow_violation(input, &holds, views, plan, violation, known);
            }
        }
        self.violations = violations;
        let new = new.into_iter().chain(planned).map(|violation| {
            let key = &violation.key;
            let rule = views[key.rule.as_str()].rule;
            let user = (violation.username.as_str(), violation.unconfirmed);
            let known = self.progress(facts, rule, key, user, None, now);
            let mut known = known.map_or_else(|| ViolationHistory::begin(now), Cow::into_owned);
            self.follow_violation(input, &holds, views, plan, violation, &mut known);
            (key.clone(), known)
        });
        let new: Vec<(Key, ViolationHistory)> = new.collect();
        self.violations.extend(new);
        // The others are over, unless that is not known.
        for key in others {
            let Some(known) = self.violations.get_mut(&key) else {
                continue;
            };
            let frozen = plan.frozen.binary_search_by(|frozen| frozen.key.cmp(&key));
            if let Ok(position) = frozen {
                known.unknown_seconds = Some(plan.frozen[position].unknown_since_seconds);
                known.seen.wait();
                continue;
            }
            let known = self.violations.remove(&key);
            let view = views.get(key.rule.as_str());
            if let Some((view, known)) = view.filter(|it| self.knows(it.rule)).zip(known) {
                self.remember(view.rule, &key, &known, now);
            }
        }
        self.forget_old_progress(&input.config.rules, now);
        let rules = input.config.rules.iter();
        self.kinds = rules.map(|rule| (rule.name.clone(), rule.kind.word().to_owned())).collect();
    }

    /// Notes a plan's findings about a violation.
    fn follow_violation(
        &self,
        input: &Input<'_>,
        holds: &BTreeMap<&str, Hold<'_>>,
        views: &Views<'_, '_>,
        plan: &Plan,
        violation: &Violation,
        known: &mut ViolationHistory,
    ) {
        let (key, now) = (&violation.key, input.now_seconds);
        let view = &views[key.rule.as_str()];
        let (facts, rule) = (view.facts, view.rule);
        known.unconfirmed = violation.unconfirmed;
        known.about.follow(facts, &key.subject, &violation.username);
        known.unknown_seconds = None;
        known.since_seconds = violation.since_seconds;
        let open = |target: &Target| is_open(self, facts, rule, target);
        let host = violation.hostname.as_deref();
        let host = host.and_then(|hostname| facts.host(hostname));
        let is_new = view.freshness(host) == Freshness::New;
        let acted_before = known.acted_seconds.is_some_and(|acted| acted < now);
        if is_new && acted_before && wants_new_round(rule, known, &violation.targets, open) {
            if known.may_resume(rule, now) {
                known.resume();
            } else {
                known.begin_round(now);
            }
        }
        if let Stage::Held { .. } = violation.stage {
            if holds[key.rule.as_str()].resets() {
                known.begin_round(now);
            }
            known.seen.wait();
        } else if is_new {
            known.seen.observe(now, facts.longest_gap_seconds(host));
        }
        known.put_off = plan.put_off.contains(key);
        let acts_first = known.acted_seconds.is_none_or(|acted| acted >= now);
        if violation.stage == Stage::Due && acts_first && is_new {
            let open = violation.targets.iter().filter(|target| open(target));
            known.chosen.extend(open.map(Target::identity));
        }
    }

    fn follow_host<'a>(&mut self, input: &Input<'_>, facts: &Facts<'a>, views: &Views<'_, 'a>, id: HostId) {
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

        if freshness.state == Freshness::New && !host.state_is_damaged() {
            known.attachments.retain(|eid, gpus| {
                let environment = facts.environment(host.hostname, eid);
                let held = environment.map_or(&[][..], |id| facts.attachments_of(id));
                gpus.retain(|gpu, _| held.iter().any(|it| it.gpu == *gpu));
                !gpus.is_empty()
            });
        }
        if freshness.gpu < Freshness::New {
            if freshness.gpu == Freshness::Missing && freshness.state == Freshness::New {
                known.fail_idle();
            }
            return;
        }
        if let Some(snapshot) = host.snapshot {
            known.follow_gone(snapshot, freshness, input.now_seconds);
        }
        if !known.processes.is_empty() {
            let running: BTreeMap<u32, Option<u64>> = facts.processes[host.processes.clone()]
                .iter()
                .map(|process| (process.process.pid, process.process.start_time_ticks))
                .collect();
            let lists_all = host.measures_all_processes();
            let (now, gap) = (input.now_seconds, freshness.longest_gap_seconds);
            known.processes.retain(|pid, process| {
                let listed = running.get(pid);
                if let Some(Some(started)) = listed {
                    process.seen.observe(now, gap);
                    return *started == process.start_time_ticks;
                }
                process.seen.wait();
                let acted = process.killed_seconds.or(process.terminated_seconds);
                let is_recent = acted.is_some_and(|acted| (now - acted).abs() <= LONGEST_UNLISTED_SECONDS);
                listed.is_some() || known.gone.contains_key(pid) || !lists_all && is_recent
            });
        }
        known.follow_gpus(facts, id);
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
