//! For how long processes of a user, of which it is not known where they belong, hide whether a device that the user holds
//! is idle.

use serde::{Deserialize, Serialize};

use super::{HostHistory, ObservedTime};
use crate::config::Rule;
use crate::plan::facts::{Facts, HostId};

/// For how long a device was hidden, and when it was last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hidden {
    time: ObservedTime,
    /// Unix time.
    last_seconds: f64,
}

impl HostHistory {
    /// For how long a device of a user is hidden, if it is hidden now.
    pub(crate) fn hidden_seconds(&self, username: &str, gpu: u32, now_seconds: f64, longest_gap_seconds: f64) -> f64 {
        let hidden = self.hidden.get(username).and_then(|gpus| gpus.get(&gpu));
        hidden.map_or(0.0, |it| it.time.at(now_seconds, longest_gap_seconds))
    }

    /// Notes which held devices are hidden on a host whose devices and processes were read anew. The time of one that is
    /// not hidden waits for as long as the rules remember, and where it is not known whether it is.
    pub(super) fn follow_hidden(&mut self, facts: &Facts<'_>, host: HostId, rules: &[Rule], now_seconds: f64) {
        let host = &facts.hosts[host];
        let gap = host.freshness.longest_gap_seconds;
        let mut last = std::mem::take(&mut self.hidden);
        if host.unknown_uses.is_empty() && last.is_empty() {
            return;
        }
        let attachments = &facts.environments[host.environments.clone()];
        let attachments = attachments.iter().flat_map(|it| &facts.attachments[it.attachments.clone()]);
        for attachment in attachments {
            let (username, gpu) = (facts.users[attachment.user].name, attachment.gpu);
            let of_user = self.hidden.get(username);
            // Several environments of a user may hold it.
            if of_user.is_some_and(|gpus| gpus.contains_key(&gpu)) || !host.is_hidden_by(username, gpu) {
                continue;
            }
            let known = last.get_mut(username).and_then(|gpus| gpus.remove(&gpu));
            let mut time = known.map_or_else(|| ObservedTime::begin(now_seconds), |it| it.time);
            time.observe(now_seconds, gap);
            let hidden = Hidden { time, last_seconds: now_seconds };
            self.hidden.entry(username.to_owned()).or_default().insert(gpu, hidden);
        }
        let remember = remember_seconds(rules);
        for (username, gpus) in last {
            for (gpu, mut hidden) in gpus {
                let is_known = host.measures_processes(gpu) && !host.state_is_damaged();
                if is_known && (now_seconds - hidden.last_seconds).abs() >= remember {
                    continue;
                }
                hidden.time.wait();
                self.hidden.entry(username.clone()).or_default().insert(gpu, hidden);
            }
        }
    }
}

/// The longest time for which a rule about unknown processes remembers.
fn remember_seconds(rules: &[Rule]) -> f64 {
    let about = rules.iter().filter(|rule| rule.kind.looks_at_unknown());
    about.fold(0.0, |longest, rule| longest.max(rule.remember.as_secs_f64()))
}
