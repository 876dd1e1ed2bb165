//! The windows of `idle`, from one attachment to the next.

use std::collections::BTreeMap;

use super::evidence::groups_are_unknown;
use super::idle::Holding;
use super::{ByGpu, HostHistory, IdleWindow};
use crate::kinds::{self, IdleLimit};
use crate::plan::facts::{AttachmentFacts, AttachmentId, EnvironmentFacts, Facts, HostId};
use crate::plan::selector::{View, Views};

/// Windows by eid and GPU; windows of ended attachments by user and GPU.
pub(super) type Windows = BTreeMap<String, ByGpu<IdleWindow>>;

impl HostHistory {
    /// Notes the GPU at each index, and forgets the windows of indices with another GPU.
    pub(super) fn follow_gpus(&mut self, facts: &Facts<'_>, id: HostId) {
        let host = &facts.hosts[id];
        let Some(snapshot) = host.snapshot else {
            return;
        };
        let replaced = snapshot.devices.iter();
        for device in replaced.filter(|device| self.occupants.is_replaced(device)) {
            let gpu = device.index.gpu;
            let windows = self.idle.values_mut().chain(self.idle_left.values_mut());
            for gpus in windows.flat_map(BTreeMap::values_mut) {
                gpus.remove(gpu);
            }
        }
        let read = host.freshness.read.gpu_seconds;
        self.occupants.note(&snapshot.devices, read.unwrap_or(snapshot.timestamp_seconds));
    }

    /// Notes how busy attachments were on a host whose devices and processes were read anew.
    pub(super) fn follow_idle(&mut self, id: HostId, views: &Views<'_, '_>) {
        let mut idle = std::mem::take(&mut self.idle);
        let mut idle_left = std::mem::take(&mut self.idle_left);
        for (name, view) in views {
            let Some(IdleLimit { over, .. }) = view.rule.kind.idle_limit() else {
                continue;
            };
            let last = idle.remove_entry(*name);
            let (name, mut windows) = last.unwrap_or_else(|| ((*name).to_owned(), Windows::new()));
            let mut left = idle_left.remove(&name).unwrap_or_default();
            go_on(view, id, &mut windows, &mut left, |attachment, window| {
                let longest_gap_seconds = view.facts.hosts[id].freshness.longest_gap_seconds;
                match kinds::sample(view.facts, attachment) {
                    Some(sample) => window.observe(sample, over, longest_gap_seconds),
                    None => window.fail(),
                }
            });
            forget_old(view, id, &mut left);
            if !left.is_empty() {
                self.idle_left.insert(name.clone(), left);
            }
            if !windows.is_empty() {
                self.idle.insert(name, windows);
            }
        }
    }

    /// Notes that the use of a host's attachments is not measured: the host's state is read, and its driver gives no
    /// answer.
    pub(super) fn fail_idle(&mut self) {
        for gpus in self.idle.values_mut().flat_map(BTreeMap::values_mut) {
            gpus.retain(|_, window| {
                window.fail();
                true
            });
        }
    }

    /// Calls `show` with each attachment of a host in the rule's view, and with the window that the attachment
    /// continues, without the samples of this cycle.
    pub(crate) fn show_windows(
        &self,
        view: &View<'_, '_>,
        id: HostId,
        mut show: impl FnMut(AttachmentId, &IdleWindow),
    ) {
        static NONE: Windows = Windows::new();
        let name = &view.rule.name;
        let windows = self.idle.get(name).unwrap_or(&NONE);
        let mut own = own_windows(view, id, windows);
        let mut continued = Windows::new();
        let lacks_one = own.iter().any(|(_, window)| window.is_none());
        if lacks_one && !view.rule.remember.is_zero() {
            continued.clone_from(windows);
            let mut left = self.idle_left.get(name).cloned().unwrap_or_default();
            go_on(view, id, &mut continued, &mut left, |_, _| {});
            own = own_windows(view, id, &continued);
        }
        for (id, window) in own {
            if let Some(window) = window {
                show(id, window);
            }
        }
    }
}

/// The attachments of a host in the rule's view, each with its window, if the window belongs to the same user.
fn own_windows<'w>(
    view: &View<'_, '_>,
    id: HostId,
    windows: &'w Windows,
) -> Vec<(AttachmentId, Option<&'w IdleWindow>)> {
    let facts = view.facts;
    let mut own = Vec::with_capacity(windows.len());
    // Environments are sorted as the windows are, and mostly each has one.
    let mut next = windows.iter().peekable();
    for environment in &facts.environments[facts.hosts[id].environments.clone()] {
        let mut seen = seen(view, environment).peekable();
        if seen.peek().is_none() {
            continue;
        }
        let eid = &environment.environment.eid;
        let gpus = next.next_if(|(it, _)| *it == eid).map(|(_, gpus)| gpus);
        let gpus = gpus.or_else(|| windows.get(eid));
        let username = facts.users[environment.user].name;
        let window = |id: AttachmentId| {
            let window = gpus?.get(facts.attachments[id].gpu)?;
            window.is_of(username).then_some(window)
        };
        own.extend(seen.map(|id| (id, window(id))));
    }
    own
}

/// The attachments of an environment that a rule looks at.
fn seen(view: &View<'_, '_>, environment: &EnvironmentFacts<'_>) -> impl Iterator<Item = AttachmentId> {
    let attachments = environment.attachments.clone();
    attachments.filter(|id| view.sees_attachment(&view.facts.attachments[*id]))
}

/// Has each attachment go on with its own window; one that was made since, with that of the same user's attachment to the
/// device that is gone, if the rule remembers it. Windows of which it is not known whether their attachments are gone wait.
/// Calls `look` with each attachment and its window.
fn go_on(
    view: &View<'_, '_>,
    id: HostId,
    windows: &mut Windows,
    left: &mut Windows,
    look: impl Fn(&AttachmentFacts, &mut IdleWindow),
) {
    let facts = view.facts;
    let remembers = !view.rule.remember.is_zero();
    let mut held: Vec<(&str, u32)> = Vec::new();
    let mut made = Vec::new();
    for environment in &facts.environments[facts.hosts[id].environments.clone()] {
        let eid = environment.environment.eid.as_str();
        let username = facts.users[environment.user].name;
        let mut gpus = windows.get_mut(eid);
        for id in seen(view, environment) {
            let attachment = &facts.attachments[id];
            let own = gpus.as_mut().and_then(|it| it.get_mut(attachment.gpu));
            if let Some(window) = own.filter(|window| window.is_of(username)) {
                window.follow(&holding(view, attachment));
                look(attachment, window);
                held.push((eid, attachment.gpu));
            } else {
                made.push(attachment);
            }
        }
    }
    held.sort_unstable();
    held.dedup();
    let mut gone = Windows::new();
    if windows.values().map(ByGpu::len).sum::<usize>() > held.len() {
        gone = take_gone(view, id, windows, &held);
    }
    for attachment in made {
        let username = facts.users[attachment.user].name;
        let of_user = |left: &mut Windows| left.get_mut(username)?.remove(attachment.gpu);
        let window = remembers.then(|| of_user(&mut gone).or_else(|| of_user(left)));
        let mut window = window.flatten().unwrap_or_default();
        window.follow(&holding(view, attachment));
        look(attachment, &mut window);
        let eid = &facts.environments[attachment.environment].environment.eid;
        windows.entry(eid.clone()).or_default().insert(attachment.gpu, window);
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
pub(crate) fn holding<'a>(view: &View<'_, 'a>, attachment: &AttachmentFacts) -> Holding<'a> {
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
fn keep(left: &mut ByGpu<IdleWindow>, gpu: u32, window: IdleWindow) {
    match left.get_mut(gpu) {
        Some(kept) if window.is_unconfirmed() && !kept.is_unconfirmed() => {}
        Some(kept) => *kept = window,
        None => left.insert(gpu, window),
    }
}

/// Takes the windows of attachments that are gone out of those of a rule: all but those that are `held`, and those of
/// which it is not known.
fn take_gone(view: &View<'_, '_>, id: HostId, windows: &mut Windows, held: &[(&str, u32)]) -> Windows {
    let facts = view.facts;
    let host = &facts.hosts[id];
    let mut gone = Windows::new();
    windows.retain(|eid, gpus| {
        let is_left_out = host.state_is_damaged() && facts.environment(host.hostname, eid).is_none();
        gpus.retain(|gpu, window| {
            if held.binary_search(&(eid, gpu)).is_ok() {
                return true;
            }
            let Some(username) = window.username() else {
                return false;
            };
            let is_unknown =
                is_left_out || host.holders_are_damaged(gpu) || groups_are_unknown(facts, view.rule, username);
            if is_unknown {
                window.wait();
            } else {
                let gpus = gone.entry(username.to_owned()).or_default();
                keep(gpus, gpu, std::mem::take(window));
            }
            is_unknown
        });
        !gpus.is_empty()
    });
    gone
}

/// Forgets windows of attachments that are gone for longer than the rule remembers.
fn forget_old(view: &View<'_, '_>, id: HostId, left: &mut Windows) {
    let remember = view.rule.remember.as_secs_f64();
    let now = view.facts.hosts[id].freshness.read.gpu_seconds;
    left.retain(|_, gpus| {
        gpus.retain(|_, window| window.is_younger(remember, now));
        !gpus.is_empty()
    });
}
