//! When a rule acts.

use std::fmt;

use jiff::Timestamp;
use jiff::civil::Weekday;
use jiff::tz::TimeZone;

/// When a rule acts; outside of it violations wait where they are. Displays as it is written: `mon tue 08:00-20:00`.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Days on which a span begins; a span over midnight belongs to the day on which it began.
    pub days: Vec<Weekday>,
    /// Minutes since midnight at which it begins, 0–1439, and ends, 1–1440. An end before the begin is the next day's.
    pub between_minutes: Option<(u32, u32)>,
    /// What happens to violations outside of it.
    pub outside: OutsideSchedule,
}

/// What happens to violations outside a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutsideSchedule {
    /// They wait: time does not count, nothing is forgotten.
    #[default]
    Pause,
    /// They begin anew.
    Reset,
}

impl Schedule {
    /// Whether a Unix time is within it, by the clock on the wall: an hour that happens twice is within it twice, one
    /// that is skipped is not. A time that no calendar has is within none.
    pub fn holds_at(&self, now_seconds: f64, zone: &TimeZone) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
        let now = Timestamp::from_second(now_seconds.floor() as i64);
        let Ok(now) = now else {
            return false;
        };
        let now = now.to_zoned(zone.clone());
        let today = now.weekday();
        let on = |day: Weekday| self.days.contains(&day);
        let Some((from, until)) = self.between_minutes else {
            return on(today);
        };
        let minute = u32::from(now.hour().unsigned_abs()) * 60 + u32::from(now.minute().unsigned_abs());
        if from < until {
            return on(today) && (from..until).contains(&minute);
        }
        // "22:00-06:00" ends on the next day.
        on(today) && minute >= from || on(today.previous()) && minute < until
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
        let name = |day: &Weekday| NAMES[usize::from(day.to_monday_zero_offset().unsigned_abs())];
        let days: Vec<_> = self.days.iter().map(name).collect();
        f.write_str(&days.join(" "))?;
        if let Some((from, until)) = self.between_minutes {
            let (from_hour, from_minute) = (from / 60, from % 60);
            let (until_hour, until_minute) = (until / 60, until % 60);
            write!(f, " {from_hour:02}:{from_minute:02}-{until_hour:02}:{until_minute:02}")?;
        }
        Ok(())
    }
}
