//! Processes that lose a device and work on another one: they are spared, and the context that they leave behind on the
//! lost device breaks no rule.

use std::time::Duration;

use genv_core::model::Attribution;

use super::facts::{AttachmentFacts, Facts, ProcessId, UseFacts};
use super::history::{ContextHistory, Past};
use super::{History, Input, ProcessTarget};
use crate::config::Rule;

/// Utilization from which on a process is busy, where the rule names none.
const DEFAULT_BUSY_RATIO: f64 = 0.05;

/// For how long a process that was busy still counts as such, where no rule is asked.
const DEFAULT_RECENT_SECONDS: f64 = 300.0;

/// A context that a detach left behind on a device: its process works on another device, which its environment holds.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftBehind {
    /// Host.
    pub hostname: String,
    /// Environment of the process.
    pub eid: String,
    /// Its user.
    pub username: String,
    /// The process.
    pub pid: u32,
    /// Its command name.
    pub comm: Option<String>,
    /// The GPU on which the context was left.
    pub gpu: u32,
    /// A GPU that the environment holds, and on which the process works, or may work while the use of the GPU is unknown.
    pub works_on: u32,
}

/// From when on a process is busy, and for how long it counts as busy after that: between two samples a training that
/// writes a checkpoint is not idle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy {
    ratio: f64,
    recent_seconds: f64,
}

impl Busy {
    /// The usual utilization, within this time.
    pub(crate) const fn recently(recent: Duration) -> Self {
        Self { ratio: DEFAULT_BUSY_RATIO, recent_seconds: recent.as_secs_f64() }
    }

    /// The same for a rule that acts after `for_duration`: a rule that acts at once does so also while a training writes
    /// a checkpoint.
    pub(crate) fn at_least_recently(for_duration: Duration) -> Self {
        let recent_seconds = for_duration.as_secs_f64().max(DEFAULT_RECENT_SECONDS);
        Self { ratio: DEFAULT_BUSY_RATIO, recent_seconds }
    }

    /// This utilization or more, within this time.
    pub(crate) const fn from(ratio: f64, recent: Duration) -> Self {
        Self { ratio, recent_seconds: recent.as_secs_f64() }
    }
}

/// What processes do on devices, now and lately.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contexts<'c, 'a> {
    facts: &'c Facts<'a>,
    past: &'c Past<'c>,
    now_seconds: f64,
}

impl<'c, 'a> Contexts<'c, 'a> {
    pub(crate) const fn new(facts: &'c Facts<'a>, past: &'c Past<'c>, now_seconds: f64) -> Self {
        Self { facts, past, now_seconds }
    }

    fn history(&self, used: &UseFacts) -> Option<&'c ContextHistory> {
        let process = &self.facts.processes[used.process];
        self.past.host(process.host)?.context(process, used.gpu)
    }

    /// Whether a process was measured to be busy on a GPU.
    fn is_measured_busy(&self, used: &UseFacts, busy: Busy) -> bool {
        let was_busy = |it: &ContextHistory| it.reached(busy.ratio, busy.recent_seconds, self.now_seconds);
        used.utilization_ratio.is_some_and(|ratio| ratio >= busy.ratio) || self.history(used).is_some_and(was_busy)
    }

    /// Whether a process may be busy on a GPU: what was not measured is not idle, and other users may have left it no more.
    fn may_be_busy(&self, used: &UseFacts, busy: Busy) -> bool {
        let may_have_been = |it: &ContextHistory| {
            it.may_have_reached(busy.ratio, busy.recent_seconds, self.now_seconds)
                || it.was_unmeasured(busy.recent_seconds, self.now_seconds)
        };
        used.of_what_is_left().is_none_or(|ratio| ratio >= busy.ratio) || self.history(used).is_some_and(may_have_been)
    }

    /// A GPU other than `gpu` on which a process is busy, and which its environment holds by an attachment that `stays`. The
    /// use of a GPU that does not answer is unknown: each process of the environment may be busy there, also one that had
    /// no context there before.
    pub(crate) fn works_on(
        &self,
        id: ProcessId,
        gpu: u32,
        busy: Busy,
        stays: impl Fn(&AttachmentFacts) -> bool,
    ) -> Option<u32> {
        let process = &self.facts.processes[id];
        let attached = self.facts.attachments_of(process.environment?);
        let holds = |gpu: u32| attached.iter().any(|it| it.gpu == gpu && stays(it));
        let mut uses = self.facts.uses[process.uses.clone()].iter();
        let busy_on = uses.find(|used| used.gpu != gpu && holds(used.gpu) && self.may_be_busy(used, busy));
        busy_on.map(|used| used.gpu).or_else(|| {
            let host = &self.facts.hosts[process.host];
            let is_unknown = |it: &&AttachmentFacts| it.gpu != gpu && stays(it) && !host.knows_use(it.gpu);
            attached.iter().find(is_unknown).map(|it| it.gpu)
        })
    }

    /// Whether the context of a process on a GPU was left behind by a detach: its environment held the GPU while it had the
    /// context, the process computes nothing there, and it works, or may work, on a GPU that the environment holds, which
    /// is the answer.
    pub(crate) fn left_behind(&self, used: &UseFacts, busy: Busy) -> Option<u32> {
        let process = &self.facts.processes[used.process];
        let attached = self.facts.attachments_of(process.environment?);
        if attached.iter().any(|it| it.gpu == used.gpu)
            || !self.history(used)?.was_attached
            || self.is_measured_busy(used, busy)
        {
            return None;
        }
        self.works_on(used.process, used.gpu, busy, |_| true)
    }

    /// Whether the context of a process would be left behind if its environment lost the GPU; as [`Self::left_behind`].
    pub(crate) fn leaves_behind(
        &self,
        used: &UseFacts,
        busy: Busy,
        stays: impl Fn(&AttachmentFacts) -> bool,
    ) -> Option<u32> {
        if self.is_measured_busy(used, busy) {
            return None;
        }
        self.works_on(used.process, used.gpu, busy, stays)
    }
}

/// What processes of which a device was taken do now.
pub(crate) struct Since<'h> {
    facts: Facts<'h>,
    past: Past<'h>,
    now_seconds: f64,
}

impl<'h> Since<'h> {
    pub(crate) fn new(input: &Input<'h>, history: &'h History) -> Self {
        let facts = Facts::new(input, history);
        Self { past: Past::new(history, &facts), facts, now_seconds: input.now_seconds }
    }

    /// Whether a process that is to end with a GPU works, or may work, on another one that its environment holds now, so
    /// that the rule would spare it.
    pub(crate) fn is_spared(&self, rule: &Rule, process: &ProcessTarget, gpu: u32) -> bool {
        let contexts = Contexts { facts: &self.facts, past: &self.past, now_seconds: self.now_seconds };
        let id = self.facts.process(&process.hostname, process.pid);
        let id = id.filter(|&id| {
            let started = self.facts.processes[id].process.start_time_ticks;
            started == Some(process.start_time_ticks)
        });
        id.is_some_and(|id| contexts.works_on(id, gpu, rule.busy(), |_| true).is_some())
    }
}

/// All contexts that were left behind.
pub(crate) fn left_behind(facts: &Facts<'_>, input: &Input<'_>, past: &Past<'_>) -> Vec<LeftBehind> {
    let contexts = Contexts::new(facts, past, input.now_seconds);
    let all = facts.unattached_uses.iter().filter_map(|&position| {
        let used = &facts.uses[position];
        let works_on = contexts.left_behind(used, Busy::at_least_recently(Duration::ZERO))?;
        let process = &facts.processes[used.process];
        let Attribution::Environment { eid } = &process.process.attribution else {
            return None;
        };
        Some(LeftBehind {
            hostname: facts.hosts[process.host].hostname.to_owned(),
            eid: eid.clone(),
            username: facts.users[process.user?].name.to_owned(),
            pid: process.process.pid,
            comm: process.process.comm.clone(),
            gpu: used.gpu,
            works_on,
        })
    });
    all.collect()
}
