//! Why a violation waits: pauses, maintenance, waivers and schedules.

use jiff::Timestamp;
use jiff::civil::Weekday;
use jiff::tz::TimeZone;

use super::Input;
use super::facts::UserFacts;
use crate::config::{OutsideSchedule, Rule, Schedule};

/// Why a violation of `rule` by a user on a host, or over all hosts, waits now; in one clause.
pub(super) fn why(
    input: &Input<'_>,
    rule: &Rule,
    user: &UserFacts<'_>,
    hostname: Option<&str>,
) -> Option<String> {
    let now = input.now_seconds;
    let zone = &input.config.timezone;
    if let Some(until) = input.paused_until_seconds.filter(|&until| now < until) {
        return Some(format!("paused until {}", local_time(until, zone)));
    }
    if let Some(until) = hostname.and_then(|hostname| maintenance_until(input, hostname)) {
        let until = local_time(until, zone);
        return Some(format!("its host is under maintenance until {until}"));
    }
    let waivers = input.config.waivers.iter().chain(input.waivers);
    let waiver = waivers
        .filter(|waiver| {
            now < waiver.until_seconds
                && user.is_in(&waiver.users)
                && (waiver.rules.is_empty() || waiver.rules.contains(&rule.name))
        })
        .max_by(|a, b| a.until_seconds.total_cmp(&b.until_seconds));
    if let Some(waiver) = waiver {
        let until = local_time(waiver.until_seconds, zone);
        return Some(format!(
            "waived until {until}: {}",
            waiver.reason.escape_debug()
        ));
    }
    let schedule = rule.schedule.as_ref();
    let outside = schedule.filter(|schedule| !is_within(schedule, now, zone))?;
    Some(format!("outside of its hours, {}", hours(outside)))
}

/// Whether what breaks `rule` now begins anew when its hours begin.
pub(super) fn resets(rule: &Rule, now_seconds: f64, zone: &TimeZone) -> bool {
    let mut schedule = rule.schedule.iter();
    schedule.any(|schedule| {
        schedule.outside == OutsideSchedule::Reset && !is_within(schedule, now_seconds, zone)
    })
}

/// When the maintenance of a host ends, if it is under any.
pub(super) fn maintenance_until(input: &Input<'_>, hostname: &str) -> Option<f64> {
    let now = input.now_seconds;
    let windows = input.config.maintenance.iter();
    windows
        .filter(|window| window.from_seconds <= now && now < window.until_seconds)
        .filter(|window| window.hosts.0.contains(hostname))
        .map(|window| window.until_seconds)
        .max_by(f64::total_cmp)
}

/// Whether a time is within a schedule, by the clock on the wall: an hour that happens twice is within it twice, one
/// that is skipped is not.
pub(super) fn is_within(schedule: &Schedule, now_seconds: f64, zone: &TimeZone) -> bool {
    let Some(now) = timestamp(now_seconds) else {
        return false;
    };
    let now = now.to_zoned(zone.clone());
    let today = now.weekday();
    let on = |day: Weekday| schedule.days.contains(&day);
    let Some((from, until)) = schedule.between_minutes else {
        return on(today);
    };
    let minute = u32::from(now.hour().unsigned_abs()) * 60 + u32::from(now.minute().unsigned_abs());
    if from < until {
        return on(today) && (from..until).contains(&minute);
    }
    // "22:00-06:00" ends on the next day.
    on(today) && minute >= from || on(today.previous()) && minute < until
}

/// A schedule in words: `mon tue 08:00-20:00`.
fn hours(schedule: &Schedule) -> String {
    let name = |day: &Weekday| match day {
        Weekday::Monday => "mon",
        Weekday::Tuesday => "tue",
        Weekday::Wednesday => "wed",
        Weekday::Thursday => "thu",
        Weekday::Friday => "fri",
        Weekday::Saturday => "sat",
        Weekday::Sunday => "sun",
    };
    let mut words: Vec<String> = schedule.days.iter().map(|day| name(day).into()).collect();
    if let Some((from, until)) = schedule.between_minutes {
        let clock = |minutes: u32| format!("{:02}:{:02}", minutes / 60, minutes % 60);
        words.push(format!("{}-{}", clock(from), clock(until)));
    }
    words.join(" ")
}

fn timestamp(seconds: f64) -> Option<Timestamp> {
    // Times that no calendar has are refused by jiff; the cast saturates.
    Timestamp::from_second(seconds.floor() as i64).ok()
}

/// A time as people read it; what no calendar has is further than they plan.
fn local_time(seconds: f64, zone: &TimeZone) -> String {
    match timestamp(seconds) {
        Some(time) => {
            let time = time.to_zoned(zone.clone());
            time.strftime("%Y-%m-%d %H:%M").to_string()
        }
        None => "further notice".to_owned(),
    }
}
