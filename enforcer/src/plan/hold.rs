//! Why a violation waits: pauses, maintenance, waivers and schedules.

use genv_core::text::end_moment;
use jiff::tz::TimeZone;

use super::Input;
use super::facts::UserFacts;
use crate::config::{OutsideSchedule, Rule};

/// Why a violation of `rule` by a user on a host, or over all hosts, waits now; in one clause.
pub(super) fn why(input: &Input<'_>, rule: &Rule, user: &UserFacts<'_>, hostname: Option<&str>) -> Option<String> {
    let now = input.now_seconds;
    let zone = &input.config.timezone;
    if let Some(until) = input.paused_until_seconds.filter(|&until| now < until) {
        return Some(format!("paused until {}", end_moment(until, zone)));
    }
    if let Some(until) = hostname.and_then(|hostname| maintenance_until(input, hostname)) {
        let until = end_moment(until, zone);
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
        let until = end_moment(waiver.until_seconds, zone);
        return Some(format!("waived until {until}: {}", waiver.reason.escape_debug()));
    }
    let schedule = rule.schedule.as_ref();
    let outside = schedule.filter(|schedule| !schedule.holds_at(now, zone))?;
    Some(format!("outside of its hours, {outside}"))
}

/// Whether what breaks `rule` now begins anew when its hours begin.
pub(super) fn resets(rule: &Rule, now_seconds: f64, zone: &TimeZone) -> bool {
    let mut schedule = rule.schedule.iter();
    schedule.any(|schedule| schedule.outside == OutsideSchedule::Reset && !schedule.holds_at(now_seconds, zone))
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
