//! From what breaks a rule to what is done about it now.

use std::collections::BTreeSet;

use super::facts::{AttachmentFacts, AttachmentId, Facts, HostId, ProcessId};
use super::freshness::Freshness;
use super::history::{ProcessHistory, ViolationHistory, wants_new_round};
use super::ladder::{Rung, rung};
use super::relief::{Candidate, choose};
use super::rules::{self, Finding, Piece, Unit};
use super::selector::View;
use super::{
    AttachmentTarget, History, Input, Key, Plan, ProcessTarget, Stage, Step, StepKind, Target,
    Violation, hold, words,
};
use crate::config::{Action, DetachedProcesses, Rule};

/// See [`super::plan`].
pub(super) fn plan(input: &Input<'_>, history: &History) -> Plan {
    let facts = Facts::new(input, history);
    let mut judge = Judge {
        input,
        history,
        facts: &facts,
        ending: BTreeSet::new(),
        detaching: BTreeSet::new(),
        plan: Plan::default(),
    };
    for host in &facts.hosts {
        let hostname = || host.hostname.to_owned();
        if host.freshness.state == Freshness::Missing {
            judge.plan.missing_hosts.insert(hostname());
        } else if host.unknown_processes > 0 {
            let unknown = &mut judge.plan.unknown_processes;
            unknown.insert(hostname(), host.unknown_processes);
        }
    }
    for rule in &input.config.rules {
        let view = View::new(&facts, rule);
        let mut findings = rules::findings(&view, history, input.now_seconds);
        findings.sort_by(|a, b| a.subject.cmp(&b.subject));
        for finding in findings {
            judge.judge(&view, finding);
        }
    }
    judge.plan
}

struct Judge<'j, 'a> {
    input: &'j Input<'a>,
    history: &'j History,
    facts: &'j Facts<'a>,
    /// What this plan ends already.
    ending: BTreeSet<ProcessId>,
    /// What this plan detaches already.
    detaching: BTreeSet<AttachmentId>,
    plan: Plan,
}

impl Judge<'_, '_> {
    fn judge(&mut self, view: &View<'_, '_>, finding: Finding) {
        let rule = view.rule;
        let now = self.input.now_seconds;
        let user = &self.facts.users[finding.user];
        let hostname = finding.host.map(|host| self.facts.hosts[host].hostname);
        let key = Key {
            rule: rule.name.clone(),
            subject: finding.subject,
        };

        let relief = self.relief(rule, &finding.units, finding.excess);
        let pieces = relief.clone().unwrap_or_default();
        let targets: Vec<Target> = pieces
            .iter()
            .filter_map(|piece| self.target(rule, *piece))
            .collect();

        let known = self.history.violations.get(&key);
        let since_seconds = known.map_or(now, |known| known.since_seconds.min(now));
        let freshness = view.freshness(finding.host);
        let is_open = |target: &Target| is_open(self.history, rule, target);
        let known = known.filter(|known| !wants_new_round(rule, known, &targets, is_open));
        let longest_gap = self.facts.longest_gap_seconds(finding.host);
        let seen_seconds = known.map_or(0.0, |known| match freshness {
            Freshness::New => known.seen.at(now, longest_gap),
            Freshness::Repeated | Freshness::Missing => known.seen.seconds,
        });

        let held = hold::why(self.input, rule, user.name, hostname)
            .or_else(|| missing(view, finding.host))
            .or(finding.held);
        let stage = match held {
            Some(why) => Stage::Held { why },
            None => {
                let at = Position {
                    view,
                    key: &key,
                    known,
                    seen_seconds,
                    is_new: freshness == Freshness::New,
                };
                self.climb(&at, relief.is_some().then_some(&pieces[..]), &finding.units)
            }
        };
        let remedy = remedy(self.facts, &finding.advice, &pieces, finding.host);
        self.plan.violations.push(Violation {
            username: user.name.to_owned(),
            uid: user.uid,
            hostname: hostname.map(ToOwned::to_owned),
            action: rule.action,
            since_seconds,
            stage,
            found: finding.found,
            allowed: finding.allowed,
            remedy,
            targets,
            key,
        });
    }

    /// Where the violation is, and the steps that are due.
    fn climb(&mut self, at: &Position<'_>, relief: Option<&[Piece]>, units: &[Unit]) -> Stage {
        let rule = at.view.rule;
        let now = self.input.now_seconds;
        let rung = rung(rule, at.known, at.seen_seconds, now);
        if let Rung::Pending { until_seconds } = rung {
            return Stage::Pending { until_seconds };
        }
        let reported = self
            .history
            .violations
            .get(at.key)
            .is_some_and(|known| known.reported);
        if at.is_new && !reported {
            self.step(at.key, StepKind::Report);
        }
        let ends = rule.action > Action::Warn;
        let Some(relief) = relief
            .filter(|pieces| !ends || !pieces.is_empty())
            .or((!ends).then_some(&[]))
        else {
            return Stage::Held {
                why: self.out_of_reach(units),
            };
        };
        match rung {
            Rung::Pending { until_seconds } => Stage::Pending { until_seconds },
            Rung::NotWarned { reason } => Stage::Held {
                why: format!("the user could not be warned: {reason}"),
            },
            Rung::Warning {
                step,
                given,
                end_seconds,
            } => {
                if at.is_new {
                    self.step(at.key, step);
                }
                Stage::Warned { given, end_seconds }
            }
            Rung::Warned { given, end_seconds } => Stage::Warned { given, end_seconds },
            Rung::End if !ends => Stage::Acted {
                at_seconds: at.acted_seconds().unwrap_or(now),
            },
            Rung::End => self.act(at, relief),
        }
    }

    /// The steps that end a violation.
    fn act(&mut self, at: &Position<'_>, relief: &[Piece]) -> Stage {
        let mut waits = false;
        let mut acted = at.acted_seconds();
        let planned = self.plan.steps.len();
        for &piece in relief {
            // What came after the action waits for a round of its own.
            let chosen = at.known.filter(|known| known.acted_seconds.is_some());
            let identity = self
                .target(at.view.rule, piece)
                .map(|target| target.identity());
            if chosen.is_some_and(|known| identity.is_none_or(|it| !known.chosen.contains(&it))) {
                continue;
            }
            let done = match piece {
                Piece::Process(process) => self.end(at, process),
                Piece::Attachment(attachment) => self.detach(at, attachment),
            };
            waits |= done.is_none();
            acted = [acted, done].into_iter().flatten().reduce(f64::max);
        }
        match acted {
            Some(at_seconds) if self.plan.steps.len() == planned && !waits => {
                Stage::Acted { at_seconds }
            }
            _ => Stage::Due,
        }
    }

    /// Ends a process, as far as that is due. Returns when something was done about it, if everything is that may be done now.
    fn end(&mut self, at: &Position<'_>, id: ProcessId) -> Option<f64> {
        let kind = match self.process_history(id) {
            None
            | Some(ProcessHistory {
                terminated_seconds: None,
                ..
            }) => {
                if self.ending.contains(&id) {
                    return None;
                }
                StepKind::Terminate
            }
            Some(history) => {
                let gap = self
                    .facts
                    .longest_gap_seconds(Some(self.facts.processes[id].host));
                let waited = history.seen.at(self.input.now_seconds, gap);
                let is_left =
                    at.view.rule.action == Action::Kill && history.killed_seconds.is_none();
                if !is_left || waited < at.view.rule.grace.as_secs_f64() {
                    return history.killed_seconds.or(history.terminated_seconds);
                }
                StepKind::Kill
            }
        };
        if self.is_new(self.facts.processes[id].host, at) && self.ending.insert(id) {
            let target = self.process_target(id)?;
            self.step(at.key, kind(target));
        }
        None
    }

    /// Takes a device from an environment. What is to be killed ends before, so that the violation is there until it does.
    fn detach(&mut self, at: &Position<'_>, id: AttachmentId) -> Option<f64> {
        let facts = self.facts;
        let attachment = &facts.attachments[id];
        if let Some(detached) = self.detached_seconds(attachment) {
            return Some(detached);
        }
        let mut processes = self.processes_that_end(at.view.rule, attachment);
        if at.view.rule.action == Action::Kill {
            let mut last = None;
            for &process in &processes {
                let done = self.end(at, process);
                let killed = self
                    .process_history(process)
                    .and_then(|known| known.killed_seconds);
                if killed.is_none() {
                    last = last.or(Some(done));
                }
            }
            if let Some(done) = last {
                return done;
            }
        }
        if !self.is_new(attachment.host, at) || !self.detaching.insert(id) {
            return None;
        }
        processes.retain(|&process| !self.is_going(process));
        self.ending.extend(&processes);
        let target = self.attachment_target(attachment, &processes);
        self.step(at.key, StepKind::Detach(target));
        None
    }

    fn step(&mut self, key: &Key, kind: StepKind) {
        let key = key.clone();
        self.plan.steps.push(Step { key, kind });
    }

    /// Whether the facts of the host of a target are new; those of the violation are.
    fn is_new(&self, host: HostId, at: &Position<'_>) -> bool {
        at.is_new && at.view.freshness(Some(host)) == Freshness::New
    }

    /// What to take to end a violation; absent if nothing that may be taken would.
    fn relief(&self, rule: &Rule, units: &[Unit], excess: u64) -> Option<Vec<Piece>> {
        let possible: Vec<&Unit> = units
            .iter()
            .filter(|unit| self.is_possible(rule, unit))
            .collect();
        let candidates: Vec<Candidate> = possible
            .iter()
            .map(|unit| Candidate {
                weight: unit.weight,
                newest: unit.newest,
                going: unit.pieces.iter().all(|piece| match piece {
                    Piece::Process(id) => self.is_going(*id),
                    Piece::Attachment(id) => {
                        let attachment = &self.facts.attachments[*id];
                        self.detaching.contains(id) || self.detached_seconds(attachment).is_some()
                    }
                }),
            })
            .collect();
        let chosen = choose(&candidates, excess)?;
        let pieces = chosen
            .into_iter()
            .flat_map(|position| possible[position].pieces.iter().copied());
        Some(pieces.collect())
    }

    fn is_possible(&self, rule: &Rule, unit: &Unit) -> bool {
        let may_stay = rule.action == Action::Detach && rule.processes == DetachedProcesses::Keep;
        let ends = unit.must_end.is_empty() || !may_stay;
        ends && unit.must_end.iter().all(|&id| self.may_end(id))
            && unit.pieces.iter().all(|piece| match piece {
                Piece::Process(id) => self.may_end(*id),
                Piece::Attachment(id) => self.may_detach(&self.facts.attachments[*id]),
            })
    }

    fn may_end(&self, id: ProcessId) -> bool {
        let process = &self.facts.processes[id];
        let refused = self
            .process_history(id)
            .is_some_and(|known| known.refused.is_some());
        process.within_reach && !refused && !self.is_left_alone(process.host)
    }

    fn may_detach(&self, attachment: &AttachmentFacts) -> bool {
        let user = &self.facts.users[attachment.user];
        let environment = self.facts.environments[attachment.environment].environment;
        let refused = self
            .attachment_history(attachment)
            .is_some_and(|known| known.refused.is_some());
        !user.never
            && environment.uid != Some(0)
            && !refused
            && !self.is_left_alone(attachment.host)
    }

    fn is_left_alone(&self, host: HostId) -> bool {
        hold::maintenance_until(self.input, self.facts.hosts[host].hostname).is_some()
    }

    /// Whether a process was told to end, or is by this plan.
    fn is_going(&self, id: ProcessId) -> bool {
        let known = self.process_history(id);
        self.ending.contains(&id) || known.is_some_and(|known| known.terminated_seconds.is_some())
    }

    fn process_history(&self, id: ProcessId) -> Option<&ProcessHistory> {
        let facts = &self.facts.processes[id];
        let hostname = self.facts.hosts[facts.host].hostname;
        let process = facts.process;
        self.history
            .process(hostname, process.pid, process.start_time_ticks?)
    }

    fn attachment_history(
        &self,
        attachment: &AttachmentFacts,
    ) -> Option<&super::history::AttachmentHistory> {
        let environment = self.facts.environments[attachment.environment].environment;
        let hostname = self.facts.hosts[attachment.host].hostname;
        self.history.attachment(
            hostname,
            &environment.eid,
            attachment.gpu,
            attachment.attached_seconds,
        )
    }

    fn detached_seconds(&self, attachment: &AttachmentFacts) -> Option<f64> {
        self.attachment_history(attachment)?.detached_seconds
    }

    /// Processes that end when their environment loses the device.
    fn processes_that_end(&self, rule: &Rule, attachment: &AttachmentFacts) -> Vec<ProcessId> {
        if rule.action <= Action::Detach && rule.processes == DetachedProcesses::Keep {
            return Vec::new();
        }
        let uses = self.facts.uses_of(attachment.environment);
        let uses = uses.filter(|used| used.gpu == attachment.gpu);
        uses.map(|used| used.process)
            .filter(|&id| self.may_end(id))
            .collect()
    }

    fn target(&self, rule: &Rule, piece: Piece) -> Option<Target> {
        match piece {
            Piece::Process(id) => self.process_target(id).map(Target::Process),
            Piece::Attachment(id) => {
                let attachment = &self.facts.attachments[id];
                let processes = self.processes_that_end(rule, attachment);
                Some(Target::Attachment(
                    self.attachment_target(attachment, &processes),
                ))
            }
        }
    }

    fn process_target(&self, id: ProcessId) -> Option<ProcessTarget> {
        let facts = &self.facts.processes[id];
        let process = facts.process;
        Some(ProcessTarget {
            hostname: self.facts.hosts[facts.host].hostname.to_owned(),
            pid: process.pid,
            start_time_ticks: process.start_time_ticks?,
            uid: process.uid?,
            username: process.username.clone()?,
            comm: process.comm.clone(),
            eid: process.attribution.eid().map(ToOwned::to_owned),
            container_id: process.container_id.clone(),
        })
    }

    fn attachment_target(
        &self,
        attachment: &AttachmentFacts,
        processes: &[ProcessId],
    ) -> AttachmentTarget {
        let environment = self.facts.environments[attachment.environment].environment;
        let processes = processes.iter().filter_map(|&id| self.process_target(id));
        AttachmentTarget {
            hostname: self.facts.hosts[attachment.host].hostname.to_owned(),
            eid: environment.eid.clone(),
            username: environment.username.clone(),
            gpu: attachment.gpu,
            attached_seconds: attachment.attached_seconds,
            processes: processes.collect(),
        }
    }

    /// Why nothing may be done about any of these, in one clause.
    fn out_of_reach(&self, units: &[Unit]) -> String {
        let mut pieces = units.iter().flat_map(|unit| &unit.pieces);
        let refused = pieces.find_map(|piece| match piece {
            Piece::Process(id) => {
                let reason = self.process_history(*id)?.refused.as_ref()?;
                Some((self.facts.processes[*id].process.pid.to_string(), reason))
            }
            Piece::Attachment(id) => {
                let attachment = &self.facts.attachments[*id];
                let reason = self.attachment_history(attachment)?.refused.as_ref()?;
                Some((format!("device {}", attachment.gpu), reason))
            }
        });
        let nothing = "nothing that may be ended would end it";
        match refused {
            Some((what, reason)) => format!("{nothing}: {what}: {reason}"),
            None => nothing.to_owned(),
        }
    }
}

/// What a violation's way is judged by.
struct Position<'p> {
    view: &'p View<'p, 'p>,
    key: &'p Key,
    /// Absent at the begin of a round.
    known: Option<&'p ViolationHistory>,
    seen_seconds: f64,
    /// Whether the facts that show it are new.
    is_new: bool,
}

impl Position<'_> {
    fn acted_seconds(&self) -> Option<f64> {
        self.known.and_then(|known| known.acted_seconds)
    }
}

/// Whether something is left to do about a target.
pub(super) fn is_open(history: &History, rule: &Rule, target: &Target) -> bool {
    match target {
        Target::Process(target) => {
            let known = history.process(&target.hostname, target.pid, target.start_time_ticks);
            known.is_none_or(|known| match rule.action {
                Action::Kill => known.killed_seconds.is_none(),
                _ => known.terminated_seconds.is_none(),
            })
        }
        Target::Attachment(target) => {
            let (hostname, eid, gpu) = (&target.hostname, &target.eid, target.gpu);
            let known = history.attachment(hostname, eid, gpu, target.attached_seconds);
            known.is_none_or(|known| known.detached_seconds.is_none())
        }
    }
}

/// Why what counts over all hosts waits: not all of them are heard of.
fn missing(view: &View<'_, '_>, host: Option<HostId>) -> Option<String> {
    const MOST_NAMED: usize = 3;
    if host.is_some() || view.missing_hosts.is_empty() {
        return None;
    }
    let named: Vec<String> = view
        .missing_hosts
        .iter()
        .take(MOST_NAMED)
        .map(|hostname| words::name(hostname))
        .collect();
    let more = view.missing_hosts.len() - named.len();
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    Some(format!("no fresh facts from {}{more}", named.join(", ")))
}

/// What the user can do, with the commands for what would be taken.
fn remedy(facts: &Facts<'_>, advice: &str, pieces: &[Piece], host: Option<HostId>) -> String {
    const MOST_NAMED: usize = 4;
    let on = |id: HostId| match host {
        Some(_) => String::new(),
        None => format!(" on {}", words::name(facts.hosts[id].hostname)),
    };
    let commands: Vec<String> = pieces
        .iter()
        .take(MOST_NAMED)
        .map(|piece| match piece {
            Piece::Process(id) => {
                let process = &facts.processes[*id];
                format!("kill {}{}", process.process.pid, on(process.host))
            }
            Piece::Attachment(id) => {
                let attachment = &facts.attachments[*id];
                let environment = facts.environments[attachment.environment].environment;
                format!(
                    "genv detach --index {} in environment {}{}",
                    attachment.gpu,
                    words::name(&environment.eid),
                    on(attachment.host)
                )
            }
        })
        .collect();
    let more = pieces.len() - commands.len();
    let more = if more > 0 {
        format!(", and {more} more")
    } else {
        String::new()
    };
    match commands.as_slice() {
        [] => advice.to_owned(),
        commands => format!("{advice}: {}{more}", commands.join(", ")),
    }
}
