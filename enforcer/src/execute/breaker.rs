//! The breaker, which stops the enforcer after a surprising plan, and the times of recent actions.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::pace::for_one_user;
use super::surprise::{Hits, LargestPlans};
use crate::config::BreakerLimits;
use crate::directory::{Audience, FileError, RuntimeDirectory};

/// The file's name.
pub(crate) const BREAKER_FILE: &str = "breaker.json";

const WINDOW_SECONDS: f64 = 60.0;

/// The actions of the last minute, and whether a plan was a surprise. An open breaker stays open until a reset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Breaker {
    /// Why the enforcer no longer acts.
    pub open: Option<Open>,
    /// Unix times of signals and detached devices.
    signals_seconds: Vec<f64>,
    /// The same by user; earlier versions wrote none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    user_signals_seconds: BTreeMap<String, Vec<f64>>,
    #[serde(default, skip_serializing_if = "LargestPlans::is_empty")]
    largest_plans: LargestPlans,
}

/// Why a breaker is open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// Unix time.
    pub since_seconds: f64,
    /// The reason in one clause.
    pub why: String,
}

impl Breaker {
    /// Reads the file. With an unreadable or damaged file the breaker is open, since the file may have said so.
    pub fn load(directory: &RuntimeDirectory, now_seconds: f64) -> Self {
        let why = match directory.read(BREAKER_FILE) {
            Ok(None) => return Self::default(),
            Ok(Some(content)) => match serde_json::from_slice(&content) {
                Ok(breaker) => return breaker,
                Err(error) => {
                    let path = directory.path().join(BREAKER_FILE);
                    format!("{} is damaged: {error}", path.display())
                }
            },
            Err(error) => error.to_string(),
        };
        let mut breaker = Self::default();
        breaker.trip(now_seconds, why);
        breaker
    }

    /// Writes it to the file.
    pub fn save(&self, directory: &RuntimeDirectory) -> Result<(), FileError> {
        let json = serde_json::to_vec(self).unwrap_or_default();
        directory.replace(BREAKER_FILE, &json, Audience::Own)
    }

    /// Opens it, if it is not open already.
    pub(crate) fn trip(&mut self, now_seconds: f64, why: String) {
        self.open.get_or_insert(Open { since_seconds: now_seconds, why });
    }

    /// Closes the breaker. The actions of the last minute no longer count. The sizes of plans are kept, so that the plan whose growth
    /// opened the breaker is accepted.
    pub(super) fn closed(self) -> Self {
        Self { largest_plans: self.largest_plans, ..Self::default() }
    }

    /// The number of further acts against a user that the limits permit in this minute.
    pub(super) fn room(&mut self, limits: &BreakerLimits, now_seconds: f64, user: &str) -> usize {
        forget_old(&mut self.signals_seconds, now_seconds);
        let of_user = self.user_signals_seconds.iter_mut();
        of_user.for_each(|(_, times)| forget_old(times, now_seconds));
        self.user_signals_seconds.retain(|_, times| !times.is_empty());
        let all = limits.acts_per_minute();
        let of_user = self.user_signals_seconds.get(user).map_or(0, Vec::len);
        let left = all.saturating_sub(self.signals_seconds.len());
        left.min(for_one_user(all).saturating_sub(of_user))
    }

    /// Counts acts against a user.
    pub(super) fn count(&mut self, now_seconds: f64, user: &str, acts: usize) {
        let times = std::iter::repeat_n(now_seconds, acts);
        self.signals_seconds.extend(times.clone());
        let of_user = self.user_signals_seconds.entry(user.to_owned());
        of_user.or_default().extend(times);
    }

    /// Removes the newest act against a user from the counts.
    pub(super) fn uncount(&mut self, user: &str) {
        let of_user = self.user_signals_seconds.get_mut(user);
        let Some(newest) = of_user.and_then(Vec::pop) else {
            return;
        };
        if let Some(at) = self.signals_seconds.iter().rposition(|it| *it == newest) {
            self.signals_seconds.remove(at);
        }
    }

    /// Why the due actions of a cycle, on machines with these users, are a surprise.
    pub(crate) fn surprise(
        &mut self,
        limits: &BreakerLimits,
        hits: &Hits,
        all: &BTreeSet<String>,
        now_seconds: f64,
    ) -> Option<String> {
        let grown = self.largest_plans.grown(hits, now_seconds);
        hits.too_many_users(limits, all).or(grown)
    }
}

/// Forgets times that are older than a minute.
pub(super) fn forget_old(times: &mut Vec<f64>, now_seconds: f64) {
    times.retain(|sent| *sent > now_seconds - WINDOW_SECONDS);
    // The clock was set back if a time is in the future.
    for sent in times.iter_mut() {
        *sent = sent.min(now_seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BreakerLimits = BreakerLimits { signals_per_minute: 3, share_of_users: 0.5, at_least_users: 3 };

    #[test]
    fn promise_08_the_minute_slides() {
        let mut breaker = Breaker::default();
        for now_seconds in [0.0, 30.0, 59.0] {
            assert!(breaker.room(&LIMITS, now_seconds, "a") > 0);
            breaker.count(now_seconds, "a", 1);
        }
        assert_eq!(breaker.room(&LIMITS, 59.0, "a"), 0);
        assert_eq!(breaker.room(&LIMITS, 59.0, "b"), 0);
        assert_eq!(breaker.room(&LIMITS, 60.0, "a"), 1, "the first is a minute old");
        assert_eq!(breaker.open, None, "it paces, and does not open");
    }

    #[test]
    fn one_user_leaves_room_for_others() {
        let limits = BreakerLimits { signals_per_minute: 20, ..LIMITS };
        let mut breaker = Breaker::default();
        breaker.count(0.0, "a", 15);
        assert_eq!(breaker.room(&limits, 1.0, "a"), 0);
        assert_eq!(breaker.room(&limits, 1.0, "b"), 5);
    }

    #[test]
    fn a_clock_that_is_set_back_forgives_nothing_and_stops_nothing_for_longer_than_a_minute() {
        let mut breaker = Breaker::default();
        breaker.count(5000.0, "a", 3);
        assert_eq!(breaker.room(&LIMITS, 100.0, "a"), 0);
        assert_eq!(breaker.room(&LIMITS, 161.0, "a"), 3);
    }

    #[test]
    fn a_file_of_an_earlier_version_is_read() {
        let (folder, directory) = RuntimeDirectory::temporary();
        let path = folder.path().join(BREAKER_FILE);
        std::fs::write(path, r#"{"open":null,"signals_seconds":[1.0,2.0]}"#).unwrap();
        let mut breaker = Breaker::load(&directory, 3.0);
        assert_eq!(breaker.open, None);
        assert_eq!(breaker.room(&LIMITS, 3.0, "a"), 1);
    }

    #[test]
    fn promise_08_it_survives_a_restart_and_damage_opens_it() {
        let (folder, directory) = RuntimeDirectory::temporary();
        assert_eq!(Breaker::load(&directory, 1.0), Breaker::default());
        let mut breaker = Breaker::default();
        breaker.count(7.0, "a", 1);
        breaker.trip(8.0, "too much".to_owned());
        breaker.trip(9.0, "again".to_owned());
        breaker.save(&directory).unwrap();
        assert_eq!(Breaker::load(&directory, 10.0), breaker);
        assert_eq!(breaker.open.unwrap().why, "too much");

        let path = folder.path().join(BREAKER_FILE);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let open = Breaker::load(&directory, 10.0).open.unwrap();
            assert!(open.why.contains("breaker.json is damaged"), "{open:?}");
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(Breaker::load(&directory, 10.0).open.is_some());
    }
}
