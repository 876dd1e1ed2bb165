//! Texts that somebody else chose, made fit to be shown, and times in words.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The text with everything escaped that could move a cursor, break a line, or turn the direction of writing.
#[must_use]
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
#[must_use]
pub fn is_harmless(character: char) -> bool {
    QUOTED.contains(&character) || character.escape_debug().len() == 1
}

/// What `escape_debug` escapes and nobody need fear.
const QUOTED: [char; 3] = ['"', '\'', '\\'];

/// So many characters of a text, with a sign where more were.
#[must_use]
pub fn shortened(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Local time to the minute, `2026-11-20 19:30`; what is no time of this era is shown as seconds.
#[must_use]
pub fn moment(timestamp_seconds: f64, zone: &TimeZone) -> String {
    local_time(timestamp_seconds, zone).unwrap_or_else(|| timestamp_seconds.to_string())
}

/// A [`moment`] at which something ends; what no calendar has is `further notice`.
#[must_use]
pub fn end_moment(timestamp_seconds: f64, zone: &TimeZone) -> String {
    local_time(timestamp_seconds, zone).unwrap_or_else(|| "further notice".to_owned())
}

fn local_time(timestamp_seconds: f64, zone: &TimeZone) -> Option<String> {
    #[expect(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
    let timestamp = Timestamp::from_second(timestamp_seconds.round() as i64).ok()?;
    let local = timestamp.to_zoned(zone.clone());
    Some(local.strftime("%Y-%m-%d %H:%M").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_to_the_minute_of_its_zone() {
        assert_eq!(moment(1_795_174_860.4, &TimeZone::UTC), "2026-11-20 11:41");
        let east = TimeZone::fixed(jiff::tz::offset(5));
        assert_eq!(end_moment(1_795_174_860.0, &east), "2026-11-20 16:41");
    }

    #[test]
    fn what_no_calendar_has_ends_on_further_notice() {
        assert_eq!(moment(1e12, &TimeZone::UTC), "1000000000000");
        for never in [f64::MAX, f64::INFINITY, 1e12] {
            assert_eq!(end_moment(never, &TimeZone::UTC), "further notice");
        }
    }
}
