//! Plans that open the breaker: a plan that would hit most users at once, or that grew tenfold. Announced actions that an
//! administrator has put off, as by the hours of a rule, may fall due together.

use std::collections::{BTreeMap, BTreeSet};

use genv_core::text::harmless;
use serde::{Deserialize, Serialize};

use crate::config::BreakerLimits;
use crate::plan::{History, Key, Plan, StepKind};

/// The largest number of ends that count for one user: a job of many processes is at most one mistake.
const MAX_ENDS_OF_USER: usize = 10;

/// A plan with at most this many ends is never a surprise by growth.
const FEW_ENDS: usize = 30;

/// A plan with so many times the ends of any other in [`REMEMBERED_DAYS`] is a surprise.
const SURPRISING_GROWTH: usize = 10;

/// The remembered days: today and yesterday.
const REMEMBERED_DAYS: i64 = 2;

/// The largest number of named users or rules.
const MAX_NAMED: usize = 5;

/// The actions that fall due in a cycle and were neither due before nor put off.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hits {
    /// The number of processes and devices, by the user who loses them.
    users: BTreeMap<String, usize>,
    rules: BTreeSet<String>,
}

/// Violations that fall due without surprise.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// Due in the last cycle, and waiting for their turn.
    due: BTreeSet<Key>,
    /// Due while the breaker was open. The administrator who closes the breaker accepts them until they end.
    accepted: BTreeSet<Key>,
}

/// The most that fell due in one cycle, by day since 1970.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct LargestPlans(BTreeMap<i64, usize>);

impl Hits {
    /// One end for each of these users.
    pub(crate) fn of_users(users: &BTreeSet<String>) -> Self {
        Self { users: users.iter().map(|user| (user.clone(), 1)).collect(), rules: BTreeSet::new() }
    }

    /// Users who lose something.
    pub(crate) fn users(&self) -> BTreeSet<String> {
        self.users.keys().cloned().collect()
    }

    fn ends(&self) -> usize {
        let ends = self.users.values().map(|ends| (*ends).min(MAX_ENDS_OF_USER));
        ends.sum()
    }

    /// Adds a step. A detached device hits the users of the ended processes, or its holder if no process ends.
    fn add(&mut self, step: &StepKind) -> bool {
        let mut one = |username: &String| *self.users.entry(username.clone()).or_default() += 1;
        match step {
            StepKind::Report | StepKind::Warn { .. } => return false,
            StepKind::Terminate(target) | StepKind::Kill(target) => one(&target.username),
            StepKind::Detach(target) if target.processes.is_empty() => one(&target.username),
            StepKind::Detach(target) => target.processes.iter().for_each(|it| one(&it.username)),
        }
        true
    }

    /// The users and rules as a text.
    fn named(&self) -> String {
        let users = listed(self.users.keys());
        match self.rules.len() {
            0 => users,
            1 => format!("{users}; by the rule {}", listed(self.rules.iter())),
            _ => format!("{users}; by the rules {}", listed(self.rules.iter())),
        }
    }

    /// Why the plan hits too many of the users who use or hold a device. Absent if it does not, or with fewer users than
    /// [`BreakerLimits::at_least_users`].
    pub(super) fn too_many_users(&self, limits: &BreakerLimits, all: &BTreeSet<String>) -> Option<String> {
        let hit = self.users();
        let (hit_users, all_users) = (hit.len(), all.union(&hit).count());
        if all_users < limits.at_least_users as usize {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "no machine has 2^52 users")]
        let share = hit_users as f64 / all_users as f64;
        (share > limits.share_of_users).then(|| {
            format!(
                "{hit_users} of {all_users} users would be hit at once, more than {} of them: {}",
                limits.share_of_users,
                self.named()
            )
        })
    }
}

impl Expected {
    /// The violations that were due in the last cycle of an earlier daemon, by its history.
    pub(crate) fn resumed(history: &History) -> Self {
        Self { due: BTreeSet::new(), accepted: history.due().cloned().collect() }
    }

    /// The unexpected due actions of a plan.
    pub(crate) fn hits(&self, plan: &Plan) -> Hits {
        let mut hits = Hits::default();
        for step in &plan.steps {
            let is_expected = self.due.contains(&step.key)
                || self.accepted.contains(&step.key)
                || plan.put_off.contains(&step.key)
                || step.takes_back();
            if !is_expected && hits.add(&step.kind) {
                hits.rules.insert(step.key.rule.clone());
            }
        }
        hits
    }

    /// Remembers the due steps of a plan. While the breaker is open, none of them is carried out, and the administrator
    /// who closes the breaker sees all of them.
    pub(crate) fn follow(&mut self, plan: &Plan, breaker_is_open: bool) {
        let deeds = plan.steps.iter().filter(|step| !matches!(step.kind, StepKind::Report | StepKind::Warn { .. }));
        self.due = deeds.map(|step| step.key.clone()).collect();
        let broken: BTreeSet<&Key> = plan.violations.iter().map(|it| &it.key).collect();
        self.accepted.retain(|key| broken.contains(key));
        if breaker_is_open {
            self.accepted.extend(self.due.iter().cloned());
        }
    }
}

impl LargestPlans {
    /// Why the number of due actions is far above the largest of today and yesterday. The number is then remembered, and no longer a
    /// surprise.
    pub(super) fn grown(&mut self, hits: &Hits, now_seconds: f64) -> Option<String> {
        let ends = hits.ends();
        #[expect(clippy::cast_possible_truncation, reason = "days since 1970")]
        let today = (now_seconds / 86_400.0).floor() as i64;
        // Days to come are those of a clock that was set back.
        self.0.retain(|day, _| *day > today - REMEMBERED_DAYS && *day <= today);
        let before = self.0.values().copied().max().unwrap_or_default();
        if ends > 0 {
            let most = self.0.entry(today).or_default();
            *most = ends.max(*most);
        }
        (ends > FEW_ENDS && ends >= before * SURPRISING_GROWTH).then(|| {
            format!(
                "{ends} ends fall due at once (of each user {MAX_ENDS_OF_USER} count at most), where no cycle of today \
                 and yesterday had more than {before}: {}",
                hits.named()
            )
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn listed<'a>(names: impl ExactSizeIterator<Item = &'a String>) -> String {
    let more = names.len().saturating_sub(MAX_NAMED);
    let named: Vec<String> = names.take(MAX_NAMED).map(|name| harmless(name)).collect();
    match more {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::plan::tests::lab::{attachment, due_violation, target};
    use crate::plan::{AttachmentTarget, Step, Subject};

    const LIMITS: BreakerLimits = BreakerLimits { signals_per_minute: 3, share_of_users: 0.5, at_least_users: 3 };

    fn names(count: usize) -> BTreeSet<String> {
        (0..count).map(|user| format!("user{user}")).collect()
    }

    fn step(kind: StepKind, pid: u32) -> Step {
        let subject = Subject::Process { hostname: "gpu01".to_owned(), pid, start_time_ticks: 1 };
        let key = Key { rule: "outside".to_owned(), subject };
        Step { key, kind }
    }

    fn plan(users: usize, processes: u32) -> Plan {
        let users = (0..users)
            .flat_map(|user| (0..processes).map(move |process| (format!("user{user}"), user as u32 * 1000 + process)));
        Plan {
            steps: users.map(|(user, pid)| step(StepKind::Terminate(target(&user, pid).into()), pid)).collect(),
            ..Plan::default()
        }
    }

    #[test]
    fn promise_08_a_share_of_the_users_is_too_many_from_a_number_on() {
        let hits = |hit, all| Hits::of_users(&names(hit)).too_many_users(&LIMITS, &names(all));
        assert_eq!(hits(2, 2), None);
        assert_eq!(hits(1, 3), None);
        assert!(hits(2, 3).is_some());
        assert_eq!(hits(3, 6), None);
        let why = hits(3, 5).unwrap();
        assert_eq!(why, "3 of 5 users would be hit at once, more than 0.5 of them: user0, user1, user2");
        assert!(hits(3, 0).is_some(), "those who are hit are users too");
    }

    #[test]
    fn victims_of_a_detach_are_those_whose_processes_end_with_it() {
        let processes = [target("bob", 1), target("carol", 2), target("carol", 3)];
        let mut detached = attachment("owner", "e1", 0, processes.map(Arc::new).into());
        let hits = |target: &AttachmentTarget| {
            let plan = Plan { steps: vec![step(StepKind::Detach(target.clone().into()), 1)], ..Plan::default() };
            Expected::default().hits(&plan)
        };
        let all = ["owner", "bob", "carol"].map(str::to_owned).into();
        let why = hits(&detached).too_many_users(&LIMITS, &all).unwrap();
        assert!(why.ends_with("bob, carol; by the rule outside"), "{why}");
        detached.processes.clear();
        let users = hits(&detached).users();
        assert_eq!(users, ["owner".to_owned()].into());
    }

    #[test]
    fn what_waits_for_its_turn_or_was_put_off_is_no_surprise() {
        let mut plan = plan(4, 1);
        let mut expected = Expected::default();
        assert_eq!(expected.hits(&plan).users(), names(4));
        expected.follow(&plan, false);
        assert_eq!(expected.hits(&plan).users(), names(0));
        expected.follow(&Plan::default(), false);
        plan.put_off = [plan.steps[0].key.clone(), plan.steps[1].key.clone()].into();
        let rest = ["user2", "user3"].map(str::to_owned).into();
        assert_eq!(expected.hits(&plan).users(), rest);
    }

    #[test]
    fn what_was_due_while_the_breaker_was_open_is_no_surprise_until_it_is_over() {
        let mut due = plan(3, 1);
        due.violations = due.steps.iter().map(|it| due_violation(it.key.clone(), "user")).collect();
        // The same violations; no step is due for a time.
        let waits = Plan { steps: Vec::new(), ..due.clone() };
        let mut expected = Expected::default();
        expected.follow(&due, true);
        expected.follow(&waits, false);
        assert_eq!(expected.hits(&due).users(), names(0));
        expected.follow(&Plan::default(), false);
        assert_eq!(expected.hits(&due).users(), names(3));
    }

    #[test]
    fn a_plan_that_grew_tenfold_is_a_surprise_once_and_a_large_job_is_none() {
        let hits = |users, processes| Expected::default().hits(&plan(users, processes));
        let mut plans = LargestPlans::default();
        assert_eq!(plans.grown(&hits(1, 500), 0.0), None, "one user's job");
        let mut plans = LargestPlans::default();
        assert_eq!(plans.grown(&hits(10, 1), 0.0), None, "few");
        assert_eq!(plans.grown(&hits(99, 1), 10.0), None, "ten times are 100");
        let mut plans = LargestPlans::default();
        assert_eq!(plans.grown(&hits(3, 1), 0.0), None);
        let why = plans.grown(&hits(31, 1), 90_000.0).unwrap();
        assert!(why.contains("31 ends") && why.contains("than 3:"), "{why}");
        assert!(why.contains("user0, user1, user10, user11, user12 and 26 more"));
        assert_eq!(plans.grown(&hits(31, 1), 90_010.0), None);
        assert!(plans.grown(&hits(31, 1), 90_000.0 + 3.0 * 86_400.0).is_some());
    }
}
