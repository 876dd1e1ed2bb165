//! The plan of this host, which confirms or refuses the steps of a request.

#[cfg(test)]
mod tests;

use genv_core::model::Publication;

use super::own_waivers;
use crate::config::{Action, Config, Rule, Waiver};
use crate::control::Control;
use crate::groups::{self, Groups};
use crate::plan::{
    AttachmentTarget, History, Input, Key, Outcome, Plan, ProcessTarget, Stage, Step, StepKind, Subject, Target,
    Violation, counted, plan,
};
use crate::remote_steps::{RemoteStep, StepRequest};

/// The plan of this host, and the facts and rules that it follows from.
pub(super) struct LocalPlan<'a> {
    request: &'a StepRequest,
    config: &'a Config,
    publication: &'a Publication,
    groups: groups::UserGroups,
    waivers: Vec<Waiver>,
    paused: bool,
    plan: Plan,
}

/// A step that this host executes.
pub(super) struct ConfirmedStep {
    /// The step, with no other targets than those of the local plan.
    pub(super) step: Step,
    /// The uid of the user on this host.
    pub(super) uid: Option<u32>,
}

/// A finding of this host about a user and a rule.
struct Found<'f> {
    username: &'f str,
    uid: Option<u32>,
    held: Option<&'f str>,
    targets: &'f [Target],
}

impl<'a> LocalPlan<'a> {
    /// Plans without a history. The machine that sends the request has the history, and decides when a step is due.
    pub(super) fn new(
        request: &'a StepRequest,
        config: &'a Config,
        publication: &'a Publication,
        control: &Control,
        groups: &mut Groups,
    ) -> Self {
        let now = request.now_seconds;
        let known = if groups::are_needed(config) {
            groups.of(&groups::users(&publication.hosts))
        } else {
            groups::UserGroups::default()
        };
        let mut waivers = own_waivers(control, request);
        waivers.extend(groups::waiver_of_unknown_groups(known.unknown.clone(), config, now));
        let mut local_plan = Self {
            request,
            config,
            publication,
            groups: known,
            waivers,
            paused: control.paused_until_seconds.is_some(),
            plan: Plan::default(),
        };
        local_plan.plan = local_plan.with_input(|input| plan(input, &local_plan.terminated()));
        local_plan
    }

    fn with_input<T>(&self, evaluate: impl FnOnce(&Input<'_>) -> T) -> T {
        let now_seconds = self.request.now_seconds;
        let mut hosts = self.publication.hosts.clone();
        for host in &mut hosts {
            // The snapshot is new, whatever the clock of this host shows.
            host.received_timestamp_seconds = Some(now_seconds);
        }
        evaluate(&Input {
            hosts: &hosts,
            config: self.config,
            groups: &self.groups.groups,
            waivers: &self.waivers,
            unconfirmed: None,
            paused_until_seconds: None,
            now_seconds,
        })
    }

    /// A history in which the processes to kill have got SIGTERM, so that the plan chooses them again and no others.
    fn terminated(&self) -> History {
        let mut history = History::default();
        for remote in &self.request.steps {
            if let StepKind::Kill(target) = &remote.step.kind {
                let step = Step { key: remote.step.key.clone(), kind: StepKind::Terminate(target.clone()) };
                history.settle(&step, &Outcome::Done, self.request.now_seconds);
            }
        }
        history
    }

    /// Confirms a step if this host finds the same violation and would choose the same target.
    pub(super) fn confirm(&self, remote: &RemoteStep) -> Result<ConfirmedStep, Outcome> {
        if self.paused {
            return Err(later("it is paused on that host"));
        }
        let Key { rule, subject } = &remote.step.key;
        let Some(rule) = self.config.rules.iter().find(|it| it.name == *rule) else {
            return Err(never("its rule is not among the rules in the request"));
        };
        if let StepKind::Kill(_) = remote.step.kind
            && rule.action != Action::Kill
        {
            return Err(never("its rule does not kill"));
        }
        let is_act = !matches!(remote.step.kind, StepKind::Report | StepKind::Warn { .. });
        if is_act && !rule.action.acts() {
            return Err(never("its rule ends nothing"));
        }
        if is_shown_by_one_host(rule, subject) {
            let violations = self.plan.violations.iter();
            let found = violations.filter(|violation| violation.key == remote.step.key).map(Found::from);
            return confirm(remote, found);
        }
        let all = self.with_input(|input| counted(input, rule));
        let found = all.iter().map(|it| Found {
            username: &it.username,
            uid: it.uid,
            held: it.held.as_deref(),
            targets: &it.targets,
        });
        confirm(remote, found)
    }
}

impl<'f> From<&'f Violation> for Found<'f> {
    fn from(violation: &'f Violation) -> Self {
        Self {
            username: &violation.username,
            uid: violation.uid,
            held: match &violation.stage {
                Stage::Held { why } => Some(why),
                _ => None,
            },
            targets: &violation.targets,
        }
    }
}

/// Whether one snapshot of one host is enough to find the violation.
fn is_shown_by_one_host(rule: &Rule, subject: &Subject) -> bool {
    subject.hostname().is_some() && !rule.kind.needs_history()
}

fn confirm<'f>(remote: &RemoteStep, found: impl Iterator<Item = Found<'f>>) -> Result<ConfirmedStep, Outcome> {
    let mut held = None;
    let mut is_users = false;
    for found in found.filter(|found| found.username == remote.username) {
        is_users = true;
        let step = match &remote.step.kind {
            StepKind::Report | StepKind::Warn { .. } => Some(remote.step.clone()),
            StepKind::Terminate(target) | StepKind::Kill(target) => {
                let ends = found.targets.iter().any(|it| ends(it, target));
                ends.then(|| remote.step.clone())
            }
            StepKind::Detach(target) => found.targets.iter().find_map(|it| {
                detached(it, target)
                    .map(|target| Step { key: remote.step.key.clone(), kind: StepKind::Detach(target.into()) })
            }),
        };
        match (step, found.held) {
            (Some(step), None) => {
                return Ok(ConfirmedStep { step, uid: found.uid });
            }
            (_, Some(why)) => held = Some(why.to_owned()),
            (None, None) => {}
        }
    }
    Err(later(&match held {
        Some(why) => format!("that host leaves it alone: {why}"),
        None if is_users => "that host's own plan would not choose this target".to_owned(),
        None => "that host's own plan does not show that the rule is broken".to_owned(),
    }))
}

/// Whether the end of a chosen target ends this process.
fn ends(chosen: &Target, target: &ProcessTarget) -> bool {
    let same = |it: &ProcessTarget| {
        it.hostname == target.hostname && it.pid == target.pid && it.start_time_ticks == target.start_time_ticks
    };
    match chosen {
        Target::Process(process) => same(process),
        Target::Attachment(attachment) => attachment.processes.iter().any(|it| same(it)),
    }
}

/// The device to detach, without the processes that the local plan would not end.
fn detached(chosen: &Target, target: &AttachmentTarget) -> Option<AttachmentTarget> {
    let Target::Attachment(own) = chosen else {
        return None;
    };
    let same = own.hostname == target.hostname
        && own.eid == target.eid
        && own.gpu == target.gpu
        && (target.uuid.is_none() || own.uuid == target.uuid)
        && own.username == target.username;
    same.then(|| AttachmentTarget {
        processes: target.processes.iter().filter(|process| ends(chosen, process)).cloned().collect(),
        unconfirmed: own.unconfirmed,
        ..target.clone()
    })
}

/// A refusal for now.
pub(super) fn later(reason: &str) -> Outcome {
    Outcome::Refused { reason: reason.to_owned(), again: true }
}

fn never(reason: &str) -> Outcome {
    Outcome::Refused { reason: reason.to_owned(), again: false }
}
