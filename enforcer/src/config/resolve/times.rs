//! Moments and schedules, in the configuration's time zone.

use genv_core::yaml::Located;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _, Zoned};

use super::{Checked, Resolver};
use crate::config::Schedule;
use crate::config::format::WhenEntry;

/// What a date without a time of day stands for.
#[derive(Clone, Copy)]
pub(super) enum Edge {
    /// The first moment of the day.
    Begin,
    /// The last moment of the day: an exemption until a day includes that day.
    End,
}

impl Resolver<'_> {
    /// Unix time of a text.
    pub(super) fn moment(&self, text: &Located<String>, edge: Edge) -> Checked<f64> {
        let in_zone = |zone| moment(text.value.trim(), &zone, edge).map(f64::to_bits);
        // A text with a zone of its own is the same time in every zone.
        if in_zone(TimeZone::UTC) != in_zone(TimeZone::fixed(jiff::tz::offset(1))) {
            self.needs_zone(text.referenced)?;
        }
        let moment = moment(text.value.trim(), &self.timezone, edge).ok_or_else(|| {
            format!(
                "'{}' is not a time: write 2026-12-01T08:00, 2026-12-01T08:00+01:00 or 2026-12-01 for the whole day",
                text.value.escape_debug()
            )
        });
        self.valid(text.referenced, moment)
    }

    pub(super) fn schedule(&self, when: &Located<WhenEntry>) -> Checked<Schedule> {
        let entry = &when.value;
        if entry.days.is_none() && entry.between.is_none() {
            return self.refuse(when.referenced, "when? Say days, between, or both");
        }
        if let Some(days) = &entry.days
            && days.value.0.is_empty()
        {
            let message = "an empty list of days says nothing: name some, or leave the key out";
            return self.refuse(days.referenced, message);
        }
        self.needs_zone(when.referenced)?;
        let between_minutes =
            entry.between.as_ref().map(|text| self.valid(text.referenced, between(&text.value))).transpose()?;
        Ok(Schedule {
            days: entry.days.as_ref().map_or_else(every_day, |days| days.value.0.clone()),
            between_minutes,
            outside: entry.outside,
        })
    }
}

fn every_day() -> Vec<jiff::civil::Weekday> {
    jiff::civil::Weekday::Monday.cycle_forward().take(7).collect()
}

fn moment(text: &str, timezone: &TimeZone, edge: Edge) -> Option<f64> {
    let seconds = |timestamp: Timestamp| timestamp.as_duration().as_secs_f64();
    // Where the clock is set back, a time occurs twice: an exemption until that time ends at the second occurrence.
    let zoned = |civil: DateTime| {
        let ambiguous = timezone.to_ambiguous_timestamp(civil);
        let moment = match edge {
            Edge::Begin => ambiguous.compatible(),
            Edge::End => ambiguous.later(),
        };
        moment.ok().map(seconds)
    };
    // A civil time ignores what a text says of a zone, so that is tried last.
    if text.len() == "2026-12-01".len()
        && let Ok(date) = text.parse::<Date>()
    {
        return match edge {
            Edge::Begin => zoned(date.at(0, 0, 0, 0)),
            Edge::End => zoned(date.checked_add(1.day()).ok()?.at(0, 0, 0, 0)),
        };
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(seconds(time));
    }
    if let Ok(time) = text.parse::<Zoned>() {
        return Some(seconds(time.timestamp()));
    }
    if text.contains(['[', 'Z', 'z', '+']) {
        return None;
    }
    text.parse::<DateTime>().ok().and_then(zoned)
}

/// Minutes since midnight of `08:00-20:00`.
fn between(text: &str) -> Result<(u32, u32), String> {
    let wrong = || {
        format!(
            "'{}' is not a span of the day: write \"08:00-20:00\", or \"22:00-06:00\" for one over midnight",
            text.escape_debug()
        )
    };
    let minutes = |time: &str| {
        let (hours, minutes) = time.trim().split_once(':')?;
        let number = |digits: &str| {
            let two = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_digit());
            two.then(|| digits.parse::<u32>().ok()).flatten()
        };
        let (hours, minutes) = (number(hours)?, number(minutes)?);
        (minutes < 60 && (hours < 24 || (hours, minutes) == (24, 0))).then_some(hours * 60 + minutes)
    };
    let (begin, end) = text.split_once('-').ok_or_else(wrong)?;
    let begin = minutes(begin).filter(|begin| *begin < 1440).ok_or_else(wrong)?;
    // Midnight as an end is this day's last moment, however it is written.
    let end = minutes(end).map(|end| if end == 0 { 1440 } else { end }).ok_or_else(wrong)?;
    if begin == end {
        return Err(format!("{text} has no length: leave between out for the whole day"));
    }
    Ok((begin, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_the_day_may_go_over_midnight() {
        assert_eq!(between("08:00-20:00"), Ok((480, 1200)));
        assert_eq!(between("22:00 - 06:30"), Ok((1320, 390)));
        assert_eq!(between("18:00-24:00"), Ok((1080, 1440)));
        assert_eq!(between("18:00-00:00"), Ok((1080, 1440)));
        assert_eq!(between("00:00-24:00"), Ok((0, 1440)));
        for text in ["", "8-20", "08:00", "08:00-20:60", "24:00-25:00", "8:00-20:00", "08:00-08:00", "+8:00-09:00"] {
            assert!(between(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_moment_is_of_its_own_zone_or_of_the_configurations() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        let at = |text: &str, edge| {
            let seconds = moment(text, &berlin, edge)?;
            #[expect(clippy::cast_possible_truncation, reason = "whole seconds of this century")]
            Timestamp::from_second(seconds as i64).ok().map(|time| time.to_string())
        };
        let begin = |text| at(text, Edge::Begin).unwrap_or_default();
        assert_eq!(begin("2026-12-01T08:00"), "2026-12-01T07:00:00Z");
        assert_eq!(begin("2026-07-01 08:00:30"), "2026-07-01T06:00:30Z");
        assert_eq!(begin("2026-12-01T08:00Z"), "2026-12-01T08:00:00Z");
        assert_eq!(begin("2026-12-01T08:00-05:00"), "2026-12-01T13:00:00Z");
        assert_eq!(begin("2026-12-01T08:00[America/New_York]"), "2026-12-01T13:00:00Z");
        assert_eq!(begin("2026-12-01"), "2026-11-30T23:00:00Z");
        assert_eq!(at("2026-12-01", Edge::End).unwrap(), "2026-12-01T23:00:00Z");
        for text in ["", "tomorrow", "1764576000", "2026-13-01", "2026-02-30", "08:00", "2026-12-01T08:00[Mars/One]"] {
            assert_eq!(at(text, Edge::Begin), None, "{text}");
        }
    }

    #[test]
    fn a_time_that_happens_twice_begins_with_the_first_and_ends_with_the_second() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        let at = |text: &str, edge| moment(text, &berlin, edge).unwrap();
        let utc = |text: &str| at(text, Edge::Begin);
        for (text, begin, end) in [
            ("2026-10-25T02:30", "2026-10-25T00:30Z", "2026-10-25T01:30Z"),
            ("2026-10-25T03:30", "2026-10-25T02:30Z", "2026-10-25T02:30Z"),
            // What is skipped is as long after the change as it says.
            ("2026-03-29T02:30", "2026-03-29T01:30Z", "2026-03-29T01:30Z"),
        ] {
            assert_eq!(at(text, Edge::Begin), utc(begin), "{text}");
            assert_eq!(at(text, Edge::End), utc(end), "{text}");
        }
    }

    #[test]
    fn a_day_with_a_change_of_the_clock_ends_at_midnight() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        let seconds = |edge| moment("2026-10-25", &berlin, edge).unwrap();
        assert!((seconds(Edge::End) - seconds(Edge::Begin) - 25.0 * 3600.0).abs() < 1e-6);
    }
}
