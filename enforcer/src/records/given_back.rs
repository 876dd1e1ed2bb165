//! What users gave back by commands of theirs. A user's confirmations lie where others may replace the file by an older one,
//! which says no more that something was given back: what was read once is remembered.

use std::collections::BTreeMap;

use genv_core::state::{Confirmed, ConfirmedChange};
use serde::{Deserialize, Serialize};

/// So many changes of a user are remembered, the newest.
const MOST_OF_A_USER: usize = 256;

/// Devices, members and environments that were given back, by the uid of their user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct GivenBack(BTreeMap<u32, Vec<Confirmed>>);

impl GivenBack {
    /// Adds what was given back to the confirmations of a user that were read now, and remembers what they add; whether
    /// they add something. A time in the future is of a clock that was turned back: it is not counted.
    pub(super) fn complete(
        &mut self,
        uid: u32,
        confirmed: &mut Vec<Confirmed>,
        now_seconds: f64,
    ) -> bool {
        let remembered = self.0.entry(uid).or_default();
        let mut new: Vec<Confirmed> = confirmed
            .iter()
            .filter(|it| gives_back(&it.change))
            .cloned()
            .collect();
        new.retain(|it| !remembered.contains(it));
        let lost = remembered
            .iter()
            .filter(|it| it.at_seconds <= now_seconds && !confirmed.contains(it));
        let lost: Vec<Confirmed> = lost.cloned().collect();
        confirmed.extend(lost);
        let adds = !new.is_empty();
        remembered.extend(new);
        remembered.sort_by(|one, other| one.at_seconds.total_cmp(&other.at_seconds));
        let surplus = remembered.len().saturating_sub(MOST_OF_A_USER);
        remembered.drain(..surplus);
        adds
    }
}

const fn gives_back(change: &ConfirmedChange) -> bool {
    matches!(
        change,
        ConfirmedChange::Released { .. } | ConfirmedChange::Left { .. } | ConfirmedChange::Ended
    )
}
