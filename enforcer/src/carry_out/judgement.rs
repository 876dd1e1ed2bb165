//! Whether this host, by its own plan, agrees to a step.

#[cfg(test)]
mod tests;

use genv_core::model::Publication;

use crate::commands::now_seconds;
use crate::config::{Action, Config, Rule, RuleKind, Waiver};
use crate::control::Control;
use crate::cycle::users;
use crate::groups::{self, Groups};
use crate::intents::{Intent, Intents};
use crate::plan::{
    AttachmentTarget, History, Input, Key, Outcome, Plan, ProcessTarget, Stage, Step, StepKind, Subject, Target,
    Violation, counted, plan,
};

/// All that this host knows, with which steps are compared.
pub(super) struct Judgement<'a> {
    intents: &'a Intents,
    config: &'a Config,
    publication: &'a Publication,
    groups: groups::Known,
    waivers: Vec<Waiver>,
    paused: bool,
    plan: Plan,
}

/// A step that this host agrees to.
pub(super) struct Agreed {
    /// As it is to be carried out.
    pub(super) step: Step,
    /// The user's uid here.
    pub(super) uid: Option<u32>,
}

/// What this host finds about a user and a rule.
struct Found<'f> {
    username: &'f str,
    uid: Option<u32>,
    held: Option<&'f str>,
    targets: &'f [Target],
}

impl<'a> Judgement<'a> {
    /// Plans anew, without a history: what is to be done, not when.
    pub(super) fn new(
        intents: &'a Intents,
        config: &'a Config,
        publication: &'a Publication,
        control: &Control,
        groups: &mut Groups,
    ) -> Self {
        let now = intents.now_seconds;
        let known =
            if groups::matter(config) { groups.of(&users(&publication.hosts)) } else { groups::Known::default() };
        // What was told here ends by the clock here.
        let behind = now - now_seconds();
        let mut waivers: Vec<Waiver> = control.waivers();
        for waiver in &mut waivers {
            waiver.until_seconds += behind;
        }
        waivers.extend(groups::waiver_of_unknown(known.unknown.clone(), config, now));
        let mut judgement = Self {
            intents,
            config,
            publication,
            groups: known,
            waivers,
            paused: control.paused_until_seconds.is_some(),
            plan: Plan::default(),
        };
        judgement.plan = judgement.with_input(|input| plan(input, &judgement.going()));
        judgement
    }

    fn with_input<T>(&self, judge: impl FnOnce(&Input<'_>) -> T) -> T {
        let now_seconds = self.intents.now_seconds;
        let mut hosts = self.publication.hosts.clone();
        for host in &mut hosts {
            // It was read just now, whatever the clock here says.
            host.received_timestamp_seconds = Some(now_seconds);
        }
        judge(&Input {
            hosts: &hosts,
            config: self.config,
            groups: &self.groups.groups,
            waivers: &self.waivers,
            unconfirmed: None,
            paused_until_seconds: None,
            now_seconds,
        })
    }

    /// Processes that are to be killed were told to end before: what is chosen comes after them.
    fn going(&self) -> History {
        let mut history = History::default();
        for intent in &self.intents.steps {
            if let StepKind::Kill(target) = &intent.step.kind {
                let step = Step { key: intent.step.key.clone(), kind: StepKind::Terminate(target.clone()) };
                history.settle(&step, &Outcome::Done, self.intents.now_seconds);
            }
        }
        history
    }

    /// The step, if this host finds the same violation, and that the step would end it.
    pub(super) fn of(&self, intent: &Intent) -> Result<Agreed, Outcome> {
        if self.paused {
            return Err(later("it is paused on that host"));
        }
        let Key { rule, subject } = &intent.step.key;
        let Some(rule) = self.config.rules.iter().find(|it| it.name == *rule) else {
            return Err(never("its rule is not among those that came with it"));
        };
        if let StepKind::Kill(_) = intent.step.kind
            && rule.action != Action::Kill
        {
            return Err(never("its rule does not kill"));
        }
        let deed = !matches!(intent.step.kind, StepKind::Report | StepKind::Warn { .. });
        if deed && !rule.action.acts() {
            return Err(never("its rule ends nothing"));
        }
        if judges_alone(rule, subject) {
            let violations = self.plan.violations.iter();
            let found = violations.filter(|violation| violation.key == intent.step.key).map(Found::from);
            return agree(intent, found);
        }
        let all = self.with_input(|input| counted(input, rule));
        let found = all.iter().map(|it| Found {
            username: &it.username,
            uid: it.uid,
            held: it.held.as_deref(),
            targets: &it.targets,
        });
        agree(intent, found)
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

/// Whether one host shows by itself, and in one look, that a rule is broken.
fn judges_alone(rule: &Rule, subject: &Subject) -> bool {
    subject.hostname().is_some() && !matches!(rule.kind, RuleKind::Idle { .. } | RuleKind::UnknownProcesses { .. })
}

fn agree<'f>(intent: &Intent, found: impl Iterator<Item = Found<'f>>) -> Result<Agreed, Outcome> {
    let mut held = None;
    let mut is_users = false;
    for found in found.filter(|found| found.username == intent.username) {
        is_users = true;
        let step = match &intent.step.kind {
            StepKind::Report | StepKind::Warn { .. } => Some(intent.step.clone()),
            StepKind::Terminate(target) | StepKind::Kill(target) => {
                let ends = found.targets.iter().any(|it| ends(it, target));
                ends.then(|| intent.step.clone())
            }
            StepKind::Detach(target) => found.targets.iter().find_map(|it| {
                taken(it, target).map(|target| Step { key: intent.step.key.clone(), kind: StepKind::Detach(target) })
            }),
        };
        match (step, found.held) {
            (Some(step), None) => {
                return Ok(Agreed { step, uid: found.uid });
            }
            (_, Some(why)) => held = Some(why.to_owned()),
            (None, None) => {}
        }
    }
    Err(later(&match held {
        Some(why) => format!("that host leaves it alone: {why}"),
        None if is_users => "that host's own plan would not take it".to_owned(),
        None => "that host's own plan does not show that the rule is broken".to_owned(),
    }))
}

/// Whether ending what a plan chose ends this process.
fn ends(chosen: &Target, target: &ProcessTarget) -> bool {
    let same = |it: &ProcessTarget| {
        it.hostname == target.hostname && it.pid == target.pid && it.start_time_ticks == target.start_time_ticks
    };
    match chosen {
        Target::Process(process) => same(process),
        Target::Attachment(attachment) => attachment.processes.iter().any(|it| same(it)),
    }
}

/// The device as it is taken: with no process that a plan here would not end with it.
fn taken(chosen: &Target, target: &AttachmentTarget) -> Option<AttachmentTarget> {
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

/// Not now, perhaps later.
pub(super) fn later(reason: &str) -> Outcome {
    Outcome::Refused { reason: reason.to_owned(), again: true }
}

fn never(reason: &str) -> Outcome {
    Outcome::Refused { reason: reason.to_owned(), again: false }
}
