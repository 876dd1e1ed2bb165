//! The lines of the log about the values that a collector withholds: one at the beginning, one at the end, and one a
//! minute about a value that comes and goes.

use std::collections::BTreeMap;

use genv_core::model::{DeviceIndex, Withheld};

/// The least time between two lines about a value that comes and goes.
const MINUTE_SECONDS: f64 = 60.0;

/// The most values of a collector that are followed: another host may send any number.
const MOST_VALUES: usize = 512;

/// The values of one collector that are withheld now, or were within the last minute.
#[derive(Debug, Default)]
pub(crate) struct WithheldLog(BTreeMap<(Option<DeviceIndex>, String), Episode>);

/// What a line says of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is withheld from now on.
    Began,
    /// It is not withheld any more.
    Ended,
    /// It was withheld anew this number of times since the last line.
    Flapped(u32),
}

/// One value, and the last line about it.
#[derive(Debug, Default)]
struct Episode {
    error: String,
    /// Whether the value is in the set that is being noted.
    is_listed: bool,
    is_withheld: bool,
    /// What the last line said.
    is_logged: bool,
    line_seconds: Option<f64>,
    /// Whether the value was withheld again within a minute of its end.
    flaps: bool,
    /// The number of times that it was withheld anew since the last line.
    times: u32,
}

impl WithheldLog {
    /// The lines about the values that are withheld now, and about those that were before. `now_seconds` may be of a
    /// clock that is set.
    pub(crate) fn note(&mut self, withheld: &[Withheld], now_seconds: f64) -> Vec<(Withheld, Change)> {
        for it in withheld {
            let key = (it.device, it.value.clone());
            if self.0.len() < MOST_VALUES || self.0.contains_key(&key) {
                let episode = self.0.entry(key).or_default();
                episode.error.clone_from(&it.error);
                episode.is_listed = true;
            }
        }
        let mut lines = Vec::new();
        self.0.retain(|(device, value), episode| {
            let change = episode.change(now_seconds);
            lines.extend(change.map(|change| {
                let withheld = Withheld { device: *device, value: value.clone(), error: episode.error.clone() };
                (withheld, change)
            }));
            episode.is_withheld || episode.flaps || episode.is_recent(now_seconds)
        });
        lines
    }
}

impl Episode {
    /// The line about the value now, if there is one.
    fn change(&mut self, now_seconds: f64) -> Option<Change> {
        let is_withheld = std::mem::take(&mut self.is_listed);
        let is_changed = std::mem::replace(&mut self.is_withheld, is_withheld) != is_withheld;
        let begins = is_changed && is_withheld;
        self.times += u32::from(begins);
        if self.is_recent(now_seconds) {
            self.flaps |= begins;
            if self.flaps {
                return None;
            }
        }
        let times = std::mem::take(&mut self.times);
        if self.flaps && times > 0 {
            return Some(self.log(Change::Flapped(times), now_seconds));
        }
        self.flaps = false;
        let change = if is_withheld { Change::Began } else { Change::Ended };
        (is_withheld != self.is_logged).then(|| self.log(change, now_seconds))
    }

    fn log(&mut self, change: Change, now_seconds: f64) -> Change {
        self.is_logged = self.is_withheld;
        self.line_seconds = Some(now_seconds);
        change
    }

    /// Whether the last line is younger than a minute.
    fn is_recent(&self, now_seconds: f64) -> bool {
        self.line_seconds.is_some_and(|line| (now_seconds - line).abs() < MINUTE_SECONDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Change::{Began, Ended, Flapped};

    const LIST: &str = "processes";

    /// The lines of a second in which the list of device 0 is withheld, or not.
    fn lines(log: &mut WithheldLog, second: u32, is_withheld: bool) -> Option<Change> {
        let withheld = Withheld::of(DeviceIndex::gpu(0), LIST, format!("error {second}"));
        let lines = log.note(&Vec::from_iter(is_withheld.then_some(withheld)), f64::from(second));
        assert!(lines.len() <= 1);
        lines.first().map(|(withheld, change)| {
            assert_eq!((withheld.device, &*withheld.value), (Some(DeviceIndex::gpu(0)), LIST));
            *change
        })
    }

    /// The lines of seconds in which the value is withheld or not, each with its second.
    fn told(seconds: u32, is_withheld: impl Fn(u32) -> bool) -> Vec<(u32, Change)> {
        let mut log = WithheldLog::default();
        (0..seconds).filter_map(|second| Some((second, lines(&mut log, second, is_withheld(second))?))).collect()
    }

    #[test]
    fn a_withheld_value_has_a_line_at_its_beginning_and_at_its_end() {
        assert_eq!(told(500, |second| (3..400).contains(&second)), [(3, Began), (400, Ended)]);
        assert_eq!(told(500, |second| second == 3), [(3, Began), (4, Ended)]);
        // Again after a minute.
        let twice = told(500, |second| second == 3 || second == 64);
        assert_eq!(twice, [(3, Began), (4, Ended), (64, Began), (65, Ended)]);
    }

    #[test]
    fn a_value_that_comes_and_goes_has_a_line_a_minute_and_one_when_it_stays_another_way_than_the_last_line_said() {
        let flaps = |second: u32| second.is_multiple_of(2) && second < 130;
        let expected = [(0, Began), (1, Ended), (61, Flapped(30)), (121, Flapped(30)), (181, Flapped(4))];
        assert_eq!(told(500, flaps), expected);
        // It is withheld from then on.
        let stays = told(500, |second| second == 0 || second >= 9);
        assert_eq!(stays, [(0, Began), (1, Ended), (61, Flapped(1))]);
        let ends = told(500, |second| second == 0 || (9..70).contains(&second));
        assert_eq!(ends, [(0, Began), (1, Ended), (61, Flapped(1)), (121, Ended)]);
    }

    #[test]
    fn each_value_has_its_own_lines_with_its_last_error_and_their_number_is_limited() {
        let mut log = WithheldLog::default();
        let value = |number: usize, error: &str| Withheld::of(DeviceIndex::gpu(1), number.to_string(), error);
        assert_eq!(log.note(&[value(1, "a"), value(2, "b")], 0.0), [(value(1, "a"), Began), (value(2, "b"), Began)]);
        assert_eq!(log.note(&[value(1, "c"), value(2, "d")], 1.0), []);
        assert_eq!(log.note(&[value(1, "c")], 2.0), [(value(2, "d"), Ended)]);
        let many: Vec<Withheld> = (0..9999).map(|number| value(number, "e")).collect();
        assert_eq!(log.note(&many, 3.0).len(), MOST_VALUES - 2);
    }

    #[test]
    fn a_clock_that_is_set_back_stops_no_line() {
        let mut log = WithheldLog::default();
        for (second, is_withheld, expected) in
            [(9000, true, Some(Began)), (9001, false, Some(Ended)), (10, true, Some(Began)), (11, false, Some(Ended))]
        {
            assert_eq!(lines(&mut log, second, is_withheld), expected, "{second}");
        }
    }
}
