//! What rules would have done, to whom and when: a row of characters for each rule and user.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::event::{Event, EventKind};
use crate::plan::words;

/// The columns of the whole recording. With [`NAME`] a row fits a terminal of 80 columns.
const COLUMNS: usize = 60;

/// The columns before the first moment, with the names of users.
const NAME: usize = 19;

/// The columns from one label of the time to the next.
const LABELS: usize = 12;

/// The rows of a rule.
const MOST_USERS: usize = 8;

const DAY: f64 = 86_400.0;

/// The possible times of a column, in seconds; a longer one is a number of weeks.
const STEPS: [f64; 9] = [60.0, 300.0, 600.0, 1_800.0, 3_600.0, 7_200.0, 21_600.0, 43_200.0, DAY];

/// The events of a recording, by rule and user.
#[derive(Debug, Default)]
pub(super) struct Plot {
    rules: BTreeMap<String, BTreeMap<String, Vec<(f64, Mark)>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Violation,
    Warning,
    Action,
}

/// Moments of a recording as columns.
struct Axis {
    begin: f64,
    step: f64,
    columns: usize,
}

impl Plot {
    /// Adds an event.
    pub(super) fn add(&mut self, event: &Event) {
        let mark = match event.kind {
            EventKind::Violation | EventKind::Held { .. } => Mark::Violation,
            EventKind::Warning { .. } => Mark::Warning,
            EventKind::Action { .. } => Mark::Action,
            EventKind::Over { .. } | EventKind::Breaker { .. } => return,
        };
        if let Some(about) = &event.about {
            let users = self.rules.entry(about.rule.clone()).or_default();
            users.entry(about.username.clone()).or_default().push((event.at_seconds, mark));
        }
    }

    /// The rows from the first to the last moment of a recording; nothing without an event.
    pub(super) fn text(&self, from_seconds: f64, until_seconds: f64, zone: &TimeZone) -> String {
        let Some(axis) = Axis::new(from_seconds, until_seconds, zone).filter(|_| !self.rules.is_empty()) else {
            return String::new();
        };
        let step = genv_core::duration::format_span(axis.step);
        let mut text = format!(
            "\nA column is {step}. '.': a violation, 'w': a warning, '1' to '9': so many actions, '+': more.\n{:NAME$}{}\n",
            "",
            axis.labels(zone)
        );
        for (rule, users) in &self.rules {
            text += &format!("{}\n", words::name(rule));
            let count = |marks: &[(f64, Mark)], mark: Mark| marks.iter().filter(|it| it.1 == mark).count();
            let mut users: Vec<(&String, &Vec<(f64, Mark)>)> = users.iter().collect();
            users.sort_by_key(|(_, marks)| {
                std::cmp::Reverse((count(marks, Mark::Action), count(marks, Mark::Warning), marks.len()))
            });
            for (user, marks) in users.iter().take(MOST_USERS) {
                let name = genv_core::text::shortened(&words::name(user), NAME - 4);
                text += format!("  {name:width$}{}", axis.row(marks), width = NAME - 2).trim_end();
                text.push('\n');
            }
            if let Some(more) = users.len().checked_sub(MOST_USERS).filter(|more| *more > 0) {
                text += &format!("  and {}\n", words::count(more, "more user"));
            }
        }
        text
    }
}

impl Axis {
    /// Columns of a round time that begin at a round time of the clock. Absent if the times are absurd.
    fn new(from_seconds: f64, until_seconds: f64, zone: &TimeZone) -> Option<Self> {
        let offset = f64::from(zone.to_offset(timestamp(from_seconds)?).seconds());
        let spans = |step: f64| {
            let begin = ((from_seconds + offset) / step).floor() * step - offset;
            let columns = ((until_seconds - begin) / step).floor() + 1.0;
            (columns <= COLUMNS as f64).then_some((begin, columns))
        };
        let weeks = ((until_seconds - from_seconds) / (7.0 * DAY) / (COLUMNS - 2) as f64).ceil() * 7.0 * DAY;
        let steps = STEPS.into_iter().chain([weeks]);
        let (step, (begin, columns)) = steps.filter_map(|step| Some((step, spans(step)?))).next()?;
        Some(Self { begin, step, columns: whole(columns) })
    }

    /// The time at every twelfth column: `12:00`, or `11-20 12:00` if the recording is longer than a day.
    fn labels(&self, zone: &TimeZone) -> String {
        let format = if self.step * self.columns as f64 > DAY { "%m-%d %H:%M" } else { "%H:%M" };
        let labels = (0..self.columns).step_by(LABELS).map(|column| {
            let time = timestamp(self.begin + column as f64 * self.step);
            let label = time.map(|time| time.to_zoned(zone.clone()).strftime(format).to_string());
            format!("{:LABELS$}", label.unwrap_or_default())
        });
        labels.collect::<String>().trim_end().to_owned()
    }

    fn row(&self, marks: &[(f64, Mark)]) -> String {
        let mut row = vec![(' ', 0_u32); self.columns];
        for (at_seconds, mark) in marks {
            let column = whole((at_seconds - self.begin) / self.step).min(self.columns - 1);
            let (character, actions) = &mut row[column];
            *actions += u32::from(*mark == Mark::Action);
            *character = match (*actions, *mark) {
                (0, Mark::Violation) if *character == 'w' => 'w',
                (0, Mark::Violation) => '.',
                (0, _) => 'w',
                (actions, _) => char::from_digit(actions, 10).unwrap_or('+'),
            };
        }
        row.into_iter().map(|it| it.0).collect()
    }
}

fn timestamp(seconds: f64) -> Option<Timestamp> {
    #[expect(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
    let timestamp = Timestamp::from_second(seconds.floor() as i64);
    timestamp.ok()
}

fn whole(number: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "casts of floats saturate, and NaN becomes 0"
    )]
    let whole = number as usize;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Friday, 20 November 2026, 12:00 UTC.
    const NOON: f64 = 1_795_176_000.0;

    fn plot(marks: &[(&str, &str, f64, Mark)]) -> Plot {
        let mut plot = Plot::default();
        for (rule, user, after, mark) in marks {
            let users = plot.rules.entry((*rule).to_owned()).or_default();
            users.entry((*user).to_owned()).or_default().push((NOON + after, *mark));
        }
        plot
    }

    #[test]
    fn the_strongest_event_of_a_user_in_a_column_is_shown_and_actions_are_counted() {
        let mut marks = vec![
            ("idle", "bob", 600.0, Mark::Violation),
            ("idle", "bob", 700.0, Mark::Warning),
            ("idle", "bob", 800.0, Mark::Violation),
            ("idle", "\u{1b}[31meva", 1_900.0, Mark::Violation),
            ("idle", "alice", 7_200.0, Mark::Warning),
            ("idle", "alice", 9_000.0, Mark::Action),
            ("idle", "alice", 9_100.0, Mark::Action),
            ("max", "a user with a long name", 86_400.0, Mark::Action),
        ];
        marks.extend([("many", "carol", 70_000.0, Mark::Action); 12]);
        let others: Vec<String> = (0..9).map(|it| format!("user{it}")).collect();
        marks.extend(others.iter().map(|it| ("many", it.as_str(), 0.0, Mark::Violation)));
        insta::assert_snapshot!(plot(&marks).text(NOON, NOON + DAY, &TimeZone::UTC));
    }

    #[test]
    fn a_column_is_the_shortest_round_time_with_which_the_recording_fits() {
        let east = TimeZone::fixed(jiff::tz::offset(5));
        for (seconds, step, columns) in [
            (0.0, 60.0, 1),
            (59.0 * 60.0, 60.0, 60),
            (3_600.0, 300.0, 13),
            (DAY, 1_800.0, 49),
            (7.0 * DAY, 21_600.0, 29),
            (400.0 * DAY, 7.0 * DAY, 58),
            (3_000.0 * DAY, 56.0 * DAY, 54),
        ] {
            let axis = Axis::new(NOON, NOON + seconds, &TimeZone::UTC).unwrap();
            assert_eq!((axis.step, axis.columns), (step, columns), "{seconds}");
        }
        // A day begins at midnight of the zone: at 19:00 UTC.
        let axis = Axis::new(NOON, NOON + 40.0 * DAY, &east).unwrap();
        assert_eq!((axis.step, axis.begin), (DAY, NOON - 17.0 * 3_600.0));
        for (from, until, fits) in [(f64::MIN, f64::MAX, false), (0.0, f64::MAX, true), (f64::NAN, 0.0, false)] {
            let text = plot(&[("idle", "bob", 0.0, Mark::Action)]).text(from, until, &TimeZone::UTC);
            assert_eq!(!text.is_empty(), fits, "{from} to {until}");
        }
    }
}
