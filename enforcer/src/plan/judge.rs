//! From what breaks a rule to what is done about it now.

use std::borrow::Cow;

use genv_core::duration::format_span;

use super::facts::{AttachmentId, Facts, HostId, ProcessId};
use super::freshness::Freshness;
use super::history::{MOST_FROZEN, Past, ProcessHistory, ViolationHistory, wants_new_round};
use super::hold::Hold;
use super::ladder::{Rung, rung};
use super::left_behind::left_behind;
use super::reach::Reach;
use super::selector::{View, Views};
use super::{History, Input, Key, Plan, Stage, Step, StepKind, Target, Violation, words};
use crate::config::{Action, Rule, Undelivered};
use crate::kinds::{self, Finding, Piece, Unit};

/// See [`super::plan`].
pub(super) fn plan<'a>(input: &Input<'a>, history: &History, facts: &Facts<'a>, views: &Views<'_, 'a>) -> Plan {
    let past = Past::new(history, facts);
    let mut judge = Judge { input, history, facts, reach: Reach::new(input, &past, facts), plan: Plan::default() };
    for host in &facts.hosts {
        let hostname = || host.hostname.to_owned();
        if host.freshness.state == Freshness::Missing {
            judge.plan.missing_hosts.insert(hostname());
        } else if !host.unknown_by_user.is_empty() {
            let by_user = host.unknown_by_user.iter();
            let by_user = by_user.map(|(name, count)| ((*name).to_owned(), *count));
            let plan = &mut judge.plan;
            plan.unknown_processes.insert(hostname(), host.unknown_by_user.values().sum());
            plan.unknown_processes_by_user.insert(hostname(), by_user.collect());
        }
    }
    judge.plan.left_behind = left_behind(facts, input, &past);
    for rule in &input.config.rules {
        let view = &views[rule.name.as_str()];
        let mut findings = kinds::findings(view, &past, input.now_seconds);
        findings.sort_by(|a, b| a.subject.cmp(&b.subject));
        judge.plan.violations.reserve(findings.len());
        let hold = Hold::new(input, rule);
        let mut of_rule = history.of_rule(rule);
        for finding in findings {
            let known = of_rule.find(&finding.subject);
            judge.judge(view, &hold, finding, known);
        }
        let frozen = history.frozen(facts, view, of_rule, input.now_seconds);
        judge.plan.frozen.extend(frozen);
        if rule.kind.idle_limit().is_some() {
            for attachment in kinds::unmeasured(view) {
                let hostname = facts.hosts[attachment.host].hostname.to_owned();
                let place = (rule.name.clone(), hostname);
                let gpus = judge.plan.not_judged.entry(place).or_default();
                gpus.insert(attachment.gpu);
            }
        }
    }
    // A step against a user's own violation goes before a step against an attachment that another user may have made.
    judge.plan.steps.sort_by_key(Step::takes_back);
    judge.plan.frozen.sort_by(|a, b| a.key.cmp(&b.key));
    judge.plan.frozen.truncate(MOST_FROZEN);
    judge.plan
}

struct Judge<'j, 'a> {
    input: &'j Input<'a>,
    history: &'j History,
    facts: &'j Facts<'a>,
    reach: Reach<'j, 'a>,
    plan: Plan,
}

impl Judge<'_, '_> {
    fn judge(&mut self, view: &View<'_, '_>, hold: &Hold<'_>, finding: Finding, known: Option<&ViolationHistory>) {
        let rule = view.rule;
        let now = self.input.now_seconds;
        let user = &self.facts.users[finding.user];
        let hostname = finding.host.map(|host| self.facts.hosts[host].hostname);
        let unconfirmed = finding.is_unconfirmed();
        let key = Key { rule: rule.name.clone(), subject: finding.subject };

        let relief = self.reach.relief(rule, &finding.units, finding.excess);
        let pieces = relief.as_deref().unwrap_or_default();
        let targets: Vec<Target> = pieces.iter().filter_map(|piece| self.reach.target(rule, *piece, pieces)).collect();

        let known = known.filter(|known| known.counts_for(unconfirmed));
        let known = known.map(Cow::Borrowed);
        let reported = known.as_ref().is_some_and(|known| known.reported);
        let known = self.history.progress(self.facts, rule, &key, (user.name, unconfirmed), known, now);
        let since_seconds = known.as_ref().map_or(now, |known| known.since_seconds.min(now));
        let freshness = view.freshness(finding.host);
        let is_open = |target: &Target| is_open(self.history, self.facts, rule, target);
        let known = known.and_then(|mut known| {
            // Facts that were seen before show nothing that came since.
            let is_new = freshness == Freshness::New;
            if is_new && wants_new_round(rule, &known, &targets, is_open) {
                known.may_resume(rule, now).then(|| known.to_mut().resume())?;
            }
            Some(known)
        });
        let known = known.as_deref();
        let longest_gap = self.facts.longest_gap_seconds(finding.host);
        let seen_seconds = known.map_or(0.0, |known| match freshness {
            Freshness::New => known.seen.at(now, longest_gap),
            Freshness::Repeated | Freshness::Missing => known.seen.seconds,
        });

        let held = hold.why(user, hostname);
        if held.is_some() || known.is_some_and(|known| known.put_off) {
            self.plan.put_off.insert(key.clone());
        }
        let held = held.or_else(|| missing(view, finding.host)).or(finding.held);
        let stage = match held {
            Some(why) => Stage::Held { why },
            None => {
                let at =
                    Position { view, key: &key, known, seen_seconds, reported, is_new: freshness == Freshness::New };
                self.climb(&at, relief.as_deref(), &finding.units)
            }
        };
        self.plan.violations.push(Violation {
            username: user.name.to_owned(),
            uid: user.uid,
            hostname: hostname.map(ToOwned::to_owned),
            action: rule.action,
            since_seconds,
            stage,
            fact: finding.fact,
            targets,
            unconfirmed,
            key,
        });
    }

    /// Where the violation is, and the steps that are due.
    fn climb(&mut self, at: &Position<'_, '_>, relief: Option<&[Piece]>, units: &[Unit]) -> Stage {
        let rule = at.view.rule;
        let now = self.input.now_seconds;
        let rung = rung(rule, at.known, at.seen_seconds, now);
        if let Rung::Pending { until_seconds } = rung {
            return Stage::Pending { until_seconds };
        }
        if at.is_new && !at.reported {
            self.step(at.key, StepKind::Report);
        }
        let ends = rule.action > Action::Warn;
        let Some(relief) = relief.filter(|pieces| !ends || !pieces.is_empty()).or((!ends).then_some(&[])) else {
            return Stage::Held { why: self.reach.out_of_reach(units) };
        };
        match rung {
            Rung::Pending { until_seconds } => Stage::Pending { until_seconds },
            Rung::NotWarned { reason } => Stage::Held { why: format!("the user could not be warned: {reason}") },
            Rung::Warning { step, given, end_seconds } => {
                let why = at.undelivered(&step, end_seconds, now);
                if at.is_new {
                    self.step(at.key, step);
                }
                match why {
                    Some(why) => Stage::Held { why },
                    None => Stage::Warned { given, end_seconds },
                }
            }
            Rung::Warned { given, end_seconds } => Stage::Warned { given, end_seconds },
            Rung::End if !ends => Stage::Acted { at_seconds: at.acted_seconds().unwrap_or(now), kill_seconds: None },
            Rung::End => self.act(at, relief),
        }
    }

    /// The steps that end a violation.
    fn act(&mut self, at: &Position<'_, '_>, relief: &[Piece]) -> Stage {
        let mut waits = false;
        let mut acted = at.acted_seconds();
        let planned = self.plan.steps.len();
        for &piece in relief {
            // What came after the action waits for a round of its own.
            let chosen = at.known.filter(|known| known.acted_seconds.is_some());
            let identity = self.reach.target(at.view.rule, piece, relief).map(|target| target.identity());
            if chosen.is_some_and(|known| identity.is_none_or(|it| !known.chosen.contains(&it))) {
                continue;
            }
            let done = match piece {
                Piece::Process(process) => self.end(at, process),
                Piece::Attachment(attachment) => self.detach(at, attachment, relief),
            };
            waits |= done.is_none();
            acted = [acted, done].into_iter().flatten().reduce(f64::max);
        }
        match acted {
            Some(at_seconds) if self.plan.steps.len() == planned && !waits => {
                let kills = relief.iter().filter_map(|piece| self.kill_seconds(at, *piece));
                let kill_seconds = kills.reduce(f64::min);
                Stage::Acted { at_seconds, kill_seconds }
            }
            _ => Stage::Due,
        }
    }

    /// The time of the SIGKILL that follows a sent SIGTERM.
    fn kill_seconds(&self, at: &Position<'_, '_>, piece: Piece) -> Option<f64> {
        let rule = at.view.rule;
        let attachment = match piece {
            _ if rule.action != Action::Kill => return None,
            Piece::Process(id) => return self.kill_of(rule, id),
            Piece::Attachment(id) => &self.facts.attachments[id],
        };
        let uses = self.facts.uses_on(attachment.environment, attachment.gpu);
        let kills = uses.filter_map(|used| self.kill_of(rule, used.process));
        kills.reduce(f64::min)
    }

    fn kill_of(&self, rule: &Rule, id: ProcessId) -> Option<f64> {
        let history = self.reach.process_history(id)?;
        let host = Some(self.facts.processes[id].host);
        let now = self.input.now_seconds;
        let waited = history.seen.at(now, self.facts.longest_gap_seconds(host));
        let waits = history.killed_seconds.is_none() && history.terminated_seconds.is_some();
        waits.then(|| now + (rule.grace.as_secs_f64() - waited).max(0.0))
    }

    /// Ends a process, as far as that is due. Returns when something was done about it, if everything is that may be done now.
    fn end(&mut self, at: &Position<'_, '_>, id: ProcessId) -> Option<f64> {
        let kind = match self.reach.process_history(id) {
            None | Some(ProcessHistory { terminated_seconds: None, .. }) => {
                if self.reach.ending.contains(&id) {
                    return None;
                }
                StepKind::Terminate
            }
            Some(history) => {
                let gap = self.facts.longest_gap_seconds(Some(self.facts.processes[id].host));
                let waited = history.seen.at(self.input.now_seconds, gap);
                let is_left = at.view.rule.action == Action::Kill && history.killed_seconds.is_none();
                if !is_left || waited < at.view.rule.grace.as_secs_f64() {
                    return history.killed_seconds.or(history.terminated_seconds);
                }
                StepKind::Kill
            }
        };
        if self.is_new(self.facts.processes[id].host, at) && self.reach.ending.insert(id) {
            let target = self.reach.process_target(id)?;
            self.step(at.key, kind(target));
        }
        None
    }

    /// Takes a device from an environment. What is to be killed ends before, so that the violation is there until it does.
    fn detach(&mut self, at: &Position<'_, '_>, id: AttachmentId, relief: &[Piece]) -> Option<f64> {
        let facts = self.facts;
        let attachment = &facts.attachments[id];
        if let Some(detached) = attachment.detached_seconds {
            return Some(detached);
        }
        let ending = self.reach.processes_that_end(at.view.rule, attachment, relief);
        let mut processes: Vec<ProcessId> = ending.collect();
        if at.view.rule.action == Action::Kill {
            let mut last = None;
            for &process in &processes {
                let done = self.end(at, process);
                let killed = self.reach.process_history(process).and_then(|known| known.killed_seconds);
                if killed.is_none() {
                    last = last.or(Some(done));
                }
            }
            if let Some(done) = last {
                return done;
            }
        }
        if !self.is_new(attachment.host, at) || !self.reach.detaching.insert(id) {
            return None;
        }
        processes.retain(|&process| !self.reach.is_going(process));
        self.reach.ending.extend(&processes);
        let target = self.reach.attachment_target(attachment, processes.into_iter());
        self.step(at.key, StepKind::Detach(target.into()));
        None
    }

    fn step(&mut self, key: &Key, kind: StepKind) {
        let key = key.clone();
        self.plan.steps.push(Step { key, kind });
    }

    /// Whether the facts of the host of a target are new; those of the violation are.
    fn is_new(&self, host: HostId, at: &Position<'_, '_>) -> bool {
        at.is_new && at.view.freshness(Some(host)) == Freshness::New
    }
}

/// What a violation's way is judged by.
struct Position<'p, 'a> {
    view: &'p View<'p, 'a>,
    key: &'p Key,
    /// Absent at the begin of a round.
    known: Option<&'p ViolationHistory>,
    seen_seconds: f64,
    /// Whether the violation was reported, in any round.
    reported: bool,
    /// Whether the facts that show it are new.
    is_new: bool,
}

impl Position<'_, '_> {
    /// Why a warning that is tried again has not reached its user, and what follows once it has.
    fn undelivered(&self, step: &StepKind, end_seconds: f64, now: f64) -> Option<String> {
        let rule = self.view.rule;
        let why = self.known?.undelivered.as_ref()?;
        let (StepKind::Warn { number, of, .. }, Undelivered::Hold) = (step, rule.undelivered) else {
            return None;
        };
        let follows = match rule.action.acts() {
            true => format!("; {} follows {} after delivery", rule.action.word(), format_span(end_seconds - now)),
            false => String::new(),
        };
        Some(format!("warning {number} of {of} is not delivered: {why}{follows}"))
    }

    fn acted_seconds(&self) -> Option<f64> {
        let known = self.known?;
        match self.view.rule.action {
            Action::Report => known.reported_seconds,
            _ => known.acted_seconds,
        }
    }
}

/// Whether something is left to do about a target.
pub(super) fn is_open(history: &History, facts: &Facts<'_>, rule: &Rule, target: &Target) -> bool {
    match target {
        Target::Process(target) => {
            let known = history.process(&target.hostname, target.pid, target.start_time_ticks);
            known.is_none_or(|known| match rule.action {
                Action::Kill => known.killed_seconds.is_none(),
                _ => known.terminated_seconds.is_none(),
            })
        }
        Target::Attachment(target) => {
            let environment = facts.environment(&target.hostname, &target.eid);
            let attached = environment.map_or(&[][..], |id| facts.attachments_of(id));
            let mut attached = attached.iter().filter(|it| it.gpu == target.gpu);
            attached.any(|it| it.detached_seconds.is_none())
        }
    }
}

/// Why what counts over all hosts waits: not all of them are heard of.
fn missing(view: &View<'_, '_>, host: Option<HostId>) -> Option<String> {
    const MOST_NAMED: usize = 3;
    if host.is_some() || view.missing_hosts.is_empty() {
        return None;
    }
    let named = view.missing_hosts.iter().take(MOST_NAMED);
    let named: Vec<_> = named.map(|hostname| words::name(hostname)).collect();
    let more = view.missing_hosts.len() - named.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!("no fresh facts from {}{more}", named.join(", ")))
}
