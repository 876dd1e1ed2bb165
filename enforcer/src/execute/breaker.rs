//! What stops the enforcer from doing too much at once, whatever the rules say.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::config::BreakerLimits;
use crate::directory::{Audience, FileError, RuntimeDirectory};

/// The file's name.
pub(crate) const BREAKER_FILE: &str = "breaker.json";

const WINDOW_SECONDS: f64 = 60.0;

/// The signals of the last minute, and whether there were too many. Once it is open it stays open until it is reset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Breaker {
    /// Why nothing is done any more.
    pub open: Option<Open>,
    /// Unix times of signals.
    signals_seconds: Vec<f64>,
}

/// Why a breaker is open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// Unix time.
    pub since_seconds: f64,
    /// In one clause.
    pub why: String,
}

impl Breaker {
    /// What the file says. One that cannot be read, or is damaged, may have said that it is open: so it is.
    #[must_use]
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
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, directory: &RuntimeDirectory) -> Result<(), FileError> {
        let json = serde_json::to_vec(self).unwrap_or_default();
        directory.replace(BREAKER_FILE, &json, Audience::Own)
    }

    /// Opens it, if it is not open already.
    pub(crate) fn trip(&mut self, now_seconds: f64, why: String) {
        self.open.get_or_insert(Open {
            since_seconds: now_seconds,
            why,
        });
    }

    /// Opens it if so many more signals are too many for a minute.
    pub(crate) fn ask(&mut self, limits: &BreakerLimits, now_seconds: f64, more: usize) {
        // What was sent in the future, before the clock was set back, counts too.
        self.signals_seconds
            .retain(|sent| *sent > now_seconds - WINDOW_SECONDS);
        let most = limits.signals_per_minute;
        if self.signals_seconds.len() + more > most as usize {
            self.trip(
                now_seconds,
                format!("more than {most} signals would be sent within a minute"),
            );
        }
    }

    /// Counts a signal.
    pub(crate) fn count(&mut self, now_seconds: f64) {
        self.signals_seconds.push(now_seconds);
    }
}

/// Why one cycle hits too many of the users who use or hold a device; nothing if it does not, or if there are fewer of
/// these than [`BreakerLimits::at_least_users`].
pub(crate) fn too_many_users(
    limits: &BreakerLimits,
    hit: &BTreeSet<String>,
    all: &BTreeSet<String>,
) -> Option<String> {
    let hit_users = hit.len();
    let all_users = all.union(hit).count();
    if all_users < limits.at_least_users as usize {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "no machine has 2^52 users")]
    let share = hit_users as f64 / all_users as f64;
    (share > limits.share_of_users).then(|| {
        format!(
            "{hit_users} of {all_users} users would be hit at once, more than {} of them",
            limits.share_of_users
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BreakerLimits = BreakerLimits {
        signals_per_minute: 3,
        share_of_users: 0.5,
        at_least_users: 3,
    };

    fn names(count: usize) -> BTreeSet<String> {
        (0..count).map(|user| format!("user{user}")).collect()
    }

    #[test]
    fn promise_08_the_minute_slides() {
        let mut breaker = Breaker::default();
        for now_seconds in [0.0, 30.0, 59.0] {
            breaker.ask(&LIMITS, now_seconds, 1);
            assert_eq!(breaker.open, None);
            breaker.count(now_seconds);
        }
        breaker.ask(&LIMITS, 60.0, 1);
        assert_eq!(breaker.open, None, "the first is a minute old");
        breaker.ask(&LIMITS, 60.0, 2);
        let open = breaker.open.clone().unwrap();
        assert!(open.why.contains("more than 3 signals"), "{open:?}");
        breaker.ask(&LIMITS, 1000.0, 1);
        assert_eq!(breaker.open, Some(open), "it does not close by itself");
    }

    #[test]
    fn a_clock_that_is_set_back_forgives_nothing() {
        let mut breaker = Breaker::default();
        for _ in 0..3 {
            breaker.count(5000.0);
        }
        breaker.ask(&LIMITS, 100.0, 1);
        assert!(breaker.open.is_some());
    }

    #[test]
    fn promise_08_a_share_of_the_users_is_too_many_from_a_number_on() {
        let hits = |hit, all| too_many_users(&LIMITS, &names(hit), &names(all));
        assert_eq!(hits(2, 2), None);
        assert_eq!(hits(1, 3), None);
        assert!(hits(2, 3).is_some());
        assert_eq!(hits(3, 6), None);
        let why = hits(3, 5).unwrap();
        assert_eq!(
            why,
            "3 of 5 users would be hit at once, more than 0.5 of them"
        );
        assert!(hits(3, 0).is_some(), "those who are hit are users too");
    }

    #[test]
    fn promise_08_it_survives_a_restart_and_damage_opens_it() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RuntimeDirectory::open(folder.path()).unwrap();
        assert_eq!(Breaker::load(&directory, 1.0), Breaker::default());
        let mut breaker = Breaker::default();
        breaker.count(7.0);
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
