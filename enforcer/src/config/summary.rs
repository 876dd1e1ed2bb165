//! The rules of a configuration, in words.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use genv_core::duration::format_duration;

use super::{
    Action, Config, DetachedProcesses, HostSet, Limit, Limits, Mode, OutsideSchedule, Rule, Schedule, Selector,
    Undelivered, zone,
};
use crate::kinds::Quantity;

/// A configuration as it will work, for people: one paragraph for all, and one for each rule.
#[derive(Debug)]
pub struct Summary<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The Unix time at which it is shown, for the offset of its time zone.
    pub now_seconds: f64,
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, now_seconds } = *self;
        let mode = match config.mode {
            Mode::DryRun => "dry-run: nothing is done and nobody is told, what would be is logged",
            Mode::Enforce => "enforce",
        };
        writeln!(f, "mode       {mode}")?;
        match config.interval {
            Duration::ZERO => writeln!(f, "interval   one cycle")?,
            interval => writeln!(f, "interval   {}", format_duration(interval))?,
        }
        writeln!(f, "timezone   {}", zone::described(&config.timezone, now_seconds))?;
        let mut never = vec!["uid 0 outside containers".to_owned()];
        never.extend(config.never.users.iter().cloned());
        never.extend(config.never.executables.iter().map(|path| path.display().to_string()));
        writeln!(f, "never      {}", never.join(", "))?;
        let breaker = &config.breaker;
        writeln!(
            f,
            "breaker    at most {} signals a minute, and {} % of the users at once where there are {} or more: what is put off \
             by hours, a pause, maintenance or waivers ends at this pace",
            breaker.signals_per_minute,
            // Whole percents are what people write, and 0.07 × 100 is not quite 7.
            (breaker.share_of_users * 1000.0).round() / 10.0,
            breaker.at_least_users
        )?;
        for rule in &config.rules {
            write!(f, "\n{}", Described(rule))?;
        }
        Ok(())
    }
}

struct Described<'a>(&'a Rule);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.0;
        writeln!(f, "rule {}", rule.name)?;
        writeln!(f, "  finds    {}", rule.kind.summary())?;
        let limits = rule.kind.limits().filter(|it| **it != Limits::none());
        if let Some((limits, quantity)) = limits.zip(rule.kind.definition().limit) {
            writeln!(f, "  limit    {}", written(quantity, &limits.base))?;
            for (hosts, own) in &limits.overrides {
                writeln!(f, "           {}: {}", on_hosts(hosts), written(quantity, own))?;
            }
        }
        if rule.selector != Selector::default() {
            writeln!(f, "  for      {}", selected(&rule.selector))?;
        }
        if let Some(schedule) = &rule.schedule {
            writeln!(f, "  when     {}", scheduled(schedule))?;
        }
        writeln!(f, "  then     {}", steps(rule))?;
        let remembered = match rule.remember {
            Duration::ZERO => "nothing".to_owned(),
            remember => format!("progress for {}", format_duration(remember)),
        };
        writeln!(f, "  remember {remembered} after a violation is over")
    }
}

fn written(quantity: Quantity, limit: &Limit<u64>) -> String {
    let amount = |value: u64| quantity.written(value);
    let mut parts = Vec::new();
    for (user, value) in &limit.users {
        parts.push(format!("{} for {user}", amount(*value)));
    }
    for (group, value) in &limit.groups {
        parts.push(format!("{} for members of {group}", amount(*value)));
    }
    match limit.default {
        Some(value) if parts.is_empty() => parts.push(amount(value)),
        Some(value) => parts.push(format!("{} for all others", amount(value))),
        None => {}
    }
    parts.join(", ")
}

/// How many names are listed before the rest is only counted.
const NAMED: usize = 4;

fn listed<T: ToString>(names: &BTreeSet<T>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let mut shown: Vec<_> = names.iter().take(NAMED + usize::from(more == 1)).map(T::to_string).collect();
    if more > 1 {
        shown.push(format!("{more} more"));
    }
    shown.join(", ")
}

fn on_hosts(HostSet(hosts): &HostSet) -> String {
    format!("on {}", listed(hosts))
}

fn selected(selector: &Selector) -> String {
    let Selector { users, groups, hosts, devices, except_users, except_groups, except_hosts, except_devices } =
        selector;
    if users.as_ref().is_some_and(|users| users.is_subset(except_users)) {
        return "nobody: whom it names is excepted".to_owned();
    }
    let parts = [
        users.as_ref().map(listed),
        groups.as_ref().map(|groups| format!("members of {}", listed(groups))),
        hosts.as_ref().map(on_hosts),
        devices.as_ref().map(|devices| format!("devices {}", listed(devices))),
        (!except_users.is_empty()).then(|| format!("not {}", listed(except_users))),
        (!except_groups.is_empty()).then(|| format!("not members of {}", listed(except_groups))),
        (!except_hosts.0.is_empty()).then(|| format!("not {}", on_hosts(except_hosts))),
        (!except_devices.is_empty()).then(|| format!("not devices {}", listed(except_devices))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn scheduled(schedule: &Schedule) -> String {
    let mut text = schedule.to_string();
    if schedule.between_minutes.is_some_and(|(begin, end)| end < begin) {
        text += " of the next day";
    }
    text + match schedule.outside {
        OutsideSchedule::Pause => {
            "; at other times violations wait, and those that are due when it begins are spread over cycles"
        }
        OutsideSchedule::Reset => "; at other times violations are forgotten",
    }
}

fn steps(rule: &Rule) -> String {
    let mut text = match rule.for_duration {
        Duration::ZERO => "at once".to_owned(),
        duration => format!("after {}", format_duration(duration)),
    };
    if !rule.warn.is_empty() {
        let spans: Vec<_> = rule.warn.iter().map(|span| format_duration(*span)).collect();
        let spans = match spans.split_last() {
            Some((last, [])) => format!("a warning {last}"),
            Some((last, others)) => format!("warnings {} and {last}", others.join(", ")),
            None => String::new(),
        };
        text += &format!(": {spans} before the end");
        text += match rule.undelivered {
            Undelivered::Hold => ", each counted from its delivery, then",
            Undelivered::Act => ", then",
        };
    }
    let takes_devices = rule.kind.definition().takes_devices();
    text += &match (rule.action, rule.processes) {
        (Action::Report, _) => " report".to_owned(),
        (Action::Warn, _) => " tell the user".to_owned(),
        (Action::Detach, DetachedProcesses::Keep) => " detach".to_owned(),
        (Action::Terminate, _) if !takes_devices => " terminate".to_owned(),
        (Action::Detach | Action::Terminate, _) => {
            " detach, and terminate the environment's processes there that work on no other device".to_owned()
        }
        (Action::Kill, _) => {
            let detach = if takes_devices { ", and detach" } else { "" };
            format!(" terminate, kill what is left {} later{detach}", format_duration(rule.grace))
        }
    };
    text
}
