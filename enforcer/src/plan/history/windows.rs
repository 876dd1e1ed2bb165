//! The windows of `idle`, from one attachment to the next.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use super::evidence::groups_are_unknown;
use super::idle::Holding;
use super::{HostHistory, IdleWindow};
use crate::config::RuleKind;
use crate::plan::facts::{AttachmentFacts, Facts, HostId};
use crate::plan::rules;
use crate::plan::selector::View;

/// Windows by eid and GPU.
pub(in crate::plan) type Windows = BTreeMap<String, BTreeMap<u32, IdleWindow>>;

/// Windows of attachments that are gone, by user and GPU.
type Left = BTreeMap<String, BTreeMap<u32, IdleWindow>>;

impl HostHistory {
    /// Notes how busy attachments were on a host whose devices and processes were read anew.
    pub(super) fn follow_idle(&mut self, id: HostId, views: &BTreeMap<&str, View<'_, '_>>) {
        let mut idle = std::mem::take(&mut self.idle);
        let mut idle_left = std::mem::take(&mut self.idle_left);
        for (name, view) in views {
            let RuleKind::Idle { over, .. } = view.rule.kind else {
                continue;
            };
            let last = idle.remove_entry(*name);
            let (name, mut windows) = last.unwrap_or_else(|| ((*name).to_owned(), Windows::new()));
            let mut left = idle_left.remove(&name).unwrap_or_default();
            go_on(view, id, &mut windows, &mut left);
            observe(view, id, over, &mut windows);
            forget_old(view, id, &mut left);
            if !left.is_empty() {
                self.idle_left.insert(name.clone(), left);
            }
            if !windows.is_empty() {
                self.idle.insert(name, windows);
            }
        }
    }

    /// The windows of a rule before this look, each with the attachment that goes on with it.
    pub(in crate::plan) fn continued(&self, view: &View<'_, '_>, id: HostId) -> Cow<'_, Windows> {
        static NONE: Windows = Windows::new();
        let name = &view.rule.name;
        let windows = self.idle.get(name).unwrap_or(&NONE);
        let has_window = |it: &AttachmentFacts| own(view.facts, windows, it).is_some();
        if view.rule.remember.is_zero() || seen(view, id).all(has_window) {
            return Cow::Borrowed(windows);
        }
        let mut windows = windows.clone();
        let mut left = self.idle_left.get(name).cloned().unwrap_or_default();
        go_on(view, id, &mut windows, &mut left);
        Cow::Owned(windows)
    }
}

/// The window of an attachment, where it is of the same user.
pub(in crate::plan) fn own<'w>(
    facts: &Facts<'_>,
    windows: &'w Windows,
    attachment: &AttachmentFacts,
) -> Option<&'w IdleWindow> {
    let eid = &facts.environments[attachment.environment].environment.eid;
    let window = windows.get(eid)?.get(&attachment.gpu)?;
    window
        .is_of(facts.users[attachment.user].name)
        .then_some(window)
}

/// The attachments of a host that a rule looks at.
fn seen<'v>(view: &'v View<'_, '_>, id: HostId) -> impl Iterator<Item = &'v AttachmentFacts> {
    let facts = view.facts;
    let environments = &facts.environments[facts.hosts[id].environments.clone()];
    let attachments = environments
        .iter()
        .flat_map(|it| &facts.attachments[it.attachments.clone()]);
    attachments.filter(|it| view.sees_attachment(it))
}

/// Has each attachment go on with its own window; one that was made since, with that of the same user's attachment to the
/// device that is gone, if the rule remembers it. Windows of which it is not known whether their attachments are gone wait.
fn go_on(view: &View<'_, '_>, id: HostId, windows: &mut Windows, left: &mut Left) {
    let facts = view.facts;
    let remembers = !view.rule.remember.is_zero();
    let mut held: Vec<(&str, u32)> = Vec::new();
    let mut made = Vec::new();
    for attachment in seen(view, id) {
        let username = facts.users[attachment.user].name;
        let own = window_of(facts, windows, attachment);
        if let Some(window) = own.filter(|window| window.is_of(username)) {
            window.follow(&holding(view, attachment));
            held.push((eid(facts, attachment), attachment.gpu));
        } else {
            made.push(attachment);
        }
    }
    held.sort_unstable();
    held.dedup();
    let mut gone = Left::new();
    if windows.values().map(BTreeMap::len).sum::<usize>() > held.len() {
        gone = take_gone(view, id, windows, &held);
    }
    for attachment in made {
        let username = facts.users[attachment.user].name;
        let of_user = |left: &mut Left| left.get_mut(username)?.remove(&attachment.gpu);
        let window = remembers.then(|| of_user(&mut gone).or_else(|| of_user(left)));
        let mut window = window.flatten().unwrap_or_default();
        window.follow(&holding(view, attachment));
        let gpus = windows.entry(eid(facts, attachment).to_owned());
        gpus.or_default().insert(attachment.gpu, window);
    }
    for (username, gpus) in gone {
        let left = left.entry(username).or_default();
        for (gpu, mut window) in gpus {
            window.wait();
            keep(left, gpu, window);
        }
    }
}

/// What a rule knows of an attachment that a window is of.
pub(in crate::plan) fn holding<'a>(
    view: &View<'_, 'a>,
    attachment: &AttachmentFacts,
) -> Holding<'a> {
    let facts = view.facts;
    Holding {
        username: facts.users[attachment.user].name,
        attached_seconds: attachment.attached_seconds,
        unconfirmed: attachment.unconfirmed,
        remember: view.rule.remember,
        now_seconds: facts.hosts[attachment.host].freshness.read.gpu_seconds,
    }
}

/// Keeps the window of an attachment that is gone. One that its user made goes before one that nothing shows to be the
/// user's doing.
fn keep(left: &mut BTreeMap<u32, IdleWindow>, gpu: u32, window: IdleWindow) {
    match left.get_mut(&gpu) {
        Some(kept) if window.is_unconfirmed() && !kept.is_unconfirmed() => {}
        Some(kept) => *kept = window,
        None => _ = left.insert(gpu, window),
    }
}

/// Takes the windows of attachments that are gone out of those of a rule: all but those that are `held`, and those of
/// which it is not known.
fn take_gone(view: &View<'_, '_>, id: HostId, windows: &mut Windows, held: &[(&str, u32)]) -> Left {
    let facts = view.facts;
    let host = &facts.hosts[id];
    let mut gone = Left::new();
    windows.retain(|eid, gpus| {
        let is_left_out =
            host.state_is_damaged() && facts.environment(host.hostname, eid).is_none();
        gpus.retain(|gpu, window| {
            if held.binary_search(&(eid, *gpu)).is_ok() {
                return true;
            }
            let Some(username) = window.username() else {
                return false;
            };
            let is_unknown = is_left_out
                || host.holders_are_damaged(*gpu)
                || groups_are_unknown(facts, view.rule, username);
            if is_unknown {
                window.wait();
            } else {
                let gpus = gone.entry(username.to_owned()).or_default();
                keep(gpus, *gpu, std::mem::take(window));
            }
            is_unknown
        });
        !gpus.is_empty()
    });
    gone
}

/// Adds this look to the windows of all attachments.
fn observe(view: &View<'_, '_>, id: HostId, over: Duration, windows: &mut Windows) {
    let facts = view.facts;
    let longest_gap_seconds = facts.hosts[id].freshness.longest_gap_seconds;
    for attachment in seen(view, id) {
        if let Some(window) = window_of(facts, windows, attachment) {
            match rules::sample(facts, attachment) {
                Some(sample) => window.observe(sample, over, longest_gap_seconds),
                None => window.wait(),
            }
        }
    }
}

/// Forgets windows of attachments that are gone for longer than the rule remembers.
fn forget_old(view: &View<'_, '_>, id: HostId, left: &mut Left) {
    let remember = view.rule.remember.as_secs_f64();
    let now = view.facts.hosts[id].freshness.read.gpu_seconds;
    left.retain(|_, gpus| {
        gpus.retain(|_, window| window.is_younger(remember, now));
        !gpus.is_empty()
    });
}

fn eid<'a>(facts: &Facts<'a>, attachment: &AttachmentFacts) -> &'a str {
    &facts.environments[attachment.environment].environment.eid
}

fn window_of<'w>(
    facts: &Facts<'_>,
    windows: &'w mut Windows,
    attachment: &AttachmentFacts,
) -> Option<&'w mut IdleWindow> {
    windows
        .get_mut(eid(facts, attachment))?
        .get_mut(&attachment.gpu)
}
