//! Users with more records or violations than the enforcer lists: the excess is one violation of the user.

use std::collections::BTreeMap;

use crate::config::Action;
use crate::kinds::SharedFact;
use crate::plan::words::{self, thousands};
use crate::plan::{Frozen, Key, Plan, Stage, Step, StepKind, Subject, Violation};
use crate::present::WrittenFact;
use crate::records::TooManyRecords;

/// The rule that such a violation breaks. No rule of a configuration can have this name. It only reports.
pub(crate) const TOO_MANY: &str = "(too many)";

/// The largest number of listed violations of a user in the status, and of listed frozen ones.
const MAX_LISTED: usize = 100;

/// The largest number of planned actions against one user in a cycle. The rest is planned again.
const MAX_ACTIONS: usize = 200;

/// After this time without it, such a violation is new again.
const REMEMBERED_SECONDS: f64 = 3600.0;

/// The first and the last time of each such violation.
#[derive(Debug, Default)]
pub(super) struct TooMany(BTreeMap<Key, (f64, f64)>);

impl TooMany {
    /// Adds these violations to a plan. Returns those that are new.
    pub(super) fn add(&mut self, records: &[TooManyRecords], plan: &mut Plan, now_seconds: f64) -> Vec<Violation> {
        let mut users: BTreeMap<Key, (Option<u32>, Vec<String>)> = BTreeMap::new();
        for it in records {
            let found =
                format!("has {} records of environments, more than are looked at one by one", thousands(it.records));
            let key = key(&it.username, Some(&it.hostname));
            let (uid, all) = users.entry(key).or_default();
            *uid = it.uid;
            all.push(found);
        }
        let mut violations: BTreeMap<Key, (Option<u32>, usize)> = BTreeMap::new();
        for it in &plan.violations {
            let of_user = violations.entry(key(&it.username, it.hostname.as_deref()));
            let (uid, number) = of_user.or_default();
            (*uid, *number) = (it.uid, *number + 1);
        }
        for (key, (of, number)) in violations.into_iter().filter(|it| it.1.1 > MAX_LISTED) {
            let (uid, all) = users.entry(key).or_default();
            *uid = of;
            all.push(format!("breaks rules {} times, more than are listed", thousands(number)));
        }
        let mut frozen: BTreeMap<Key, usize> = BTreeMap::new();
        for it in &plan.frozen {
            let username = it.username.as_deref().unwrap_or_default();
            let of_user = frozen.entry(key(username, it.key.subject.hostname()));
            *of_user.or_default() += 1;
        }
        for (key, number) in frozen.into_iter().filter(|it| it.1 > MAX_LISTED) {
            users
                .entry(key)
                .or_default()
                .1
                .push(format!("has {} frozen violations, more than are listed", thousands(number)));
        }
        self.0.retain(|_, (_, seen_seconds)| now_seconds - *seen_seconds < REMEMBERED_SECONDS);
        let mut new = Vec::new();
        for (key, (uid, found)) in users {
            let since_seconds = self.0.get(&key).map(|(since_seconds, _)| *since_seconds);
            let violation = violation(&key, uid, found.join(", and "), since_seconds.unwrap_or(now_seconds));
            new.extend(since_seconds.is_none().then(|| violation.clone()));
            self.0.insert(key, (violation.since_seconds, now_seconds));
            plan.violations.push(violation);
        }
        new
    }
}

/// A user on a host, or over all.
fn key(username: &str, hostname: Option<&str>) -> Key {
    Key {
        rule: TOO_MANY.to_owned(),
        subject: Subject::User { username: username.to_owned(), hostname: hostname.map(str::to_owned) },
    }
}

fn violation(key: &Key, uid: Option<u32>, found: String, since_seconds: f64) -> Violation {
    let username = match &key.subject {
        Subject::User { username, .. } => username.clone(),
        _ => String::new(),
    };
    Violation {
        username,
        uid,
        hostname: key.subject.hostname().map(str::to_owned),
        key: key.clone(),
        action: Action::Report,
        since_seconds,
        stage: Stage::Acted { at_seconds: since_seconds, kill_seconds: None },
        fact: SharedFact::new(WrittenFact {
            found,
            allowed: format!("256 records of environments, and {MAX_LISTED} violations"),
            remedy:
                "end environments that are not needed: 'genv envs' lists them. If these records are not your own, ask \
                     your administrator"
                    .to_owned(),
        }),
        targets: Vec::new(),
        unconfirmed: false,
    }
}

/// The step that reports such a violation.
pub(super) fn report(violation: &Violation) -> Step {
    Step { key: violation.key.clone(), kind: StepKind::Report }
}

/// The number of listed entries, by user and host.
#[derive(Default)]
struct Listed<'p>(BTreeMap<(&'p str, Option<&'p str>), usize>);

impl<'p> Listed<'p> {
    /// Counts one more entry. Returns whether it is listed.
    fn lists(&mut self, username: &'p str, hostname: Option<&'p str>) -> bool {
        let number = self.0.entry((username, hostname)).or_default();
        *number += 1;
        *number <= MAX_LISTED
    }
}

/// The violations of a plan that the status lists: a limited number of each user, and the violations by this module's rule.
pub(super) fn listed(plan: &Plan) -> impl Iterator<Item = &Violation> {
    let mut listed = Listed::default();
    let violations = plan.violations.iter();
    violations.filter(move |it| listed.lists(&it.username, it.hostname.as_deref()) || it.key.rule == TOO_MANY)
}

/// The frozen violations of a plan that the status lists: a limited number of each user.
pub(super) fn listed_frozen(plan: &Plan) -> impl Iterator<Item = &Frozen> {
    let mut listed = Listed::default();
    let frozen = plan.frozen.iter();
    frozen.filter(move |it| {
        let username = it.username.as_deref().unwrap_or_default();
        listed.lists(username, it.key.subject.hostname())
    })
}

/// Limits the actions against each user in a plan to the number that a cycle can need.
pub(super) fn limit_actions(plan: &mut Plan) {
    let users: BTreeMap<&Key, &str> = plan.violations.iter().map(|it| (&it.key, it.username.as_str())).collect();
    let mut actions: BTreeMap<&str, usize> = BTreeMap::new();
    plan.steps.retain(|step| {
        if words::deed(&step.kind).is_none() {
            return true;
        }
        let Some(username) = users.get(&step.key) else {
            return true;
        };
        let of_user = actions.entry(username).or_default();
        *of_user += 1;
        *of_user <= MAX_ACTIONS
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::lab::target;

    fn process(pid: u32, username: &str) -> Violation {
        let subject = Subject::Process { hostname: "gpu01".to_owned(), pid, start_time_ticks: 1 };
        let rule = "outside".to_owned();
        Violation {
            hostname: Some("gpu01".to_owned()),
            username: username.to_owned(),
            ..violation(&Key { rule, subject }, Some(7), String::new(), 1.0)
        }
    }

    fn plan(alices: u32) -> Plan {
        let mut plan = Plan::default();
        for pid in 0..=alices {
            let username = if pid == alices { "bob" } else { "alice" };
            let violation = process(pid, username);
            let kind = StepKind::Terminate(target(username, pid).into());
            plan.steps.push(Step { key: violation.key.clone(), kind });
            plan.violations.push(violation);
        }
        plan
    }

    #[test]
    fn the_excess_is_one_violation_since_its_first_cycle() {
        let mut too_many = TooMany::default();
        let records = [TooManyRecords {
            hostname: "gpu01".to_owned(),
            username: "alice".to_owned(),
            uid: Some(7),
            records: 40_000,
        }];
        for (now, is_new) in [(10.0, 1), (20.0, 0)] {
            let mut plan = plan(3000);
            assert_eq!(too_many.add(&records, &mut plan, now).len(), is_new);
            let last = plan.violations.last().unwrap();
            assert_eq!((last.key.rule.as_str(), last.since_seconds), (TOO_MANY, 10.0));
            assert!(last.found().contains("40,000 records"), "{}", last.found());
            assert!(last.found().contains("3,000 times"), "{}", last.found());
            assert_eq!(listed(&plan).count(), MAX_LISTED + 2, "bob's, and that there are more");
        }
        let mut few = plan(3);
        assert_eq!(too_many.add(&[], &mut few, 30.0), []);
        assert_eq!(few.violations.len(), 4);
    }

    #[test]
    fn frozen_violations_are_listed_up_to_a_limit_per_user() {
        let mut plan = plan(3000);
        let violations = std::mem::take(&mut plan.violations);
        let frozen = violations.into_iter().map(|it| Frozen {
            key: it.key,
            username: Some(it.username),
            since_seconds: 1.0,
            unknown_since_seconds: 2.0,
            why: "no fresh facts from gpu01".to_owned(),
        });
        plan.frozen = frozen.collect();
        assert_eq!(TooMany::default().add(&[], &mut plan, 10.0).len(), 1);
        let reported = &plan.violations[0];
        assert_eq!(reported.username, "alice");
        assert!(reported.found().contains("3,000 frozen"), "{}", reported.found());
        assert_eq!(listed_frozen(&plan).count(), MAX_LISTED + 1, "and bob's");
    }

    #[test]
    fn a_cycle_limits_the_actions_against_each_user() {
        let mut plan = plan(3000);
        limit_actions(&mut plan);
        assert_eq!(plan.steps.len(), MAX_ACTIONS + 1);
    }
}
