//! Ages in words, as genv 1.4.3 writes them.

pub(crate) use genv_core::model::now_seconds;

/// The name, the symbol and the length in seconds of each unit, the largest first.
const UNITS: [(&str, &str, i64); 4] =
    [("week", "w", 7 * 86_400), ("day", "d", 86_400), ("hour", "h", 3600), ("minute", "min", 60)];

/// `2 hours ago`, rounded down. A time in the future gives a negative number of seconds.
pub(crate) fn ago(timestamp_seconds: f64, now_seconds: f64) -> String {
    format!("{} ago", whole_units(age(timestamp_seconds, now_seconds)))
}

/// `2 h`, rounded down.
pub(crate) fn short_age(timestamp_seconds: f64, now_seconds: f64) -> String {
    let (_, symbol, count) = largest_unit(age(timestamp_seconds, now_seconds));
    format!("{count} {symbol}")
}

fn age(timestamp_seconds: f64, now_seconds: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "both are times of files, which end with the year 9999")]
    let seconds = (now_seconds - timestamp_seconds) as i64;
    seconds
}

/// `2 hours`: the number of the largest unit that fits, rounded down.
pub(crate) fn whole_units(seconds: i64) -> String {
    let (name, _, count) = largest_unit(seconds);
    let plural = if count > 1 { "s" } else { "" };
    format!("{count} {name}{plural}")
}

/// `2 hours`: the number of the largest unit that fits, rounded to the nearest.
pub(crate) fn nearest_units(seconds: i64) -> String {
    let (_, _, length) = unit(seconds);
    whole_units(seconds.saturating_add(length / 2))
}

/// The name, the symbol and the number of the largest unit that fits.
fn largest_unit(seconds: i64) -> (&'static str, &'static str, i64) {
    let (name, symbol, length) = unit(seconds);
    (name, symbol, seconds / length)
}

/// The name, the symbol and the length in seconds of the largest unit that fits.
fn unit(seconds: i64) -> (&'static str, &'static str, i64) {
    let unit = UNITS.iter().find(|(_, _, length)| seconds >= *length);
    *unit.unwrap_or(&("second", "s", 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_the_words_of_genv_1_4_3() {
        for (seconds, words) in [
            (-99.9, "-99 second ago"),
            (0.9, "0 second ago"),
            (1.0, "1 second ago"),
            (59.9, "59 seconds ago"),
            (119.0, "1 minute ago"),
            (120.0, "2 minutes ago"),
            (3599.0, "59 minutes ago"),
            (3600.0, "1 hour ago"),
            (86_399.0, "23 hours ago"),
            (86_400.0, "1 day ago"),
            (172_800.0, "2 days ago"),
            (604_799.0, "6 days ago"),
            (604_800.0, "1 week ago"),
            (94_608_000.0, "156 weeks ago"),
        ] {
            assert_eq!(ago(1000.0, 1000.0 + seconds), words);
        }
    }

    #[test]
    fn a_difference_is_rounded_to_the_nearest_number_of_its_unit() {
        for (seconds, words) in [
            (31, "31 seconds"),
            (89, "1 minute"),
            (1800, "30 minutes"),
            (3599, "1 hour"),
            (5399, "1 hour"),
            (7199, "2 hours"),
            (86_399, "1 day"),
        ] {
            assert_eq!(nearest_units(seconds), words);
        }
    }

    #[test]
    fn a_short_age_has_the_symbol_of_its_unit() {
        for (seconds, age) in
            [(0.9, "0 s"), (59.9, "59 s"), (119.0, "1 min"), (7200.0, "2 h"), (604_799.0, "6 d"), (604_800.0, "1 w")]
        {
            assert_eq!(short_age(1000.0, 1000.0 + seconds), age);
        }
    }
}
