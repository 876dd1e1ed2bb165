//! What one part of a configuration takes back of another.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Found;
use crate::config::format::{ConfigFile, RuleEntry};
use crate::config::{Action, Config, DetachedProcesses, HostSet, Limit, Rule, Selector};

pub(super) fn find(file: &ConfigFile, config: &Config, found: &mut Found<'_>) {
    if config.rules.is_empty() {
        found.at(file.version.referenced, "there are no rules: nothing will be found");
    }
    for (position, (entry, rule)) in file.rules.iter().zip(&config.rules).enumerate() {
        let entry = &entry.value;
        looks_at_nothing(entry, rule, found);
        never_touched(entry, rule, config, found);
        overrides_nothing(entry, rule, found);
        ends_what_it_keeps(entry, rule, config, found);
        let mut others = config.rules.iter().enumerate();
        if let Some((_, other)) = others.find(|(other, by)| overrules(*other, by, position, rule)) {
            let place = entry.name.as_ref().map_or(entry.kind.referenced, |name| name.referenced);
            let message = format!(
                "whom rule {0} looks at, rule {1} looks at too, and allows no more: {0} changes nothing. If it is to be \
                 an exception, except them in {1}",
                rule.name, other.name
            );
            found.at(place, message);
        }
    }
}

fn looks_at_nothing(entry: &RuleEntry, rule: &Rule, found: &mut Found<'_>) {
    let Some(place) = entry.selector.as_ref().map(|selector| selector.referenced) else {
        return;
    };
    let Selector { users, groups, hosts, devices, except_users, except_groups, except_hosts, except_devices } =
        &rule.selector;
    let excepted = users.as_ref().is_some_and(|users| users.is_subset(except_users))
        || groups.as_ref().is_some_and(|groups| groups.is_subset(except_groups))
        || hosts.as_ref().is_some_and(|hosts| hosts.0.is_subset(&except_hosts.0))
        || devices.as_ref().is_some_and(|devices| devices.is_subset(except_devices));
    if excepted {
        found.at(place, "all that this names is excepted: the rule looks at nothing");
    }
}

fn never_touched(entry: &RuleEntry, rule: &Rule, config: &Config, found: &mut Found<'_>) {
    let users = entry.selector.iter().flat_map(|selector| &selector.value.users);
    for user in users.flat_map(|users| &users.value) {
        if rule.action.acts() && config.never.users.contains(&user.value) {
            let message = format!("never names {0} too, and so no rule looks at {0}", user.value);
            found.at(user.referenced, message);
        }
    }
}

/// Finds a rule that takes a device and keeps its processes, beside a rule that ends those processes for using that
/// device.
fn ends_what_it_keeps(entry: &RuleEntry, rule: &Rule, config: &Config, found: &mut Found<'_>) {
    let keeps = rule.action == Action::Detach && rule.processes == DetachedProcesses::Keep;
    let ends = |other: &&Rule| other.kind.forbids_unattached_use() && other.action.acts();
    let other = config.rules.iter().filter(ends);
    let mut meets = other.filter(|it| may_meet(&it.selector, &rule.selector));
    if let Some(other) = meets.next().filter(|_| keeps) {
        let place = entry.processes.as_ref();
        let message = format!(
            "rule {0} keeps processes on the device that it takes, and rule {1} ends those of them that work on no other \
             device of their environment. Without 'processes: keep', {0} ends them itself",
            rule.name, other.name
        );
        found.at(place.map_or(entry.kind.referenced, |it| it.referenced), message);
    }
}

/// Whether two rules may apply to the same user on the same host, as far as they name users and hosts.
fn may_meet(a: &Selector, b: &Selector) -> bool {
    fn overlap<T: Ord>(a: Option<&BTreeSet<T>>, b: Option<&BTreeSet<T>>) -> bool {
        a.zip(b).is_none_or(|(a, b)| !a.is_disjoint(b))
    }
    let hosts = |selector: &Selector| selector.hosts.clone().map(|hosts| hosts.0);
    overlap(a.users.as_ref(), b.users.as_ref())
        && overlap(hosts(a).as_ref(), hosts(b).as_ref())
        && overlap(a.devices.as_ref(), b.devices.as_ref())
}

/// Overrides for hosts that the rule does not look at, or that an earlier override took.
fn overrides_nothing(entry: &RuleEntry, rule: &Rule, found: &mut Found<'_>) {
    let Some(limits) = rule.kind.limits() else {
        return;
    };
    let places = entry.overrides.iter().flat_map(|overrides| &overrides.value);
    let mut taken = BTreeSet::new();
    for (entry, (HostSet(hosts), _)) in places.zip(&limits.overrides) {
        let seen = |host: &&String| match &rule.selector.hosts {
            Some(HostSet(only)) => only.contains(*host),
            None => true,
        };
        let left = |host: &&String| !rule.selector.except_hosts.0.contains(*host) && !taken.contains(*host);
        if !hosts.iter().filter(seen).any(|host| left(&host)) {
            let message =
                "the rule does not look at these hosts, or an earlier override has them: this one does nothing";
            found.at(entry.referenced, message);
        }
        taken.extend(hosts);
    }
}

/// Whether `by` does to everybody whom `rule` looks at at least what `rule` does, at the same limit or a lower one.
fn overrules(by_position: usize, by: &Rule, position: usize, rule: &Rule) -> bool {
    let twins = covers(&by.selector, &rule.selector) && covers(&rule.selector, &by.selector);
    // Of two that do the same, the later is superfluous.
    let comes_first = by_position < position || !twins || !allows_no_more(rule, by) || rule.action < by.action;
    by_position != position
        && comes_first
        && by.action >= rule.action
        && time_to_action(by) <= time_to_action(rule)
        && (by.schedule.is_none() || by.schedule == rule.schedule)
        && covers(&by.selector, &rule.selector)
        && allows_no_more(by, rule)
}

/// From the first sight of a violation to the end.
fn time_to_action(rule: &Rule) -> Duration {
    rule.for_duration + rule.warn.first().copied().unwrap_or_default()
}

/// Whether `all` looks at everything that `some` looks at.
fn covers(all: &Selector, some: &Selector) -> bool {
    fn within<T: Ord>(all: Option<&BTreeSet<T>>, some: Option<&BTreeSet<T>>) -> bool {
        match (all, some) {
            (None, _) => true,
            (Some(all), Some(some)) => some.is_subset(all),
            (Some(_), None) => false,
        }
    }
    let hosts = |selector: &Selector| selector.hosts.clone().map(|hosts| hosts.0);
    within(all.users.as_ref(), some.users.as_ref())
        && within(all.groups.as_ref(), some.groups.as_ref())
        && within(hosts(all).as_ref(), hosts(some).as_ref())
        && within(all.devices.as_ref(), some.devices.as_ref())
        && all.except_users.is_subset(&some.except_users)
        && all.except_groups.is_subset(&some.except_groups)
        && all.except_hosts.0.is_subset(&some.except_hosts.0)
        && all.except_devices.is_subset(&some.except_devices)
}

/// Whether what breaks `rule` breaks `by` too, as far as can be told without knowing who is in which group.
fn allows_no_more(by: &Rule, rule: &Rule) -> bool {
    if !by.kind.counts_as(&*rule.kind) {
        return false;
    }
    let (Some(by_limits), Some(limits)) = (by.kind.limits(), rule.kind.limits()) else {
        return true;
    };
    if !by_limits.overrides.is_empty() || !limits.overrides.is_empty() {
        return by_limits == limits;
    }
    match (limit_of(&by_limits.base, &rule.selector), limits.base.lowest()) {
        (Some(by), Some(own)) => by <= own,
        _ => false,
    }
}

/// The highest limit that those whom a selector names may have; nothing if some may have none.
fn limit_of(limit: &Limit<u64>, selector: &Selector) -> Option<u64> {
    if let Some(users) = &selector.users
        && limit.groups.is_empty()
    {
        let limits = users.iter().map(|user| limit.users.get(user).copied().or(limit.default));
        return limits.collect::<Option<BTreeSet<u64>>>()?.pop_last();
    }
    let all = limit.groups.values().chain(limit.users.values()).copied();
    all.chain(Some(limit.default?)).max()
}
