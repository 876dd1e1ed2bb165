//! Rules in a line each, cycles on a clock that tests turn, and what came of them in short.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use genv_core::model::HostSnapshot;
use jiff::tz::TimeZone;

pub(crate) use super::lab::*;
use crate::config::*;
pub(crate) use crate::kinds::tests::*;
pub(crate) use crate::kinds::*;
use crate::plan::*;

pub(crate) fn rule(kind: impl Into<RuleKind>, action: Action) -> Rule {
    let kind = kind.into();
    let name = format!("{kind:?}");
    Rule {
        name: name.split([' ', '{']).next().unwrap().to_owned(),
        kind,
        action,
        for_duration: Duration::ZERO,
        warn: Vec::new(),
        undelivered: Undelivered::Act,
        grace: Duration::from_secs(60),
        processes: DetachedProcesses::Terminate,
        selector: Selector::default(),
        schedule: None,
        remember: Duration::ZERO,
    }
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

/// For a day, because of a deadline.
pub(crate) fn waiver(user: &str, rules: &[&str]) -> Waiver {
    let until_seconds = NOON + 86_400.0;
    Waiver { users: names(&[user]), rules: names(rules), until_seconds, reason: "dead\nline".to_owned() }
}

/// Maintenance of a host from noon to one o'clock.
pub(crate) fn maintenance(host: &str) -> Maintenance {
    Maintenance { hosts: HostSet(names(&[host])), from_seconds: NOON, until_seconds: NOON + 3600.0 }
}

pub(crate) fn limit(default: u64) -> Limits<u64> {
    Limits {
        base: Limit { default: Some(default), groups: BTreeMap::new(), users: BTreeMap::new() },
        overrides: Vec::new(),
    }
}

pub(crate) fn max_devices_per_user(default: u64, scope: Scope) -> RuleKind {
    RuleKind::from(MaxDevicesPerUser { limits: limit(default), scope })
}

pub(crate) fn max_memory(default: u64, per: MemoryPer, scope: Scope) -> RuleKind {
    RuleKind::from(MaxMemoryPerUser { limits: limit(default), per, scope })
}

/// Idle for ten minutes.
pub(crate) fn idle(action: Action) -> Rule {
    rule(Idle { below: 0.05, over: seconds(600), only_if_free_devices_below: None }, action)
}

impl Rule {
    pub(crate) fn timed(self, for_seconds: u64, warn: &[u64], remember: u64) -> Self {
        let warn = warn.iter().copied().map(seconds).collect();
        Self { for_duration: seconds(for_seconds), warn, remember: seconds(remember), ..self }
    }
}

pub(crate) fn max_environments_per_user(default: u64, scope: Scope) -> RuleKind {
    RuleKind::from(MaxEnvironmentsPerUser { limits: limit(default), scope })
}

#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    pub(crate) config: Config,
    pub(crate) history: History,
    pub(crate) now_seconds: f64,
    pub(crate) paused_until_seconds: Option<f64>,
    pub(crate) waivers: Vec<Waiver>,
}

impl Daemon {
    pub(crate) fn new(rules: Vec<Rule>) -> Self {
        let config = Config {
            hash: String::new(),
            mode: Mode::Enforce,
            interval: seconds(10),
            timezone: TimeZone::UTC,
            never: Never { users: names(&["root", "admin"]), executables: BTreeSet::new() },
            breaker: BreakerLimits::default(),
            notify_socket: None,
            maintenance: Vec::new(),
            waivers: Vec::new(),
            rules,
        };
        Self { config, history: History::default(), now_seconds: NOON, paused_until_seconds: None, waivers: Vec::new() }
    }

    pub(crate) fn input<'a>(&'a self, hosts: &'a [HostSnapshot], lab: &'a Lab) -> Input<'a> {
        Input {
            hosts,
            config: &self.config,
            groups: &lab.groups,
            waivers: &self.waivers,
            unconfirmed: lab.unconfirmed.as_ref(),
            paused_until_seconds: self.paused_until_seconds,
            now_seconds: self.now_seconds,
        }
    }

    /// What would be done now, with fresh facts.
    pub(crate) fn plan(&self, lab: &Lab) -> Plan {
        plan(&self.input(&lab.at(self.now_seconds), lab), &self.history)
    }

    /// One cycle with fresh facts, in which every step is done; the lab stays as it is.
    pub(crate) fn cycle(&mut self, lab: &Lab) -> Plan {
        self.cycle_with(lab, |_| Outcome::Done)
    }

    pub(crate) fn cycle_with(&mut self, lab: &Lab, outcome: impl Fn(&Step) -> Outcome) -> Plan {
        let hosts = lab.at(self.now_seconds);
        self.cycle_on(&hosts, lab, outcome)
    }

    pub(crate) fn cycle_on(&mut self, hosts: &[HostSnapshot], lab: &Lab, outcome: impl Fn(&Step) -> Outcome) -> Plan {
        let mut history = std::mem::take(&mut self.history);
        let input = self.input(hosts, lab);
        let plan = history.plan(&input);
        for step in &plan.steps {
            history.settle(step, &outcome(step), self.now_seconds);
        }
        // As a daemon that is started anew for each cycle.
        self.history = History::parse(&history.to_json().unwrap()).unwrap();
        plan
    }

    /// Cycles of ten seconds until `seconds` have passed. Detached devices leave the lab; no process ends. Returns the
    /// steps from the first cycle on, each with its time.
    pub(crate) fn run(&mut self, lab: &Lab, seconds: u64) -> Vec<(f64, StepKind)> {
        self.run_with(lab, seconds, |_, _| Outcome::Done)
    }

    /// The same with the outcome of a step at a time.
    pub(crate) fn run_with(
        &mut self,
        lab: &Lab,
        seconds: u64,
        outcome: impl Fn(f64, &Step) -> Outcome,
    ) -> Vec<(f64, StepKind)> {
        let end = self.now_seconds + seconds as f64;
        let mut lab = lab.clone();
        let mut steps = Vec::new();
        while self.now_seconds < end {
            let at = self.now_seconds - NOON;
            let plan = self.cycle_with(&lab, |step| outcome(at, step));
            lab = plan.steps.iter().fold(lab, |lab, step| match &step.kind {
                StepKind::Detach(target) => lab.detached(target),
                _ => lab,
            });
            steps.extend(plan.steps.into_iter().map(|step| (at, step.kind)));
            self.now_seconds += 10.0;
        }
        steps
    }
}

/// What a rule about idle devices does in a lab that stays as it is for ten minutes.
pub(crate) fn idle_actions(lab: &Lab) -> Vec<String> {
    let mut daemon = Daemon::new(vec![idle(Action::Detach)]);
    daemon.run(lab, 600);
    actions(&daemon.plan(lab))
}

/// Steps with their times: `60 report`.
pub(crate) fn lines(steps: &[(f64, StepKind)]) -> Vec<String> {
    let line = |(at, kind): &(f64, StepKind)| format!("{at} {}", short(kind));
    steps.iter().map(line).collect()
}

/// Steps in short: `terminate 4242`, `detach e1:0 (4242)`, `warn 1/2`.
pub(crate) fn short(kind: &StepKind) -> String {
    match kind {
        StepKind::Report => "report".to_owned(),
        StepKind::Warn { number, of, .. } => format!("warn {number}/{of}"),
        StepKind::Detach(target) => format!("detach {}", short_attachment(target)),
        StepKind::Terminate(target) => format!("terminate {}", target.pid),
        StepKind::Kill(target) => format!("kill {}", target.pid),
    }
}

fn short_attachment(target: &AttachmentTarget) -> String {
    let pids: Vec<String> = target.processes.iter().map(|it| it.pid.to_string()).collect();
    let AttachmentTarget { eid, gpu, .. } = target;
    match pids.as_slice() {
        [] => format!("{eid}:{gpu}"),
        pids => format!("{eid}:{gpu} ({})", pids.join(" ")),
    }
}

pub(crate) fn actions(plan: &Plan) -> Vec<String> {
    let steps = plan.steps.iter().map(|step| short(&step.kind));
    steps.filter(|step| step != "report").collect()
}

pub(crate) fn targets(violation: &Violation) -> Vec<String> {
    let of = |target: &Target| match target {
        Target::Process(target) => target.pid.to_string(),
        Target::Attachment(target) => short_attachment(target),
    };
    violation.targets.iter().map(of).collect()
}
