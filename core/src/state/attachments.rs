//! Attachments that `devices.json` has lost.
//!
//! `genv-members.json` has a copy of the devices from the last change by this project. The copy counts only for devices
//! without a whole record, and for environments that still exist. An environment that the copy lacks too gets the
//! devices that are visible to a process which names it, if they are free. Only commands of its user and of root, and
//! the enforcer, can read the visible devices of a process; until then the environment is recorded as *bare*.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::data::Visible;
use super::members::OtherRecords;
use super::restore::{claims_of, visible_to};
use super::{AttachmentState, DeviceState, EnvironmentState, State, jobs};
use crate::proc::ProcessSource;

/// The most bare environments: every user may write the file.
const MOST_BARE: usize = 1_000;

/// Restores devices without a whole record from the copy. `damaged` has the devices whose record lost an attachment.
pub(super) fn put_back(state: &mut State, damaged: &BTreeSet<u32>) {
    let State { environments, devices, recorded: OtherRecords { copy, lost, .. }, .. } = state;
    let mut put_back = Vec::new();
    for device in copy.iter() {
        match devices.binary_search_by_key(&device.index, |it| it.index) {
            Ok(_) if !damaged.contains(&device.index) => {}
            Ok(position) => put_back.push((position, device)),
            Err(position) => {
                let empty = DeviceState { attachments: Vec::new(), ..device.clone() };
                devices.insert(position, empty);
                put_back.push((position, device));
            }
        }
    }
    if put_back.is_empty() {
        return;
    }
    #[expect(clippy::cast_precision_loss, reason = "files end with the year 9999")]
    let lost = lost.iter().map(|it| (it.eid.as_str(), it.created_seconds.map(|it| it as f64)));
    let known = environments.iter().map(|it| (it.eid.as_str(), it.created_timestamp_seconds));
    let created: HashMap<&str, Option<f64>> = lost.chain(known).collect();
    // An environment that was created after the attachment is another environment with the same id.
    let is_of = |attachment: &&AttachmentState| {
        let attached = attachment.attached_timestamp_seconds;
        created.get(attachment.eid.as_str()).is_some_and(|created| {
            let times = created.zip(attached);
            times.is_none_or(|(created, attached)| created <= attached)
        })
    };
    for (position, device) in put_back {
        let attachments = &mut devices[position].attachments;
        let whole: HashSet<String> = attachments.iter().map(|it| it.eid.clone()).collect();
        let missing = device.attachments.iter().filter(is_of);
        attachments.extend(missing.filter(|it| !whole.contains(&it.eid)).cloned());
    }
}

/// Records the environments without a device as bare, if `devices.json` lost attachments (`damaged`). Removes those
/// that have a device again or have ended.
pub(super) fn find_bare(state: &mut State, damaged: bool) {
    let bare = &mut state.recorded.bare;
    if !damaged && bare.is_empty() {
        return;
    }
    let attachments = state.devices.iter().flat_map(|it| &it.attachments);
    let attached: HashSet<&str> = attachments.map(|it| it.eid.as_str()).collect();
    let eids = state.environments.iter().map(|it| it.eid.as_str());
    let without: HashSet<&str> = eids.filter(|eid| !attached.contains(eid)).collect();
    bare.retain(|eid| without.contains(eid.as_str()));
    if damaged {
        let room = MOST_BARE.saturating_sub(bare.len());
        bare.extend(without.into_iter().take(room).map(str::to_owned));
    }
}

/// The devices that are visible to processes which name a bare environment, as far as this program may read them.
pub(super) fn visible(state: &State, processes: &mut dyn ProcessSource) -> Visible {
    let mut claims: BTreeMap<u32, BTreeMap<String, Vec<u32>>> = BTreeMap::new();
    let mut visible = Visible::new();
    for EnvironmentState { eid, uid, .. } in &state.environments {
        if !state.recorded.bare.contains(eid) || !jobs::reads_environs_of(*uid) {
            continue;
        }
        let claims = claims.entry(*uid).or_insert_with(|| claims_of(*uid, processes));
        if let Some(devices) = claims.get(eid).and_then(|pids| visible_to(pids)) {
            visible.insert(eid.clone(), devices);
        }
    }
    visible
}
