//! Durations in the form of Prometheus: `10s`, `1h30m`, `500ms`.

use std::ffi::OsStr;
use std::time::Duration;

/// A text that is not a duration, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text ends in a number without a unit.
    #[error("duration '{0}' lacks a unit: write {units}", units = with_units(.0))]
    NoUnit(String),
    /// The text has another form.
    #[error(
        "'{0}' is not a duration: write whole numbers with the units w, d, h, m, s or ms, \
         the largest first, such as 10s or 1h30m"
    )]
    Malformed(String),
    /// The duration does not fit 64 bits of milliseconds.
    #[error("duration '{0}' is too long")]
    TooLong(String),
    /// The duration is too short or too long for an interval between collections.
    #[error(
        "the machine is asked at most ten times a second and at least once an hour: \
         choose 100ms to 1h, such as 10s"
    )]
    NoInterval,
}

/// More frequent collections cost more than they are worth.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// Prometheus drops a series after five minutes without a sample: a longer interval is a mistake.
const LONGEST_INTERVAL: Duration = Duration::from_secs(3600);

/// Reads an interval between collections, as [`parse_duration`].
///
/// # Errors
/// The text is not a duration, or is too short or too long for an interval.
pub fn parse_interval(text: &str) -> Result<Duration, DurationError> {
    as_interval(parse_duration(text)?)
}

/// An interval between collections that programs write as a number of seconds.
///
/// # Errors
/// The number is not a duration, or is too short or too long for an interval.
pub fn interval_of_seconds(seconds: f64) -> Result<Duration, DurationError> {
    as_interval(Duration::try_from_secs_f64(seconds).map_err(|_| DurationError::NoInterval)?)
}

/// `366 days`, rounded up.
pub fn days(duration: Duration) -> String {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    format!("{} days", seconds.div_ceil(86_400))
}

fn as_interval(duration: Duration) -> Result<Duration, DurationError> {
    if (SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(&duration) {
        return Ok(duration);
    }
    Err(DurationError::NoInterval)
}

/// Units in milliseconds, the largest first. `ms` is tried before `m`.
const UNITS: [(&str, u64); 6] =
    [("w", 7 * 24 * 3_600_000), ("d", 24 * 3_600_000), ("h", 3_600_000), ("ms", 1), ("m", 60_000), ("s", 1_000)];

/// Reads a duration in Prometheus' form
/// (<https://prometheus.io/docs/prometheus/latest/configuration/configuration/>): each unit at
/// most once, the largest first; `0` needs none.
///
/// # Errors
/// The text has another form or is too long.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let malformed = || DurationError::Malformed(text.to_owned());
    let too_long = || DurationError::TooLong(text.to_owned());
    let mut milliseconds = 0_u64;
    let mut smallest = u64::MAX;
    let mut rest = text;
    while !rest.is_empty() || smallest == u64::MAX {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit_and_rest) = rest.split_at(digits);
        if number.is_empty() {
            return Err(malformed());
        }
        if unit_and_rest.is_empty() {
            // No unit is smaller than milliseconds.
            return Err(match smallest {
                1 => malformed(),
                _ => DurationError::NoUnit(text.to_owned()),
            });
        }
        let (name, unit) = UNITS.into_iter().find(|(name, _)| unit_and_rest.starts_with(name)).ok_or_else(malformed)?;
        if unit >= smallest {
            return Err(malformed());
        }
        smallest = unit;
        rest = &unit_and_rest[name.len()..];
        milliseconds = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(unit))
            .and_then(|part| milliseconds.checked_add(part))
            .ok_or_else(too_long)?;
    }
    Ok(Duration::from_millis(milliseconds))
}

/// Reads the value of an environment variable, as [`parse_duration`]; an empty value counts as unset.
///
/// # Errors
/// The value is not a duration.
pub fn parse_variable(value: Option<&OsStr>) -> Result<Option<Duration>, DurationError> {
    let value = value.filter(|value| !value.is_empty());
    value.map(|value| parse_duration(&value.to_string_lossy())).transpose()
}

/// The possible meanings of a text that ends in a number: `8s, 8m, 8h or 8d`. Its last unit is larger than theirs.
fn with_units(text: &str) -> String {
    let before = text.trim_end_matches(|c: char| c.is_ascii_digit());
    let last = UNITS.into_iter().find(|(name, _)| before.ends_with(name));
    let units = match last.map(|(name, _)| name) {
        None | Some("w") => "smhd",
        Some("d") => "smh",
        Some("h") => "sm",
        Some("m") => "s",
        Some(_) => return format!("{text}ms"),
    };
    let mut all: Vec<String> = units.chars().map(|unit| format!("{text}{unit}")).collect();
    let last = all.pop().unwrap_or_default();
    match all.is_empty() {
        true => last,
        false => format!("{} or {last}", all.join(", ")),
    }
}

/// Writes a duration as [`parse_duration`] reads it, to the millisecond: `1h30m`.
pub fn format_duration(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if rest == 0 {
        return "0s".to_owned();
    }
    // From the largest unit to the smallest.
    let mut units = UNITS;
    units.sort_unstable_by_key(|(_, unit)| std::cmp::Reverse(*unit));
    let mut text = String::new();
    for (name, unit) in units {
        if rest >= unit {
            text += &format!("{}{name}", rest / unit);
            rest %= unit;
        }
    }
    text
}

/// A span of time in the form of [`format_duration`], in whole seconds; a long span without its small units.
pub fn format_span(seconds: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "casts of floats saturate, and NaN becomes 0"
    )]
    let seconds = seconds.round().max(0.0) as u64;
    let unit = match seconds {
        0..3_600 => 1,
        3_600..86_400 => 60,
        86_400..604_800 => 3_600,
        _ => 86_400,
    };
    format_duration(Duration::from_secs(seconds / unit * unit))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_variable_is_unset_or_a_duration_or_an_error() {
        let parsed = |value: &str| parse_variable(Some(OsStr::new(value)));
        assert_eq!(parse_variable(None), Ok(None));
        assert_eq!(parsed(""), Ok(None));
        assert_eq!(parsed("2s"), Ok(Some(Duration::from_secs(2))));
        for wrong in ["2", "fast", "-1s", "1.5s"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_unit_means_its_time() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("15ms", 15),
            ("10s", 10_000),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("1d", 86_400_000),
            ("1w2d3h4m5s6ms", 788_645_006),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn an_interval_has_a_shortest_and_a_longest_value() {
        assert_eq!(parse_interval("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(parse_interval("1h"), Ok(Duration::from_secs(3600)));
        for text in ["0", "99ms", "1h1ms", "2w"] {
            assert_eq!(parse_interval(text), Err(DurationError::NoInterval), "{text}");
        }
    }

    #[test]
    fn a_span_has_its_two_largest_units() {
        for (seconds, text) in [
            (0.0, "0s"),
            (f64::NAN, "0s"),
            (-5.0, "0s"),
            (59.6, "1m"),
            (90.0, "1m30s"),
            (3605.0, "1h"),
            (5400.0, "1h30m"),
            (90_061.0, "1d1h"),
            (8.0 * 86_400.0, "1w1d"),
        ] {
            assert_eq!(format_span(seconds), text);
        }
    }

    #[test]
    fn an_invalid_duration_is_refused_with_a_remedy() {
        let all: Vec<String> = [
            "",
            "10",
            "1h30",
            "1d2",
            "1m30",
            "1s5",
            "1ms5",
            "10 s",
            "-1s",
            "1.5s",
            "s",
            "1m1h",
            "1s1s",
            "1y",
            "99999999999w",
        ]
        .into_iter()
        .map(|text| parse_duration(text).unwrap_err().to_string())
        .collect();
        insta::assert_snapshot!(all.join("\n"), @r"
        '' is not a duration: write whole numbers with the units w, d, h, m, s or ms, the largest first, such as 10s or 1h30m
        duration '10' lacks a unit: write 10s, 10m, 10h or 10d
        duration '1h30' lacks a unit: write 1h30s or 1h30m
        duration '1d2' lacks a unit: write 1d2s, 1d2m or 1d2h
        duration '1m30' lacks a unit: write 1m30s
        duration '1s5' lacks a unit: write 1s5ms
        '1ms5' is not a duration: write whole numbers with the units w, d, h, m, s or ms, the largest first, such as 10s or 1h30m
        '10 s' is not a duration: write whole numbers with the units w, d, h, m, s or ms, the largest first, such as 10s or 1h30m
        '-1s' is not a duration: write whole numbers with the units w, d, h, m, s or ms, the largest first, such as 10s or 1h30m
        '1.5s' is not a duration: write whole numbers with the units w, d, h, m, s or ms, the largest first, such as 10s or 1h30m
        's' is not a duration: write whole numbers with the units w, d, h, m, s or ms, the largest first, such as 10s or 1h30m
        '1m1h' is not a duration: write whole numbers with the units w, d, h, m, s or ms, the largest first, such as 10s or 1h30m
        '1s1s' is not a duration: write whole numbers with the units w, d, h, m, s or ms, the largest first, such as 10s or 1h30m
        '1y' is not a duration: write whole numbers with the units w, d, h, m, s or ms, the largest first, such as 10s or 1h30m
        duration '99999999999w' is too long
        ");
    }

    #[test]
    fn a_duration_is_written_in_its_largest_units() {
        for (milliseconds, text) in [
            (0, "0s"),
            (15, "15ms"),
            (90_000, "1m30s"),
            (7_200_000, "2h"),
            (604_800_000, "1w"),
            (788_645_006, "1w2d3h4m5s6ms"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(milliseconds)), text);
        }
    }

    proptest! {
        #[test]
        fn a_written_duration_reads_back(milliseconds in 0..u64::MAX) {
            let duration = Duration::from_millis(milliseconds);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn no_text_ends_the_program(text in "\\PC*|[0-9wdhms]*") {
            let _ = parse_duration(&text);
        }
    }
}
