//! Values that do nothing, or more than they seem to.

use std::time::Duration;

use genv_core::duration::format_duration;
use genv_core::yaml::Located;

use super::{Found, written_limits};
use crate::config::format::{ConfigFile, LimitEntry, RuleEntry, Span};
use crate::config::{Action, Config, Rule};

pub(super) fn find(file: &ConfigFile, config: &Config, now_seconds: f64, found: &mut Found<'_>) {
    for (entry, window) in file.maintenance.iter().zip(&config.maintenance) {
        if window.until_seconds <= now_seconds {
            found.at(entry.value.until.referenced, "this maintenance has passed: take it out");
        }
    }
    for (entry, waiver) in file.waivers.iter().zip(&config.waivers) {
        if waiver.until_seconds <= now_seconds {
            found.at(entry.value.until.referenced, "this waiver has passed: take it out, or extend it");
        }
    }
    if let Some(defaults) = &file.defaults.for_duration {
        shorter_than_a_cycle(defaults, config.interval, found);
    }
    undelivered(file, config, found);
    for (entry, rule) in file.rules.iter().zip(&config.rules) {
        times(&entry.value, rule, config.interval, found);
        default_for_left_out(file, &entry.value, rule, found);
        without_effect(&entry.value, rule, found);
        limits(&entry.value, rule, found);
    }
}

/// Rules that end something after warnings which may reach nobody, in a file that does not say so.
fn undelivered(file: &ConfigFile, config: &Config, found: &mut Found<'_>) {
    if file.defaults.undelivered.is_some() {
        return;
    }
    let rules = file.rules.iter().zip(&config.rules);
    let mut silent =
        rules.filter(|(entry, rule)| rule.action.acts() && !rule.warn.is_empty() && entry.value.undelivered.is_none());
    let Some((first, rule)) = silent.next() else {
        return;
    };
    let others = match silent.count() {
        0 => String::new(),
        1 => " and 1 other rule".to_owned(),
        others => format!(" and {others} other rules"),
    };
    let message = format!(
        "{}{others} will end something after warnings that may reach nobody: write 'undelivered: hold' under defaults, so \
         that nothing ends before its user has read a warning, or 'undelivered: act' to keep it so. A later version holds \
         where a file does not say",
        rule.name
    );
    found.at(first.value.kind.referenced, message);
}

fn shorter_than_a_cycle(span: &Located<Span>, interval: Duration, found: &mut Found<'_>) {
    if !span.value.0.is_zero() && span.value.0 < interval {
        let interval = format_duration(interval);
        let message = format!("this is shorter than the interval of {interval}, and so takes that long");
        found.at(span.referenced, message);
    }
}

fn times(entry: &RuleEntry, rule: &Rule, interval: Duration, found: &mut Found<'_>) {
    let warn = entry.warn.iter().flat_map(|warn| &warn.value);
    for span in entry.for_duration.iter().chain(warn) {
        shorter_than_a_cycle(span, interval, found);
    }
    if let Some((place, message)) = rule.kind.warning(entry, interval) {
        found.at(place, message);
    }
}

/// `defaults.for` beside a rule that measures a time of its own.
fn default_for_left_out(file: &ConfigFile, entry: &RuleEntry, rule: &Rule, found: &mut Found<'_>) {
    if let Some(default) = &file.defaults.for_duration
        && !default.value.0.is_zero()
        && entry.for_duration.is_none()
        && entry.kind.value.measures_time
    {
        let default = format_duration(default.value.0);
        let message = format!(
            "defaults.for ({default}) does not lengthen rule {}, which measures a time of its own: write for: {default} in \
             the rule to add that time, or for: 0s to keep the rule as it is",
            rule.name
        );
        found.at(entry.kind.referenced, message);
    }
}

/// Keys that the rule's action does not ask.
fn without_effect(entry: &RuleEntry, rule: &Rule, found: &mut Found<'_>) {
    let action = rule.action.word();
    let mut unasked = |key, place| {
        found.at(place, format!("{key} does nothing with action {action}: leave it out, or choose another action"));
    };
    if let Some(warn) = &entry.warn
        && !rule.action.acts()
        && !warn.value.is_empty()
    {
        unasked("warn", warn.referenced);
    }
    if let Some(grace) = &entry.grace
        && rule.action != Action::Kill
    {
        unasked("grace", grace.referenced);
    }
    if let Some(processes) = &entry.processes
        && rule.action != Action::Detach
    {
        unasked("processes", processes.referenced);
    }
}

fn limits(entry: &RuleEntry, rule: &Rule, found: &mut Found<'_>) {
    let mut nothing = |place| {
        found.at(place, "a limit of 0 forbids it altogether: having any breaks the rule");
    };
    for (written, limit) in written_limits(entry, rule) {
        match &written.value {
            LimitEntry::ForAll(_) if limit.default == Some(0) => nothing(written.referenced),
            LimitEntry::ForAll(_) => {}
            LimitEntry::Table(table) => {
                if let Some(default) = &table.default
                    && limit.default == Some(0)
                {
                    nothing(default.referenced);
                }
                for (written, limits) in [(&table.groups.0, &limit.groups), (&table.users.0, &limit.users)] {
                    let zeros = written.iter().filter(|(name, _)| limits.get(&name.value) == Some(&0));
                    zeros.for_each(|(_, amount)| nothing(amount.referenced));
                }
            }
        }
    }
}
