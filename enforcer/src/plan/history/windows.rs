//! The windows of `idle`, from one attachment to the next.

use std::collections::BTreeMap;
use std::time::Duration;

use super::evidence::groups_are_unknown;
use super::{HostHistory, IdleWindow};
use crate::config::RuleKind;
use crate::plan::facts::{AttachmentId, HostId};
use crate::plan::rules;
use crate::plan::selector::View;

/// Windows by eid and GPU.
pub(in crate::plan) type Windows = BTreeMap<String, BTreeMap<u32, IdleWindow>>;

/// Windows of attachments that are gone, by user and GPU.
type Left = BTreeMap<String, BTreeMap<u32, IdleWindow>>;

/// The windows of a rule on a host, by what they are of at this look.
#[derive(Default)]
pub(in crate::plan) struct Continued {
    /// By attachment: one for each that the rule looks at.
    pub(in crate::plan) windows: BTreeMap<AttachmentId, IdleWindow>,
    /// Of attachments of which it is not known whether they are gone.
    unknown: Windows,
    left: Left,
}

impl HostHistory {
    /// Notes how busy attachments were on a host whose devices and processes were read anew.
    pub(super) fn follow_idle(&mut self, id: HostId, views: &BTreeMap<&str, View<'_, '_>>) {
        let mut idle = std::mem::take(&mut self.idle);
        let mut left = std::mem::take(&mut self.idle_left);
        for (name, view) in views {
            let RuleKind::Idle { over, .. } = view.rule.kind else {
                continue;
            };
            let last = idle.remove(*name).unwrap_or_default();
            let left = left.remove(*name).unwrap_or_default();
            let (windows, left) = Continued::new(view, id, last, left).follow(view, id, over);
            if !windows.is_empty() {
                self.idle.insert((*name).to_owned(), windows);
            }
            if !left.is_empty() {
                self.idle_left.insert((*name).to_owned(), left);
            }
        }
    }

    /// The windows of a rule before this look, each with the attachment that goes on with it.
    pub(in crate::plan) fn continued(&self, view: &View<'_, '_>, id: HostId) -> Continued {
        let name = &view.rule.name;
        let last = self.idle.get(name).cloned().unwrap_or_default();
        let left = self.idle_left.get(name).cloned().unwrap_or_default();
        Continued::new(view, id, last, left)
    }
}

impl Continued {
    /// An attachment goes on with its own window; one that was made since, with that of the same user's attachment to the
    /// device that is gone, if the rule remembers it.
    fn new(view: &View<'_, '_>, id: HostId, mut last: Windows, left: Left) -> Self {
        let facts = view.facts;
        let host = &facts.hosts[id];
        let remembers = !view.rule.remember.is_zero();
        let mut continued = Self {
            left,
            ..Self::default()
        };
        let attachments = facts.environments[host.environments.clone()].iter();
        let attachments = attachments.flat_map(|environment| environment.attachments.clone());
        let attachments = attachments.filter(|id| view.sees_attachment(&facts.attachments[*id]));
        let mut made = Vec::new();
        for id in attachments {
            let attachment = &facts.attachments[id];
            let eid = &facts.environments[attachment.environment].environment.eid;
            let own = last.get_mut(eid);
            let own = own.and_then(|gpus| gpus.remove(&attachment.gpu));
            match own.filter(|window| window.is_of(facts.users[attachment.user].name)) {
                Some(window) => _ = continued.windows.insert(id, window),
                None => made.push(id),
            }
        }
        let mut gone = Left::new();
        for (eid, gpus) in last {
            let is_left_out =
                host.state_is_damaged() && facts.environment(host.hostname, &eid).is_none();
            for (gpu, mut window) in gpus {
                let Some(username) = window.username().map(str::to_owned) else {
                    continue;
                };
                let is_unknown = is_left_out
                    || host.holders_are_damaged(gpu)
                    || groups_are_unknown(facts, view.rule, &username);
                if is_unknown {
                    window.wait();
                    let unknown = continued.unknown.entry(eid.clone()).or_default();
                    unknown.insert(gpu, window);
                } else {
                    gone.entry(username).or_default().insert(gpu, window);
                }
            }
        }
        for id in made {
            let attachment = &facts.attachments[id];
            let username = facts.users[attachment.user].name;
            let of_user = |left: &mut Left| left.get_mut(username)?.remove(&attachment.gpu);
            let window =
                remembers.then(|| of_user(&mut gone).or_else(|| of_user(&mut continued.left)));
            let window = window.flatten().unwrap_or_default();
            continued.windows.insert(id, window);
        }
        for (id, window) in &mut continued.windows {
            let attachment = &facts.attachments[*id];
            let username = facts.users[attachment.user].name;
            window.follow(username, attachment.attached_seconds, remembers);
        }
        for (username, gpus) in gone {
            let left = continued.left.entry(username).or_default();
            for (gpu, mut window) in gpus {
                window.wait();
                left.insert(gpu, window);
            }
        }
        continued
    }

    /// The windows with this look, and those that are left.
    fn follow(self, view: &View<'_, '_>, id: HostId, over: Duration) -> (Windows, Left) {
        let facts = view.facts;
        let freshness = &facts.hosts[id].freshness;
        let mut windows = self.unknown;
        for (id, mut window) in self.windows {
            let attachment = &facts.attachments[id];
            let eid = &facts.environments[attachment.environment].environment.eid;
            match rules::sample(facts, attachment) {
                Some(sample) => {
                    window.observe(sample, over, freshness.longest_gap_seconds);
                }
                None => window.wait(),
            }
            let gpus = windows.entry(eid.clone()).or_default();
            gpus.insert(attachment.gpu, window);
        }
        let remember = view.rule.remember.as_secs_f64();
        let now = freshness.read.gpu_seconds;
        let mut left = self.left;
        left.retain(|_, gpus| {
            gpus.retain(|_, window| window.is_younger(remember, now));
            !gpus.is_empty()
        });
        (windows, left)
    }
}
