//! How fast the enforcer acts: signals and devices are limited by minute and by cycle, in all and for each user. What is
//! beyond a limit follows in later cycles.

use std::collections::{BTreeMap, BTreeSet};

use super::Executor;
use super::evidence::later;
use crate::config::{BreakerLimits, Mode};
use crate::plan::Outcome;

/// Why a step waits for a later cycle.
const PACED: &str = "paced: many ends are due, and 'breaker' spreads them over cycles; it follows in one of the next";

/// What the current cycle did.
#[derive(Debug, Default)]
pub(super) struct CyclePace {
    /// Of how many users a cycle ends or takes something; without a number, of all.
    most_users: Option<usize>,
    /// Signals and devices, by user.
    acts: BTreeMap<String, usize>,
}

impl CyclePace {
    /// A cycle on a machine with these users of devices.
    pub(super) fn begin(limits: &BreakerLimits, all: &BTreeSet<String>) -> Self {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part of a number of users"
        )]
        let most = (all.len() as f64 * limits.share_of_users) as usize;
        let is_limited = all.len() >= limits.at_least_users as usize;
        Self {
            most_users: is_limited.then_some(most.max(1)),
            acts: BTreeMap::new(),
        }
    }

    /// How many more acts against a user this cycle may do.
    fn room(&self, limits: &BreakerLimits, username: &str) -> usize {
        let of_user = self.acts.get(username).copied();
        if of_user.is_none() && self.most_users.is_some_and(|most| self.acts.len() >= most) {
            return 0;
        }
        let all = limits.acts_per_cycle();
        let left = all.saturating_sub(self.acts.values().sum());
        left.min(for_one_user(all).saturating_sub(of_user.unwrap_or_default()))
    }
}

impl BreakerLimits {
    /// Signals and devices within a minute.
    pub(super) const fn acts_per_minute(&self) -> usize {
        self.signals_per_minute as usize
    }

    /// Signals and devices within a cycle: half of a minute's, so that a mistake is seen before all of it is done.
    const fn acts_per_cycle(&self) -> usize {
        self.acts_per_minute().div_ceil(2)
    }
}

/// The part of a limit that one user may take up: the rest is left to the others.
pub(super) const fn for_one_user(limit: usize) -> usize {
    (limit * 3).div_ceil(4)
}

impl Executor {
    /// Why a user's process or device has to wait for a later cycle.
    ///
    /// # Errors
    /// It has to.
    pub(super) fn pace(&mut self, username: &str) -> Result<(), Outcome> {
        if self.policy.mode == Mode::DryRun || self.breaker.open.is_some() {
            return Ok(());
        }
        let limits = self.policy.breaker;
        let now = self.now();
        let in_minute = self.breaker.room(&limits, now, username);
        if in_minute.min(self.cycle.room(&limits, username)) == 0 {
            return Err(later(PACED.to_owned()));
        }
        Ok(())
    }

    /// Counts signals to a user's processes, or a device that is taken from the user.
    pub(super) fn count_acts(&mut self, username: &str, acts: usize) {
        let now = self.now();
        self.breaker.count(now, username, acts);
        *self.cycle.acts.entry(username.to_owned()).or_default() += acts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_leaves_room_for_other_users_and_hits_no_more_than_their_share() {
        let limits = BreakerLimits {
            signals_per_minute: 8,
            share_of_users: 0.5,
            at_least_users: 3,
        };
        let all: BTreeSet<String> = ["a", "b", "c", "d"].map(str::to_owned).into();
        let mut pace = CyclePace::begin(&limits, &all);
        assert_eq!(pace.room(&limits, "a"), 3, "of 4, a quarter is left");
        pace.acts.insert("a".to_owned(), 3);
        assert_eq!(pace.room(&limits, "a"), 0);
        assert_eq!(pace.room(&limits, "b"), 1);
        pace.acts.insert("b".to_owned(), 0);
        assert_eq!(pace.room(&limits, "c"), 0, "two of four users are half");
        let few = ["a", "b"].map(str::to_owned).into();
        assert_eq!(CyclePace::begin(&limits, &few).most_users, None);
    }
}
