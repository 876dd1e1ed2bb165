//! What a cycle publishes in `status.json`.

use genv_core::enforcement::{ENFORCEMENT_FILE, ENFORCEMENT_VERSION, Enforcement, EnforcementConfig, HeldViolation};

use super::{Cycle, too_many};
use crate::config::{Config, Mode, zone};
use crate::control::Control;
use crate::directory::{Audience, FileError};
use crate::metrics::mode_word;
use crate::plan::{Plan, Stage, Violation};
use crate::reload::InForce;
use crate::status;

impl Cycle {
    pub(super) fn status(
        &self,
        plan: &Plan,
        rules: &InForce,
        control: &Control,
        mode: Mode,
        now_seconds: f64,
    ) -> Enforcement {
        let config = &rules.config;
        let waivers = config.waivers.iter();
        let waivers = waivers.filter(|it| it.until_seconds > now_seconds);
        Enforcement {
            version: ENFORCEMENT_VERSION,
            pid: std::process::id(),
            started_timestamp_seconds: self.started_seconds,
            updated_timestamp_seconds: now_seconds,
            interval_seconds: config.interval.as_secs_f64(),
            mode: mode_word(mode).to_owned(),
            config: EnforcementConfig {
                source: rules.source.clone(),
                hash: config.hash.clone(),
                loaded_timestamp_seconds: rules.loaded_seconds,
                error: rules.error.clone(),
                rules: config.rules.iter().map(|rule| rule.name.clone()).collect(),
                timezone: Some(zone::described(&config.timezone, now_seconds)),
            },
            missing_hosts: plan.missing_hosts.iter().cloned().collect(),
            unknown_processes: plan.unknown_processes.clone(),
            unknown_processes_by_user: plan.unknown_processes_by_user.clone(),
            not_judged: status::not_judged(plan),
            left_behind: plan.left_behind.iter().map(status::left_behind).collect(),
            frozen: too_many::listed_frozen(plan).map(status::frozen).collect(),
            violations: too_many::listed(plan).map(|it| self.held(it, config)).collect(),
            paused_until_seconds: control.paused_until_seconds,
            waivers: waivers.chain(&control.waivers()).map(status::waiver).collect(),
            ..Enforcement::default()
        }
    }

    /// A violation as it is published, with the reasons for a refused step and for an undelivered warning.
    fn held(&self, violation: &Violation, config: &Config) -> HeldViolation {
        let mut held = status::held(violation);
        let mut rules = config.rules.iter();
        let rule = rules.find(|rule| rule.name == violation.key.rule);
        held.undelivered = rule.and_then(|rule| self.history.undelivered(&violation.key, rule));
        if violation.stage == Stage::Due {
            held.why = self.logged.refusal(&violation.key).map(str::to_owned);
        }
        held
    }

    pub(super) fn publish(&mut self, status: &Enforcement) -> Result<(), FileError> {
        let content = serde_json::to_vec(status).unwrap_or_default();
        self.directory.replace(ENFORCEMENT_FILE, &content, Audience::Everybody)?;
        // A prompt that finds a mark reads the status.
        self.unread.mark(&self.directory, status)
    }
}
