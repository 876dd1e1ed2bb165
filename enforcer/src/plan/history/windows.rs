//! The windows of `idle`, from one attachment to the next.

use std::collections::BTreeMap;
use std::time::Duration;

use super::evidence::groups_are_unknown;
use super::{HostHistory, IdleWindow};
use crate::config::RuleKind;
use crate::plan::facts::{Facts, HostId};
use crate::plan::rules;
use crate::plan::selector::View;

/// Windows by eid and GPU.
pub(in crate::plan) type Windows = BTreeMap<String, BTreeMap<u32, IdleWindow>>;

impl HostHistory {
    /// Notes how busy attachments were on a host whose devices and processes were read anew.
    pub(super) fn follow_idle<'a>(
        &mut self,
        facts: &Facts<'a>,
        id: HostId,
        views: &BTreeMap<&str, View<'_, 'a>>,
    ) {
        let mut idle = std::mem::take(&mut self.idle);
        let mut left = std::mem::take(&mut self.idle_left);
        for (name, view) in views {
            let RuleKind::Idle { over, .. } = view.rule.kind else {
                continue;
            };
            let last = idle.remove(*name).unwrap_or_default();
            let mut following = Following {
                facts,
                host: id,
                view,
                over,
                left: left.remove(*name).unwrap_or_default(),
            };
            let windows = following.windows(last);
            if !windows.is_empty() {
                self.idle.insert((*name).to_owned(), windows);
            }
            if !following.left.is_empty() {
                self.idle_left.insert((*name).to_owned(), following.left);
            }
        }
    }
}

/// One rule on one host.
struct Following<'f, 'a> {
    facts: &'f Facts<'a>,
    host: HostId,
    view: &'f View<'f, 'a>,
    over: Duration,
    /// By user and GPU: windows of attachments that are gone.
    left: BTreeMap<String, BTreeMap<u32, IdleWindow>>,
}

impl Following<'_, '_> {
    fn windows(&mut self, mut last: Windows) -> Windows {
        let (facts, view) = (self.facts, self.view);
        let host = &facts.hosts[self.host];
        let freshness = &host.freshness;
        let remember = view.rule.remember.as_secs_f64();
        let mut windows = Windows::new();
        let attachments = facts.environments[host.environments.clone()]
            .iter()
            .flat_map(|environment| &facts.attachments[environment.attachments.clone()]);
        for attachment in attachments.filter(|attachment| view.sees_attachment(attachment)) {
            let eid = &facts.environments[attachment.environment].environment.eid;
            let username = facts.users[attachment.user].name;
            let window = last
                .get_mut(eid)
                .and_then(|gpus| gpus.remove(&attachment.gpu));
            let window = window.filter(|window| window.is_of(username));
            let window = window.or_else(|| self.left.get_mut(username)?.remove(&attachment.gpu));
            let mut window = window.unwrap_or_default();
            window.follow(username, attachment.attached_seconds, remember > 0.0);
            match rules::sample(facts, attachment) {
                Some(sample) => {
                    window.observe(sample, self.over, freshness.longest_gap_seconds);
                }
                None => window.wait(),
            }
            let gpus = windows.entry(eid.clone()).or_default();
            gpus.insert(attachment.gpu, window);
        }
        for (eid, gpus) in last {
            let is_left_out =
                host.state_is_damaged() && facts.environment(host.hostname, &eid).is_none();
            for (gpu, mut window) in gpus {
                window.wait();
                let Some(username) = window.username().map(str::to_owned) else {
                    continue;
                };
                let is_unknown = is_left_out
                    || host.holders_are_damaged(gpu)
                    || groups_are_unknown(facts, view.rule, &username);
                if is_unknown {
                    windows.entry(eid.clone()).or_default().insert(gpu, window);
                } else {
                    self.left.entry(username).or_default().insert(gpu, window);
                }
            }
        }
        let now = freshness.read.gpu_seconds;
        self.left.retain(|_, gpus| {
            gpus.retain(|_, window| window.is_younger(remember, now));
            !gpus.is_empty()
        });
        windows
    }
}
