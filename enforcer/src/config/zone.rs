//! The time zone of rules: its words, and its text in requests to other machines.

use std::env;

use jiff::fmt::temporal::{DateTimeParser, DateTimePrinter};
use jiff::tz::TimeZone;
use jiff::{Error, Timestamp};

/// Why [`system_time_zone`](genv_core::model::system_time_zone) is unknown.
pub(super) fn why_unknown() -> String {
    match env::var_os("TZ") {
        Some(name) => format!("TZ is '{}', which is no zone that this machine has", name.to_string_lossy()),
        None => "/etc/localtime is not the file of a zone".to_owned(),
    }
}

/// A zone with its offset at a Unix time: `Europe/Berlin (now +01:00)`.
pub(crate) fn described(zone: &TimeZone, now_seconds: f64) -> String {
    if zone.is_unknown() {
        return format!("unknown ({}), no rule needs it", why_unknown());
    }
    let name = DateTimePrinter::new().time_zone_to_string(zone).unwrap_or_else(|_| "the machine's".to_owned());
    format!("{name} (now {})", offset(zone, now_seconds))
}

/// A zone as a request to another machine has it: its IANA name or its POSIX rule; of a zone without either, its offset at
/// a Unix time. Absent: no rule needs it.
pub(crate) fn sent(zone: &TimeZone, now_seconds: f64) -> Option<String> {
    if zone.is_unknown() {
        return None;
    }
    Some(DateTimePrinter::new().time_zone_to_string(zone).unwrap_or_else(|_| offset(zone, now_seconds)))
}

/// The zone of a request.
///
/// # Errors
/// The text is no zone that this machine has.
pub(crate) fn received(text: &str) -> Result<TimeZone, Error> {
    DateTimeParser::new().parse_time_zone(text)
}

/// `+01:00`.
fn offset(zone: &TimeZone, now_seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
    let now = Timestamp::from_second(now_seconds.floor() as i64).unwrap_or_default();
    now.to_zoned(zone.clone()).strftime("%:z").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_machine_gets_the_zone_whatever_it_is() {
        let berlin = "CET-1CEST,M3.5.0,M10.5.0/3";
        let now_seconds = 1_796_083_200.0;
        for (zone, text, offset) in [
            (TimeZone::UTC, "UTC", "+00:00"),
            (TimeZone::get("Europe/Berlin").unwrap(), "Europe/Berlin", "+01:00"),
            (TimeZone::posix(berlin).unwrap(), berlin, "+01:00"),
            (TimeZone::fixed(jiff::tz::offset(-5)), "-05:00", "-05:00"),
        ] {
            assert_eq!(described(&zone, now_seconds), format!("{text} (now {offset})"));
            assert_eq!(sent(&zone, now_seconds).as_deref(), Some(text));
            assert_eq!(sent(&received(text).unwrap(), now_seconds).as_deref(), Some(text));
        }
        assert_eq!(sent(&TimeZone::unknown(), now_seconds), None);
        assert!(received("Mars/Olympus").is_err());
    }
}
