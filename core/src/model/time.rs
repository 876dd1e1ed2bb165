//! Times: the clock, zones, and the local time format of genv 1.x, `20/11/2026 11:41:00`.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// Unix time by this machine's clock; 0 before 1970.
pub fn now_seconds() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

/// The zone in which times are shown to the caller: `TZ`, else `/etc/localtime` (tzset(3)). A `TZ` that names no zone of this
/// machine, such as `CET-1CEST` without its rules, does not count.
pub fn local_time_zone() -> TimeZone {
    match std::env::var_os("TZ") {
        None => machine_time_zone(),
        Some(_) => TimeZone::try_system().unwrap_or_else(|_| machine_time_zone()),
    }
}

/// The zone of the times in files of genv 1.x: `/etc/localtime` (localtime(5)), and `TZ` only where that file is
/// missing or damaged. Where that names no zone either, the zone is unknown, and times count as UTC.
///
/// All users share these files, and their times have no offset: the `TZ` of one caller must not change their meaning.
pub fn machine_time_zone() -> TimeZone {
    // `TimeZone::system` searches the whole database for the name of the zone, which is not used here.
    let content = std::fs::read("/etc/localtime").ok();
    let zone = content.and_then(|content| TimeZone::tzif("local", &content).ok());
    zone.unwrap_or_else(system_time_zone)
}

/// `TZ`, else `/etc/localtime`, else UTC (tzset(3), localtime(5)). Unknown if the one that counts names no zone that is
/// installed here.
pub fn system_time_zone() -> TimeZone {
    let is_absent = || std::env::var_os("TZ").is_none() && std::fs::symlink_metadata("/etc/localtime").is_err();
    match TimeZone::try_system() {
        Ok(zone) => zone,
        Err(_) if is_absent() => TimeZone::UTC,
        Err(_) => TimeZone::unknown(),
    }
}

/// A text that is not a time of genv's files, or a time that the format cannot express.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a time of the form dd/mm/YYYY HH:MM:SS")]
pub(crate) struct LocalTimeError(String);

/// Unix seconds of a local time.
///
/// The format has no offset. A time that occurs twice, when clocks are set back, is the first occurrence. A time that
/// is skipped, when clocks are set forward, counts as if the clocks had not been set (both as in RFC 5545).
pub(crate) fn parse_local_time(text: &str, time_zone: &TimeZone) -> Result<i64, LocalTimeError> {
    let error = || LocalTimeError(text.to_owned());
    let civil = DateTime::strptime("%d/%m/%Y %H:%M:%S", text.trim()).map_err(|_| error())?;
    let zoned = civil.to_zoned(time_zone.clone()).map_err(|_| error())?;
    Ok(zoned.timestamp().as_second())
}

/// The local time of Unix seconds.
pub(crate) fn format_local_time(timestamp_seconds: i64, time_zone: &TimeZone) -> Result<String, LocalTimeError> {
    let error = || LocalTimeError(format!("@{timestamp_seconds}"));
    let timestamp = Timestamp::from_second(timestamp_seconds).map_err(|_| error())?;
    let local = Zoned::new(timestamp, time_zone.clone());
    if local.year() < 1000 {
        return Err(error());
    }
    Ok(local.strftime("%d/%m/%Y %H:%M:%S").to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Central Europe by rule, so that no time zone database need be installed.
    fn berlin() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    #[test]
    fn a_time_is_read_in_the_given_zone() {
        let text = "20/11/2026 11:41:00";
        assert_eq!(parse_local_time(text, &TimeZone::UTC), Ok(1_795_174_860));
        assert_eq!(parse_local_time(text, &berlin()), Ok(1_795_171_260));
        let summer = "20/07/2026 11:41:00";
        assert_eq!(
            parse_local_time(summer, &berlin()).unwrap() + 7200,
            parse_local_time(summer, &TimeZone::UTC).unwrap()
        );
    }

    #[test]
    fn an_hour_that_happens_twice_is_its_first_and_one_that_is_skipped_moves_on() {
        let first = parse_local_time("25/10/2026 02:30:00", &berlin()).unwrap();
        assert_eq!(first, 1_792_888_200);
        assert_eq!(format_local_time(first + 3600, &berlin()).unwrap(), "25/10/2026 02:30:00");
        let skipped = parse_local_time("29/03/2026 02:30:00", &berlin()).unwrap();
        assert_eq!(format_local_time(skipped, &berlin()).unwrap(), "29/03/2026 03:30:00");
    }

    #[test]
    fn an_invalid_time_is_refused() {
        for text in [
            "",
            "now",
            "2026-11-20 11:41:00",
            "31/02/2026 00:00:00",
            "20/11/2026 24:00:00",
            "20/11/2026 11:41:00 UTC",
            "20/11/2026",
        ] {
            let error = parse_local_time(text, &TimeZone::UTC).unwrap_err();
            assert_eq!(error.to_string(), format!("'{text}' is not a time of the form dd/mm/YYYY HH:MM:SS"));
        }
        assert!(format_local_time(i64::MAX, &TimeZone::UTC).is_err());
    }

    proptest! {
        #[test]
        fn a_written_time_reads_back(seconds in -10_000_000_000_i64..100_000_000_000) {
            let text = format_local_time(seconds, &TimeZone::UTC).unwrap();
            prop_assert_eq!(parse_local_time(&text, &TimeZone::UTC), Ok(seconds));
            let text = format_local_time(seconds, &berlin()).unwrap();
            let read = parse_local_time(&text, &berlin()).unwrap();
            prop_assert!(read == seconds || read + 3600 == seconds);
        }

        #[test]
        fn no_text_ends_the_program(text in any::<String>()) {
            let _ = parse_local_time(&text, &berlin());
        }
    }
}
