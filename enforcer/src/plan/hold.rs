//! Why a violation waits: pauses, maintenance, waivers and schedules.

use genv_core::text::end_moment;

use super::Input;
use super::facts::UserFacts;
use crate::config::{OutsideSchedule, Rule, Schedule, Waiver};

/// What may put off violations of a rule now.
pub(super) struct Hold<'h> {
    input: &'h Input<'h>,
    waivers: Vec<&'h Waiver>,
    /// The hours of the rule, if it is outside of them.
    outside: Option<&'h Schedule>,
}

impl<'h> Hold<'h> {
    pub(super) fn new(input: &'h Input<'_>, rule: &'h Rule) -> Self {
        let (now, zone) = (input.now_seconds, &input.config.timezone);
        let waivers = input.config.waivers.iter().chain(input.waivers);
        let waivers = waivers.filter(|waiver| {
            now < waiver.until_seconds && (waiver.rules.is_empty() || waiver.rules.contains(&rule.name))
        });
        let schedule = rule.schedule.as_ref();
        let outside = schedule.filter(|schedule| !schedule.holds_at(now, zone));
        Self { input, waivers: waivers.collect(), outside }
    }

    /// Why a violation by a user on a host, or over all hosts, waits; in one clause.
    pub(super) fn why(&self, user: &UserFacts<'_>, hostname: Option<&str>) -> Option<String> {
        let (input, zone) = (self.input, &self.input.config.timezone);
        if let Some(until) = input.paused_until_seconds.filter(|&until| input.now_seconds < until) {
            return Some(format!("paused until {}", end_moment(until, zone)));
        }
        if let Some(until) = hostname.and_then(|hostname| maintenance_until(input, hostname)) {
            let until = end_moment(until, zone);
            return Some(format!("its host is under maintenance until {until}"));
        }
        let waivers = self.waivers.iter().filter(|waiver| user.is_in(&waiver.users));
        if let Some(waiver) = waivers.max_by(|a, b| a.until_seconds.total_cmp(&b.until_seconds)) {
            let until = end_moment(waiver.until_seconds, zone);
            return Some(format!("waived until {until}: {}", waiver.reason.escape_debug()));
        }
        self.outside.map(|hours| format!("outside of its hours, {hours}"))
    }

    /// Whether what breaks the rule now begins anew when the hours of the rule begin.
    pub(super) fn resets(&self) -> bool {
        self.outside.is_some_and(|hours| hours.outside == OutsideSchedule::Reset)
    }
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
