//! The pace: limits of signals and detached devices per minute and per cycle, in total and for each user. Actions over a limit
//! follow in later cycles.

use std::collections::{BTreeMap, BTreeSet};

use super::Executor;
use super::breaker::forget_old;
use super::evidence::refuse_for_now;
use crate::config::{BreakerLimits, Mode};
use crate::plan::Outcome;

/// Why a step waits for a later cycle.
const PACED: &str = "paced: many ends are due, and 'breaker' spreads them over cycles; it follows in one of the next";

/// The outcome of a step that the pace puts off.
pub(crate) fn paced() -> Outcome {
    refuse_for_now(PACED.to_owned())
}

/// The actions of the current cycle.
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
        Self { most_users: limits.most_users(all.len()), acts: BTreeMap::new() }
    }

    /// The number of further acts against a user that the limits permit in this cycle.
    fn room(&self, limits: &BreakerLimits, username: &str) -> usize {
        let of_user = self.acts.get(username).copied();
        if of_user.is_none() && self.most_users.is_some_and(|most| self.acts.len() >= most) {
            return 0;
        }
        let all = limits.acts_per_cycle();
        let left = all.saturating_sub(self.acts.values().sum());
        left.min(for_one_user(all).saturating_sub(of_user.unwrap_or_default()))
    }

    /// Removes one act against a user from the counts. A user without an act does not count as a user that the cycle
    /// hits.
    fn uncount(&mut self, username: &str) {
        if let Some(acts) = self.acts.get_mut(username) {
            *acts = acts.saturating_sub(1);
            if *acts == 0 {
                self.acts.remove(username);
            }
        }
    }
}

/// Attachments that were taken back since nothing shows that their user made them. No user loses anything by that: such
/// an act does not count towards the limits per user. A limit of its own applies to each cycle and each minute.
#[derive(Debug, Default)]
pub(super) struct TakenBack {
    /// Unix times within the last minute.
    at_seconds: Vec<f64>,
    in_cycle: usize,
}

impl TakenBack {
    pub(super) const fn begin_cycle(&mut self) {
        self.in_cycle = 0;
    }

    fn has_room(&mut self, limits: &BreakerLimits, now_seconds: f64) -> bool {
        forget_old(&mut self.at_seconds, now_seconds);
        self.at_seconds.len() < limits.acts_per_minute() && self.in_cycle < limits.acts_per_cycle()
    }

    fn count(&mut self, now_seconds: f64) {
        self.at_seconds.push(now_seconds);
        self.in_cycle += 1;
    }

    /// Undoes the last count: no device was taken.
    pub(super) fn uncount(&mut self) {
        self.at_seconds.pop();
        self.in_cycle = self.in_cycle.saturating_sub(1);
    }
}

impl BreakerLimits {
    /// Signals and devices within a minute.
    pub(super) const fn acts_per_minute(&self) -> usize {
        self.signals_per_minute as usize
    }

    /// Of how many users of devices, of so many, a cycle ends or takes something; without a number, of all.
    pub(crate) fn most_users(&self, all: usize) -> Option<usize> {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part of a number of users"
        )]
        let most = (all as f64 * self.share_of_users) as usize;
        (all >= self.at_least_users as usize).then_some(most.max(1))
    }

    /// Signals and devices within a cycle: half of a minute's, so that a mistake is seen before all of it is done.
    const fn acts_per_cycle(&self) -> usize {
        self.acts_per_minute().div_ceil(2)
    }
}

/// The part of a limit for one user; the rest is for other users.
pub(super) const fn for_one_user(limit: usize) -> usize {
    (limit * 3).div_ceil(4)
}

impl Executor {
    /// Checks that the pace permits an act against a user now.
    ///
    /// # Errors
    /// The act has to wait for a later cycle.
    pub(super) fn pace(&mut self, username: &str) -> Result<(), Outcome> {
        if self.policy.mode == Mode::DryRun || self.breaker.open.is_some() {
            return Ok(());
        }
        let limits = self.policy.breaker;
        let now = self.now();
        let in_minute = self.breaker.room(&limits, now, username);
        if in_minute.min(self.cycle.room(&limits, username)) == 0 {
            return Err(paced());
        }
        Ok(())
    }

    /// Checks that a device may be taken back in this cycle.
    ///
    /// # Errors
    /// The device has to wait for a later cycle.
    pub(super) fn pace_taking_back(&mut self) -> Result<(), Outcome> {
        let (limits, now) = (self.policy.breaker, self.now());
        match self.policy.mode == Mode::DryRun || self.taken_back.has_room(&limits, now) {
            true => Ok(()),
            false => Err(paced()),
        }
    }

    pub(super) fn count_taken_back(&mut self) {
        let now = self.now();
        self.taken_back.count(now);
    }

    /// Counts signals to a user's processes, or a device that is taken from the user.
    pub(super) fn count_acts(&mut self, username: &str, acts: usize) {
        let now = self.now();
        self.breaker.count(now, username, acts);
        *self.cycle.acts.entry(username.to_owned()).or_default() += acts;
    }

    /// Counts an act before it is done, and saves the count, so that it survives a crash.
    ///
    /// # Errors
    /// The count cannot be saved; the act must not be done.
    pub(super) fn count_act(&mut self, username: &str) -> Result<(), Outcome> {
        self.count_acts(username, 1);
        let saved = self.breaker.save(&self.directory);
        saved.map_err(|error| {
            self.uncount_acts(&[username]);
            refuse_for_now(error.to_string())
        })
    }

    /// Removes the counts of acts that were not done, one for each name in the list.
    pub(super) fn uncount_acts(&mut self, usernames: &[&str]) {
        for username in usernames {
            self.breaker.uncount(username);
            self.cycle.uncount(username);
        }
        if let Err(error) = self.breaker.save(&self.directory) {
            tracing::warn!(%error, "an act that was not done counts for a minute");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::breaker::Breaker;
    use super::*;

    #[test]
    fn by_default_a_job_of_21_processes_ends_in_a_minute() {
        let limits = BreakerLimits::default();
        let all: BTreeSet<String> = ["a".to_owned()].into();
        let (mut breaker, mut left, mut ends) = (Breaker::default(), 21, Vec::new());
        for now in (0..120).step_by(10).map(f64::from) {
            let mut cycle = CyclePace::begin(&limits, &all);
            let before = left;
            while left > 0 && breaker.room(&limits, now, "a").min(cycle.room(&limits, "a")) > 0 {
                breaker.count(now, "a", 1);
                *cycle.acts.entry("a".to_owned()).or_default() += 1;
                left -= 1;
            }
            if left < before {
                ends.push((now, before - left));
            }
        }
        assert_eq!(ends, [(0.0, 8), (10.0, 7), (60.0, 6)]);
    }

    #[test]
    fn a_cycle_leaves_room_for_other_users_and_hits_no_more_than_their_share() {
        let limits = BreakerLimits { signals_per_minute: 8, share_of_users: 0.5, at_least_users: 3 };
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
