//! Why a rule ends a process, or does not: each rule by itself, with the limit that applies.

use std::collections::{BTreeMap, BTreeSet};

use genv_core::model::{Attribution, DeviceIndex, Process};
use serde::Serialize;

use super::facts::{Facts, ProcessFacts, UseFacts, UserId};
use super::history::Past;
use super::hold::Hold;
use super::left_behind::Contexts;
use super::selector::View;
use super::{History, Input, Stage, Subject, Target, Violation, judge, selector, words};
use crate::config::{Action, Limits, Rule, Scope};
use crate::kinds::{self, JudgedProcesses, Kind};

/// What the rules make of a process that uses a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// As the snapshot shows it.
    pub process: Process,
    /// For whom it runs; absent if nobody knows.
    pub username: Option<String>,
    /// Why no rule can reach it, in one clause.
    pub out_of_reach: Option<String>,
    /// GPUs on which it has a context that a detach left behind.
    pub left_behind: Vec<u32>,
    /// All rules, in their order.
    pub rules: Vec<RuleExplanation>,
}

/// What one rule makes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleExplanation {
    /// Its name.
    pub rule: String,
    /// What it forbids.
    pub kind: &'static str,
    /// What it does in the end.
    pub action: Action,
    /// How the process stands to it.
    pub standing: Standing,
    /// Why, in one clause.
    pub why: String,
    /// What it counts of the user or the environment, whether or not that is too much.
    pub found: Option<String>,
    /// The limit that applies and by what.
    pub limit: Option<String>,
    /// Why it would wait, if it were broken now.
    pub waits: Option<String>,
    /// What breaks it and has to do with the process.
    pub violations: Vec<Violation>,
}

/// How a process stands to a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The rule does not look at it.
    NotMatched,
    /// The quantity that the rule judges is not measured.
    NotJudged,
    /// Nothing that has to do with it breaks the rule.
    Kept,
    /// Its user or environment breaks the rule, and the process would not end by that.
    Spared,
    /// It would end, if the violation did not wait.
    Held,
    /// The signal was sent, and no step follows.
    Done,
    /// It ends, once its time has come.
    Ends,
}

/// What the rules make of a process; nothing if the snapshot does not show it on a device.
pub fn explain(input: &Input<'_>, history: &History, hostname: &str, pid: u32) -> Option<Explanation> {
    let facts = Facts::new(input, history);
    let host = facts.host(hostname)?;
    let mut ids = facts.hosts[host].processes.clone();
    let id = ids.find(|&id| facts.processes[id].process.pid == pid)?;
    let process = &facts.processes[id];
    let views = selector::views(&facts, &input.config.rules);
    let plan = judge::plan(input, history, &facts, &views);
    let mut by_rule: BTreeMap<&str, Vec<Violation>> = BTreeMap::new();
    let subject = About { facts: &facts, process };
    for violation in &plan.violations {
        let mut rules = input.config.rules.iter();
        let rule = rules.find(|rule| rule.name == violation.key.rule);
        if rule.is_some_and(|rule| subject.concerns(&violation.key.subject, &*rule.kind)) {
            let of_rule = by_rule.entry(&violation.key.rule).or_default();
            of_rule.push(violation.clone());
        }
    }
    let past = Past::new(history, &facts);
    let rules = input.config.rules.iter().map(|rule| {
        let violations = by_rule.remove(rule.name.as_str()).unwrap_or_default();
        subject.rule(input, history, &past, rule, violations)
    });
    let left_behind = plan.left_behind.iter();
    let left_behind = left_behind.filter(|it| it.hostname == hostname && it.pid == pid);
    Some(Explanation {
        left_behind: left_behind.map(|it| it.gpu).collect(),
        rules: rules.collect(),
        process: process.process.clone(),
        username: process.user.map(|user| facts.users[user].name.to_owned()),
        out_of_reach: subject.out_of_reach(),
    })
}

/// The process that it is about.
struct About<'f, 'a> {
    facts: &'f Facts<'a>,
    process: &'f ProcessFacts<'a>,
}

impl About<'_, '_> {
    fn uses(&self) -> &[UseFacts] {
        &self.facts.uses[self.process.uses.clone()]
    }

    fn gpus(&self) -> impl Iterator<Item = u32> {
        self.uses().iter().map(|used| used.gpu)
    }

    /// Its user, as far as a kind of rule looks at it: only one of them looks at processes of which it is not known where they
    /// belong.
    fn user_for(&self, kind: &dyn Kind) -> Option<UserId> {
        let unknown = self.process.unknown_owner.filter(|_| kind.looks_at_unknown());
        self.process.user.or(unknown)
    }

    fn eid(&self) -> Option<&str> {
        Some(&self.facts.environments[self.process.environment?].environment.eid)
    }

    /// Whether a violation has to do with the process, its environment or its user.
    fn concerns(&self, subject: &Subject, kind: &dyn Kind) -> bool {
        let hostname = self.facts.hosts[self.process.host].hostname;
        let here = subject.hostname().is_none_or(|it| it == hostname);
        let uses = |index: &DeviceIndex| self.gpus().any(|gpu| gpu == index.gpu);
        let user = self.user_for(kind);
        let user = user.map(|user| self.facts.users[user].name);
        here && match subject {
            Subject::Process { pid, .. } => *pid == self.process.process.pid,
            Subject::Environment { eid, .. } => self.eid() == Some(eid),
            Subject::EnvironmentDevice { eid, index, .. } => self.eid() == Some(eid) && uses(index),
            Subject::User { username, .. } => user == Some(username),
            Subject::UserDevice { username, index, .. } => user == Some(username) && uses(index),
        }
    }

    fn is_target(&self, target: &Target) -> bool {
        let hostname = self.facts.hosts[self.process.host].hostname;
        let process = self.process.process;
        target.processes().iter().any(|it| {
            it.pid == process.pid && it.hostname == hostname && process.start_time_ticks == Some(it.start_time_ticks)
        })
    }

    /// Why no rule can reach it.
    fn out_of_reach(&self) -> Option<String> {
        if self.process.within_reach {
            return None;
        }
        let process = self.process.process;
        Some(match (&process.attribution, self.process.user) {
            (Attribution::Unknown { reason }, _) => format!(
                "nobody knows where it belongs ({}), and what is unknown is never acted upon",
                words::name(reason)
            ),
            _ if process.pid <= 1 => "pid 1 is never ended".to_owned(),
            (_, None) => "nobody knows whose it is, and what is unknown is never acted upon".to_owned(),
            _ if process.start_time_ticks.is_none() || process.uid.is_none() => {
                "it was gone before it was read".to_owned()
            }
            _ if process.uid == Some(0) => "it is root's, outside of containers".to_owned(),
            (_, Some(user)) => format!("its user, {}, is listed under never", words::name(self.facts.users[user].name)),
        })
    }

    fn rule(
        &self,
        input: &Input<'_>,
        history: &History,
        past: &Past<'_>,
        rule: &Rule,
        violations: Vec<Violation>,
    ) -> RuleExplanation {
        let view = View::new(self.facts, rule);
        let hostname = self.facts.hosts[self.process.host].hostname;
        let all_hosts = rule.kind.scope() == Scope::AllHosts;
        let place = (!all_hosts).then_some(self.process.host);
        let unmatched = self.unmatched(&view);
        let user = self.user_for(&*rule.kind);
        let matched = user.filter(|_| unmatched.is_none());
        let limit = matched.zip(rule.kind.definition().limit).map(|(user, quantity)| {
            let name = words::name(self.facts.users[user].name);
            match view.limit(user, place) {
                Some(limit) => format!("{} {limit}", quantity.amount(limit.value)),
                None => format!("no limit for {name}"),
            }
        });
        let waits = matched.and_then(|user| {
            let host = (!all_hosts).then_some(hostname);
            Hold::new(input, rule).why(&self.facts.users[user], host)
        });
        let mut own = violations.iter().filter(|it| it.key.subject.hostname().is_none() == all_hosts);
        let found = matched.and_then(|_| match (rule.kind.limits(), own.next()) {
            (Some(_), Some(violation)) => Some(violation.found()),
            _ => self.counted(past, rule, input.now_seconds),
        });
        let contexts = Contexts::new(self.facts, past, input.now_seconds);
        let ends = |violation: &&Violation| rule.action.acts() && violation.targets.iter().any(|it| self.is_target(it));
        let is_held = |violation: &Violation| matches!(violation.stage, Stage::Held { .. });
        let is_done = |violation: &Violation| {
            let known = history.violation(rule, &violation.key);
            let is_rehearsed = known.is_none_or(|known| known.rehearsed);
            let kill_seconds = match violation.stage {
                Stage::Acted { kill_seconds, .. } => Some(kill_seconds),
                _ => None,
            };
            kill_seconds == Some(None) && !is_rehearsed
        };
        let ending: Vec<&Violation> = violations.iter().filter(ends).collect();
        let standing = if unmatched.is_some() {
            Standing::NotMatched
        } else if violations.is_empty() && !self.unmeasured(&view).is_empty() {
            Standing::NotJudged
        } else if violations.is_empty() {
            Standing::Kept
        } else if ending.is_empty() {
            Standing::Spared
        } else if ending.iter().all(|it| is_held(it)) {
            Standing::Held
        } else if ending.iter().all(|it| is_held(it) || is_done(it)) {
            Standing::Done
        } else {
            Standing::Ends
        };
        let why = match standing {
            Standing::NotMatched => unmatched.unwrap_or_default(),
            Standing::NotJudged => words::not_measured(self.unmeasured(&view)),
            Standing::Kept => self.kept(rule, &contexts),
            Standing::Spared if !rule.action.acts() => {
                format!("the rule is broken, and only does this: {}", rule.action.word())
            }
            Standing::Spared => "the rule is broken, and what ends that does not end this process".to_owned(),
            Standing::Held => "it would end, and the violation waits".to_owned(),
            Standing::Done => "the rule sent it a signal, the process still runs, and nothing more follows".to_owned(),
            Standing::Ends => "it ends, once its time has come".to_owned(),
        };
        RuleExplanation {
            rule: rule.name.clone(),
            kind: rule.kind.word(),
            action: rule.action,
            standing,
            why,
            found,
            limit,
            waits,
            violations,
        }
    }

    /// Why the rule does not look at it.
    fn unmatched(&self, view: &View<'_, '_>) -> Option<String> {
        let selector = &view.rule.selector;
        let host = &self.facts.hosts[self.process.host];
        let Some(user) = self.user_for(&*view.rule.kind) else {
            return self.out_of_reach();
        };
        if view.missing_hosts.contains(&host.hostname) {
            return Some("the facts of its host are missing or too old".to_owned());
        }
        if !view.sees_host(self.process.host) {
            return Some(format!("it does not look at {}", words::name(host.hostname)));
        }
        if !view.sees_user(user) {
            let known = &self.facts.users[user];
            let name = words::name(known.name);
            return Some(if known.never {
                format!("{name} is listed under never")
            } else if known.is_in(&selector.except_users) {
                format!("{name} is excepted")
            } else if selector.users.as_ref().is_some_and(|it| !known.is_in(it)) {
                format!("it does not look at {name}")
            } else if let Some(groups) = known.groups {
                let mut excepted = selector.except_groups.intersection(groups);
                match excepted.next() {
                    Some(group) => {
                        format!("{name} is excepted as a member of {}", words::name(group))
                    }
                    None => format!("{name} is in none of its groups"),
                }
            } else {
                format!("the groups of {name} are not known")
            });
        }
        if !self.gpus().any(|gpu| view.sees_gpu(gpu)) {
            return Some(format!("it does not look at {}", words::devices(self.gpus())));
        }
        let process = self.process.process;
        let kind = &view.rule.kind;
        match (kind.processes(), self.process.environment) {
            (JudgedProcesses::OutsideEnvironments, Some(_)) => Some("the process is in an environment".to_owned()),
            (JudgedProcesses::InEnvironments, None) => Some("the process is in no environment".to_owned()),
            _ if kind.judges_each_process() && !self.process.within_reach => {
                self.out_of_reach().or_else(|| Some(words::process(process.pid, process.comm.as_deref())))
            }
            _ => None,
        }
    }

    /// What a rule that is not broken counts: what it would find if nothing were allowed.
    fn counted(&self, past: &Past<'_>, rule: &Rule, now_seconds: f64) -> Option<String> {
        let nothing = Rule { kind: rule.kind.with_limits(Limits::nothing())?, ..rule.clone() };
        let view = View::new(self.facts, &nothing);
        let findings = kinds::findings(&view, past, now_seconds);
        let mut findings = findings.into_iter();
        let finding = findings.find(|finding| self.concerns(&finding.subject, &*rule.kind));
        finding.map(|finding| finding.fact.found())
    }

    /// Devices that its environment holds and the process uses, and whose use a rule about idle devices cannot measure.
    fn unmeasured(&self, view: &View<'_, '_>) -> BTreeSet<u32> {
        let is_idle = view.rule.kind.idle_limit().is_some();
        let held = self.process.environment.filter(|_| is_idle);
        let held = held.map_or(&[][..], |id| self.facts.attachments_of(id));
        held.iter()
            .filter(|it| self.gpus().any(|gpu| gpu == it.gpu))
            .filter(|it| kinds::is_unmeasured(self.facts, it))
            .map(|it| it.gpu)
            .collect()
    }

    fn kept(&self, rule: &Rule, contexts: &Contexts<'_, '_>) -> String {
        let uses = self.uses();
        if uses.iter().all(|used| !used.shows_use) {
            return "the driver lists it without memory and without utilization, which is no use".to_owned();
        }
        if rule.kind.forbids_unattached_use() {
            let left = |used: &UseFacts| Some((used.gpu, contexts.left_behind(used, rule.busy())?));
            if let Some((gpu, works_on)) = uses.iter().find_map(left) {
                let is_seen = self.gpus().any(|used| used == works_on);
                let works = if is_seen { "works" } else { "may work" };
                return format!(
                    "a detach left its context on device {gpu} behind, and it {works} on device {works_on}, which its \
                     environment holds"
                );
            }
        }
        rule.kind.kept().to_owned()
    }
}
