//! For how long processes of a user, of which it is not known where they belong, hide whether a device that the user holds
//! is idle.

use std::collections::BTreeMap;

use super::{HostHistory, ObservedTime};
use crate::plan::facts::{Facts, HostId};

impl HostHistory {
    /// For how long a device of a user is hidden, if it is hidden now.
    pub(in crate::plan) fn hidden_seconds(
        &self,
        username: &str,
        gpu: u32,
        now_seconds: f64,
        longest_gap_seconds: f64,
    ) -> f64 {
        let hidden = self.hidden.get(username).and_then(|gpus| gpus.get(&gpu));
        hidden.map_or(0.0, |hidden| hidden.at(now_seconds, longest_gap_seconds))
    }

    /// Notes which held devices are hidden on a host whose devices and processes were read anew. Where the driver does not
    /// tell the processes, the time waits.
    pub(super) fn follow_hidden(&mut self, facts: &Facts<'_>, host: HostId, now_seconds: f64) {
        let host = &facts.hosts[host];
        let gap = host.freshness.longest_gap_seconds;
        let mut last = std::mem::take(&mut self.hidden);
        if host.unknown_uses.is_empty() && last.is_empty() {
            return;
        }
        let mut hidden: BTreeMap<String, BTreeMap<u32, ObservedTime>> = BTreeMap::new();
        for environment in &facts.environments[host.environments.clone()] {
            for attachment in &facts.attachments[environment.attachments.clone()] {
                let (username, gpu) = (facts.users[attachment.user].name, attachment.gpu);
                let known = last.get_mut(username).and_then(|gpus| gpus.remove(&gpu));
                let time = if host.is_hidden_by(username, gpu) {
                    let mut time = known.unwrap_or_else(|| ObservedTime::begin(now_seconds));
                    time.observe(now_seconds, gap);
                    time
                } else {
                    match known {
                        Some(mut time) if !host.measures_processes(gpu) => {
                            time.wait();
                            time
                        }
                        _ => continue,
                    }
                };
                let gpus = hidden.entry(username.to_owned()).or_default();
                gpus.insert(gpu, time);
            }
        }
        self.hidden = hidden;
    }
}
