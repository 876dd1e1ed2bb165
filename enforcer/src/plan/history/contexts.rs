//! Which GPUs each process of an environment was rightly on, and how busy it was there lately: what a process that
//! loses a device is judged by.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use genv_core::enforcement::LeftBehindContext;
use genv_core::model::Snapshot;

use super::{ByGpu, History, HostHistory};
use crate::plan::facts::{Facts, HostFacts, HostId, ProcessFacts, UseFacts};

/// How long a sample is remembered.
const LONGEST_MEMORY_SECONDS: f64 = 900.0;

/// Peaks kept of one context: each is lower and newer than the one before, so that few are needed.
const MOST_PEAKS: usize = 16;

/// The contexts of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::plan) struct ProcessContexts {
    start_time_ticks: u64,
    gpus: ByGpu<ContextHistory>,
}

/// One context of a process on a GPU, for as long as it lasts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::plan) struct ContextHistory {
    /// Whether the environment of the process was attached to the GPU while the context was there.
    pub(in crate::plan) was_attached: bool,
    /// Of the utilization that was measured.
    #[serde(default, skip_serializing_if = "Peaks::is_empty")]
    measured: Peaks,
    /// Of the utilization as a part of what other users left, while the environment was attached: it may have been as busy.
    #[serde(default, skip_serializing_if = "Peaks::is_empty")]
    peaks: Peaks,
    /// When the latter was last not known, Unix time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unmeasured_seconds: Option<f64>,
}

/// Unix time and utilization, 0–1, of the highest sample and of the highest ones after it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Peaks(VecDeque<(f64, f32)>);

/// Whether a sample is too old to be remembered.
fn is_old(at: f64, now_seconds: f64) -> bool {
    !(0.0..=LONGEST_MEMORY_SECONDS).contains(&(now_seconds - at))
}

impl Peaks {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn observe(&mut self, ratio: Option<f64>, now_seconds: f64) {
        self.0.retain(|(at, _)| !is_old(*at, now_seconds));
        let Some(ratio) = ratio.map(|ratio| ratio as f32) else {
            return;
        };
        while self.0.back().is_some_and(|(_, peak)| *peak <= ratio) {
            self.0.pop_back();
        }
        if ratio > 0.0 {
            self.0.push_back((now_seconds, ratio));
        }
        if self.0.len() > MOST_PEAKS {
            self.0.remove(1);
        }
    }

    fn reached(&self, ratio: f64, seconds: f64, now_seconds: f64) -> bool {
        let recent = |at: f64| (0.0..=seconds).contains(&(now_seconds - at));
        let mut peaks = self.0.iter();
        peaks.any(|(at, peak)| recent(*at) && f64::from(*peak) >= ratio)
    }
}

impl ContextHistory {
    /// `of_what_is_left`: `measured` as a part of what other users left.
    fn observe(&mut self, measured: Option<f64>, of_what_is_left: Option<f64>, now_seconds: f64) {
        self.measured.observe(measured, now_seconds);
        self.peaks.observe(of_what_is_left, now_seconds);
        self.unmeasured_seconds = match of_what_is_left {
            Some(_) => self.unmeasured_seconds.filter(|at| !is_old(*at, now_seconds)),
            None => Some(now_seconds),
        };
    }

    /// Follows a context that its GPU does not list. Returns whether it may go on: then its utilization is not known now.
    fn follow_unlisted(&mut self, host: &HostFacts<'_>, gpu: u32, now_seconds: f64) -> bool {
        let is_unknown = !host.measures_processes(gpu);
        if is_unknown {
            self.observe(None, None, now_seconds);
        }
        is_unknown
    }

    /// Whether it was measured to reach this utilization within the last `seconds`.
    pub(in crate::plan) fn reached(&self, ratio: f64, seconds: f64, now_seconds: f64) -> bool {
        self.measured.reached(ratio, seconds, now_seconds)
    }

    /// Whether it may have reached this utilization within the last `seconds`, had other users left it the GPU.
    pub(in crate::plan) fn may_have_reached(&self, ratio: f64, seconds: f64, now_seconds: f64) -> bool {
        self.peaks.reached(ratio, seconds, now_seconds)
    }

    /// Whether its utilization was not measured at some time within the last `seconds`.
    pub(in crate::plan) fn was_unmeasured(&self, seconds: f64, now_seconds: f64) -> bool {
        let at = self.unmeasured_seconds;
        at.is_some_and(|at| (0.0..=seconds).contains(&(now_seconds - at)))
    }
}

impl History {
    /// Takes over what a daemon has published of contexts that were left behind, for a program that may not read its memory.
    pub(crate) fn take_left_behind(
        &mut self,
        published: &[LeftBehindContext],
        hostname: &str,
        snapshot: &Snapshot,
        now_seconds: f64,
    ) {
        let host = self.hosts.entry(hostname.to_owned()).or_default();
        for left in published.iter().filter(|it| it.hostname == hostname) {
            let mut processes = snapshot.processes.iter();
            let process = processes.find(|process| process.pid == left.pid);
            let Some(start_time_ticks) = process.and_then(|it| it.start_time_ticks) else {
                continue;
            };
            let new = || ProcessContexts { start_time_ticks, gpus: ByGpu::default() };
            let known = host.contexts.entry(left.pid).or_insert_with(new);
            known.gpus.entry(left.gpu, Default::default).was_attached = true;
            let works_on = known.gpus.entry(left.works_on, Default::default);
            works_on.observe(Some(1.0), Some(1.0), now_seconds);
        }
    }
}

impl HostHistory {
    /// What is remembered of a process's context on a GPU.
    pub(in crate::plan) fn context(&self, process: &ProcessFacts<'_>, gpu: u32) -> Option<&ContextHistory> {
        let known = self.contexts.get(&process.process.pid)?;
        (Some(known.start_time_ticks) == process.process.start_time_ticks).then(|| known.gpus.get(gpu)).flatten()
    }

    /// Notes the contexts of a host whose devices and processes were read anew. A context of which nothing is known now is
    /// remembered as it was; one that is gone is forgotten.
    pub(super) fn follow_contexts(&mut self, facts: &Facts<'_>, host: HostId, now_seconds: f64) {
        let host = &facts.hosts[host];
        let processes = &facts.processes[host.processes.clone()];
        for process in processes {
            let Some(start_time_ticks) = process.process.start_time_ticks else {
                continue;
            };
            let pid = process.process.pid;
            let known = self.contexts.get(&pid);
            if known.is_none_or(|known| known.start_time_ticks != start_time_ticks) {
                self.contexts.remove(&pid);
                if process.environment.is_none() {
                    continue;
                }
            }
            let new = || ProcessContexts { start_time_ticks, gpus: ByGpu::default() };
            let known = self.contexts.entry(pid).or_insert_with(new);
            known.follow(facts, process, now_seconds);
        }
        let mut listed: Vec<u32> = processes.iter().map(|it| it.process.pid).collect();
        listed.sort_unstable();
        self.contexts.retain(|pid, known| {
            if listed.binary_search(pid).is_err() {
                known.gpus.retain(|gpu, context| context.follow_unlisted(host, gpu, now_seconds));
            }
            !known.gpus.is_empty()
        });
    }
}

impl ProcessContexts {
    fn follow(&mut self, facts: &Facts<'_>, process: &ProcessFacts<'_>, now_seconds: f64) {
        let uses: &[UseFacts] = &facts.uses[process.uses.clone()];
        let host = &facts.hosts[process.host];
        let is_listed = |gpu: u32| uses.iter().any(|used| used.gpu == gpu);
        self.gpus.retain(|gpu, context| is_listed(gpu) || context.follow_unlisted(host, gpu, now_seconds));
        let Some(environment) = process.environment else {
            return;
        };
        let attached = facts.attachments_of(environment);
        for used in uses {
            let context = self.gpus.entry(used.gpu, Default::default);
            let is_attached = attached.iter().any(|it| it.gpu == used.gpu);
            context.was_attached |= is_attached;
            let of_what_is_left = match is_attached {
                true => used.of_what_is_left(),
                false => used.utilization_ratio,
            };
            // How busy it is matters only beside another device.
            if uses.len() > 1 {
                context.observe(used.utilization_ratio, of_what_is_left, now_seconds);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_highest_sample_of_the_time_is_remembered_in_bounded_memory(
            samples in prop::collection::vec((1.0_f64..60.0, prop::option::weighted(0.9, 0.0_f64..1.0)), 1..200),
            is_long in any::<bool>(),
        ) {
            let mut context = ContextHistory::default();
            let mut now = 0.0;
            let mut all = Vec::new();
            for (gap, ratio) in samples {
                // Beyond its memory it may have forgotten lower peaks, and never invents one.
                now += if is_long { gap } else { gap / 16.0 };
                context.observe(ratio.map(|ratio| ratio / 2.0), ratio, now);
                all.push((now, ratio));
                prop_assert!(context.peaks.0.len() <= MOST_PEAKS);
            }
            let recent = all.iter().filter(|(at, _)| now - at <= LONGEST_MEMORY_SECONDS);
            let highest = recent.clone().filter_map(|(_, ratio)| *ratio).fold(0.0, f64::max);
            if highest > 0.001 && !is_long {
                prop_assert!(context.may_have_reached(highest - 0.001, LONGEST_MEMORY_SECONDS, now));
                prop_assert!(context.reached(highest / 2.0 - 0.001, LONGEST_MEMORY_SECONDS, now));
            }
            prop_assert!(!context.may_have_reached(highest + 0.001, LONGEST_MEMORY_SECONDS, now));
            prop_assert!(!context.reached(highest / 2.0 + 0.001, LONGEST_MEMORY_SECONDS, now));
            let unmeasured = recent.clone().any(|(_, ratio)| ratio.is_none());
            prop_assert_eq!(context.was_unmeasured(LONGEST_MEMORY_SECONDS, now), unmeasured);
        }
    }
}
