//! Releases by users' own commands. Another user may replace a user's file of confirmations by an older one, which
//! lacks the latest releases: each release that was read once is remembered.

use std::collections::BTreeMap;

use genv_core::model::{Confirmed, ConfirmedChange};
use serde::{Deserialize, Serialize};

/// The number of remembered releases of a user; the newest stay.
const MAX_OF_A_USER: usize = 256;

/// Released devices, members and environments, by the uid of their user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct GivenBack(BTreeMap<u32, Vec<Confirmed>>);

impl GivenBack {
    /// Adds the remembered releases to a user's present confirmations, and remembers new releases. Returns whether
    /// there are new ones. A time in the future comes from a clock that was set back, and does not count.
    pub(super) fn complete(&mut self, uid: u32, confirmed: &mut Vec<Confirmed>, now_seconds: f64) -> bool {
        let remembered = self.0.entry(uid).or_default();
        let mut new: Vec<Confirmed> = confirmed.iter().filter(|it| gives_back(&it.change)).cloned().collect();
        new.retain(|it| !remembered.contains(it));
        let lost = remembered.iter().filter(|it| it.at_seconds <= now_seconds && !confirmed.contains(it));
        let lost: Vec<Confirmed> = lost.cloned().collect();
        confirmed.extend(lost);
        let adds = !new.is_empty();
        remembered.extend(new);
        remembered.sort_by(|one, other| one.at_seconds.total_cmp(&other.at_seconds));
        let surplus = remembered.len().saturating_sub(MAX_OF_A_USER);
        remembered.drain(..surplus);
        adds
    }
}

const fn gives_back(change: &ConfirmedChange) -> bool {
    matches!(change, ConfirmedChange::Released { .. } | ConfirmedChange::Left { .. } | ConfirmedChange::Ended)
}
