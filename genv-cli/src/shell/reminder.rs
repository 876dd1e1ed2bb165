//! Reminders of the end of a lease before a prompt: some minutes before, and at the end, each once in a shell.
//!
//! genv tells the shell the next time of a reminder as seconds since the machine was started, which every shell can read
//! in `/proc/uptime` without a program.

use std::ffi::{OsStr, OsString};
use std::fs;

use crate::ago::{now_seconds, whole_units};
use crate::lease;
use crate::output::harmless;

/// The time before the end at which a shell reminds first.
const BEFORE_SECONDS: i64 = 15 * 60;

/// The reminders that a shell has given of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reminders {
    /// The end of the lease, Unix time.
    pub(super) end_seconds: i64,
    /// How many of the two.
    pub(super) given: u8,
}

impl Reminders {
    /// Those that are due now.
    pub(super) fn due(end_seconds: f64) -> Self {
        let (end_seconds, now_seconds) = (whole(end_seconds), whole(now_seconds()));
        let due = times(end_seconds).into_iter().filter(|it| *it <= now_seconds);
        Self { end_seconds, given: due.map(|_| 1).sum() }
    }

    /// The sentence for a prompt, if one is due that a shell with `before` has not given.
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
                "the lease of environment {eid} ended at {end}: 'genv extend 2h' begins another, 'genv deactivate' gives back \
                 the devices"
            ),
            left => format!(
                "the lease of environment {eid} ends at {end}, in {}: 'genv extend 2h' lets it end later",
                whole_units(left)
            ),
        })
    }

    /// The time of the next reminder, in seconds since the machine was started.
    pub(super) fn next_uptime_seconds(self) -> Option<i64> {
        let next = *times(self.end_seconds).get(usize::from(self.given))?;
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
        let left = next.saturating_sub(whole(now_seconds()));
        // A second later, so that the time has come by the wall clock, too.
        Some(whole(uptime).saturating_add(left) + 1)
    }

    pub(super) fn encode(self) -> OsString {
        format!("{}-{}", self.end_seconds, self.given).into()
    }

    /// What [`Reminders::encode`] wrote.
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
        assert!(soon.line(Some(ends_in(-60.0)), "e").is_some(), "of another lease");
    }

    #[test]
    fn the_next_reminder_is_told_by_the_clock_of_the_machine() {
        let uptime = |it: Reminders| it.next_uptime_seconds();
        let soon = uptime(ends_in(3600.0)).unwrap();
        let end = uptime(ends_in(600.0)).unwrap();
        assert!((2099..=2101).contains(&(soon - end)), "{soon} {end}");
        assert_eq!(uptime(ends_in(-1.0)), None);
    }

    #[test]
    fn what_was_written_is_read() {
        let soon = ends_in(600.0);
        assert_eq!(Reminders::decode(&soon.encode()), Some(soon));
        for bad in ["", "1", "1-", "x-1", "1-999"] {
            assert_eq!(Reminders::decode(OsStr::new(bad)), None);
        }
    }
}
