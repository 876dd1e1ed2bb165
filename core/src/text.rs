//! Untrusted texts in a form that is safe to show; numbers and times in words.

use std::fmt::Display;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// The text with all characters escaped that could move a cursor, break a line, or change the direction of writing.
pub fn harmless(text: &str) -> String {
    let mut harmless = String::with_capacity(text.len());
    for piece in text.split_inclusive(QUOTED) {
        let rest = piece.trim_end_matches(QUOTED);
        harmless.extend(rest.escape_debug());
        harmless.push_str(&piece[rest.len()..]);
    }
    harmless
}

/// Whether a character is one that [`harmless`] leaves as it is.
pub fn is_harmless(character: char) -> bool {
    QUOTED.contains(&character) || character.escape_debug().len() == 1
}

/// Characters that `escape_debug` escapes although they are harmless.
const QUOTED: [char; 3] = ['"', '\'', '\\'];

/// At most this number of characters of a text, with `…` after a cut.
pub fn shortened(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A whole number with its thousands apart: `2,999`.
pub fn thousands(number: impl Display) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with its noun: `1 device`, `2 devices`, `8,676 processes`.
pub fn counted<Number: Display + PartialEq + From<u8>>(count: Number, noun: &str) -> String {
    let ending = match noun {
        _ if count == Number::from(1_u8) => "",
        noun if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {noun}{ending}", thousands(count))
}

/// An amount of memory in GiB, without the unit: `1.5`.
pub fn gibibytes(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let bytes = bytes as f64;
    format!("{:.1}", bytes / f64::from(1 << 30))
}

/// UTC to the second, `2026-11-20T11:41:00Z`, for programs that show it in a zone of their own; absent if the calendar does
/// not have the time.
pub fn rfc3339(timestamp_seconds: f64) -> Option<String> {
    timestamp(timestamp_seconds).map(|it| it.to_string())
}

/// Local time to the minute, `2026-11-20 19:30`; the number of seconds if the calendar does not have the time.
pub fn moment(timestamp_seconds: f64, zone: &TimeZone) -> String {
    local_time(timestamp_seconds, zone).unwrap_or_else(|| timestamp_seconds.to_string())
}

/// The [`moment`] of an end; `further notice` if the calendar does not have the time.
pub fn end_moment(timestamp_seconds: f64, zone: &TimeZone) -> String {
    local_time(timestamp_seconds, zone).unwrap_or_else(|| "further notice".to_owned())
}

/// A [`moment`] near now, in the shortest clear form: `18:00`, `Wed 18:00`, `2026-12-05 18:00`.
pub fn short_moment(timestamp_seconds: f64, now_seconds: f64, zone: &TimeZone) -> String {
    let local = local(timestamp_seconds, zone).zip(local(now_seconds, zone));
    let Some((moment, now)) = local else {
        return timestamp_seconds.to_string();
    };
    let days = moment.date().since(now.date()).map(|it| it.get_days());
    let format = match days {
        Ok(0) => "%H:%M",
        Ok(1..=6) => "%a %H:%M",
        _ => "%Y-%m-%d %H:%M",
    };
    moment.strftime(format).to_string()
}

fn local_time(timestamp_seconds: f64, zone: &TimeZone) -> Option<String> {
    let local = local(timestamp_seconds, zone)?;
    Some(local.strftime("%Y-%m-%d %H:%M").to_string())
}

fn local(timestamp_seconds: f64, zone: &TimeZone) -> Option<Zoned> {
    Some(timestamp(timestamp_seconds)?.to_zoned(zone.clone()))
}

fn timestamp(seconds: f64) -> Option<Timestamp> {
    #[expect(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
    Timestamp::from_second(seconds.round() as i64).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noun_is_in_the_plural_except_after_one() {
        assert_eq!([counted(1, "process"), counted(2, "process")], ["1 process", "2 processes"]);
        assert_eq!([counted(0, "device"), counted(1, "device")], ["0 devices", "1 device"]);
    }

    #[test]
    fn a_time_is_shown_to_the_minute_in_its_zone() {
        assert_eq!(moment(1_795_174_860.4, &TimeZone::UTC), "2026-11-20 11:41");
        assert_eq!(rfc3339(1_795_174_860.4).as_deref(), Some("2026-11-20T11:41:00Z"));
        let east = TimeZone::fixed(jiff::tz::offset(5));
        assert_eq!(end_moment(1_795_174_860.0, &east), "2026-11-20 16:41");
    }

    #[test]
    fn a_moment_near_now_has_the_shortest_clear_form() {
        // A Friday, 11:41.
        let now = 1_795_174_860.0;
        let day = 86_400.0;
        for (seconds, text) in [
            (now, "11:41"),
            (now + 12.0 * 3600.0, "23:41"),
            (now + 13.0 * 3600.0, "Sat 00:41"),
            (now + 6.0 * day, "Thu 11:41"),
            (now + 7.0 * day, "2026-11-27 11:41"),
            (now - day, "2026-11-19 11:41"),
            (f64::MAX, &f64::MAX.to_string()),
        ] {
            assert_eq!(short_moment(seconds, now, &TimeZone::UTC), text);
        }
    }

    #[test]
    fn a_time_that_no_calendar_has_is_further_notice() {
        assert_eq!(moment(1e12, &TimeZone::UTC), "1000000000000");
        for never in [f64::MAX, f64::INFINITY, 1e12] {
            assert_eq!(end_moment(never, &TimeZone::UTC), "further notice");
            assert_eq!(rfc3339(never), None);
        }
    }
}
