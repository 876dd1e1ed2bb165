//! Reminders of the end of a lease, before a prompt. Each shell gives two: some minutes before the end, and at the end.
//!
//! genv passes the time of the next reminder to the shell in seconds since the start of the machine, since every shell can
//! read `/proc/uptime` without a program.

use std::ffi::{OsStr, OsString};
use std::fs;

use crate::ago::{now_seconds, whole_units};
use crate::lease;
use crate::output::harmless;

/// The time of the first reminder before the end.
const BEFORE_SECONDS: i64 = 15 * 60;

/// The reminders that a shell has given of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reminders {
    /// The end of the lease, Unix time.
    pub(super) end_seconds: i64,
    /// The number of given reminders, from 0 to 2.
    pub(super) given: u8,
}

impl Reminders {
    /// The reminders that are due now.
    pub(super) fn due(end_seconds: f64) -> Self {
        let (end_seconds, now_seconds) = (whole(end_seconds), whole(now_seconds()));
        let due = times(end_seconds).into_iter().filter(|it| *it <= now_seconds);
        Self { end_seconds, given: due.map(|_| 1).sum() }
    }

    /// The sentence for a prompt, if a reminder is due that the shell has not given. `before`: the given reminders.
    pub(super) fn line(self, before: Option<Self>, eid: &str) -> Option<String> {
        let before = before.filter(|it| it.end_seconds == self.end_seconds);
        if self.given <= before.map_or(0, |it| it.given) {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "times have fewer digits")]
        let end = lease::moment(self.end_seconds as f64);
        let left = self.end_seconds - whole(now_seconds());
        let eid = harmless(eid);
        Some(match left {
            ..=0 => format!(
                "the lease of environment {eid} ended at {end}: 'genv extend 2h' starts another one, 'genv deactivate' releases \
                                 the devices"
            ),
            left => format!(
                "the lease of environment {eid} ends at {end}, in {}: 'genv extend 2h' extends it by 2 hours",
                whole_units(left)
            ),
        })
    }

    /// The time of the next reminder, in seconds since the start of the machine.
    pub(super) fn next_uptime_seconds(self) -> Option<i64> {
        let next = *times(self.end_seconds).get(usize::from(self.given))?;
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
        let left = next.saturating_sub(whole(now_seconds()));
        // One second later, so that the time has also passed by the wall clock.
        Some(whole(uptime).saturating_add(left) + 1)
    }

    pub(super) fn encode(self) -> OsString {
        format!("{}-{}", self.end_seconds, self.given).into()
    }

    /// Decodes the text of [`Reminders::encode`].
    pub(super) fn decode(text: &OsStr) -> Option<Self> {
        let (end_seconds, given) = text.to_str()?.split_once('-')?;
        Some(Self { end_seconds: end_seconds.parse().ok()?, given: given.parse().ok()? })
    }
}

/// The times of the reminders, Unix time.
const fn times(end_seconds: i64) -> [i64; 2] {
    [end_seconds.saturating_sub(BEFORE_SECONDS), end_seconds]
}

#[expect(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
const fn whole(seconds: f64) -> i64 {
    seconds as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends_in(seconds: f64) -> Reminders {
        Reminders::due(now_seconds() + seconds)
    }

    #[test]
    fn each_reminder_is_given_once() {
        let early = ends_in(3600.0);
        assert_eq!((early.given, early.line(None, "e")), (0, None));
        let soon = ends_in(600.5);
        let line = soon.line(Some(early), "e").unwrap();
        assert!(line.contains("in 10 minutes"), "{line}");
        assert_eq!(soon.line(Some(soon), "e"), None);
        let ended = Reminders { given: 2, ..soon };
        assert!(ended.line(Some(soon), "e").is_some());
        assert_eq!(ended.line(Some(ended), "e"), None);
        assert!(ends_in(-60.0).line(None, "e").unwrap().contains(" ended at "));
        assert!(soon.line(Some(ends_in(-60.0)), "e").is_some(), "a reminder of another lease");
    }

    #[test]
    fn the_time_of_the_next_reminder_is_relative_to_the_start_of_the_machine() {
        let uptime = |it: Reminders| it.next_uptime_seconds();
        let soon = uptime(ends_in(3600.0)).unwrap();
        let end = uptime(ends_in(600.0)).unwrap();
        assert!((2099..=2101).contains(&(soon - end)), "{soon} {end}");
        assert_eq!(uptime(ends_in(-1.0)), None);
    }

    #[test]
    fn encoded_reminders_are_decoded() {
        let soon = ends_in(600.0);
        assert_eq!(Reminders::decode(&soon.encode()), Some(soon));
        for bad in ["", "1", "1-", "x-1", "1-999"] {
            assert_eq!(Reminders::decode(OsStr::new(bad)), None);
        }
    }
}
