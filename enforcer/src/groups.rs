//! The Unix groups of users, from the name service switch, which may hang.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::config::{Accounts as _, Config, Limit, Limits, NameService, Rule, Waiver};

/// How long groups are believed: name services are slow, and groups hardly ever change.
const LIFETIME: Duration = Duration::from_secs(300);

/// How long it is believed that nobody tells: a directory service may just have been unreachable.
const SILENCE_LIFETIME: Duration = Duration::from_secs(30);

/// How long a cycle waits for the name service.
const PATIENCE: Duration = Duration::from_secs(1);

/// Users remembered at once; whoever appears as more than this is not a person.
const MOST_USERS: usize = 4096;

/// Groups by user, asked for on a thread of their own.
#[derive(Debug)]
pub(crate) struct Groups {
    /// What was told last, and until when nobody need be asked again.
    known: BTreeMap<String, (Option<BTreeSet<String>>, Instant)>,
    asked: BTreeSet<String>,
    questions: Sender<String>,
    answers: Receiver<(String, Option<BTreeSet<String>>)>,
}

/// What is known of the users of a cycle.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Known {
    /// Groups, by user.
    pub(crate) groups: BTreeMap<String, BTreeSet<String>>,
    /// Users whose groups nobody tells.
    pub(crate) unknown: BTreeSet<String>,
}

impl Groups {
    /// Starts the thread that asks.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start() -> io::Result<Self> {
        Self::asking(|user| NameService.groups_of(user))
    }

    pub(crate) fn asking(ask: impl Fn(&str) -> Option<BTreeSet<String>> + Send + 'static) -> io::Result<Self> {
        let (questions, asked) = channel::<String>();
        let (answered, answers) = channel();
        thread::Builder::new().name("groups".to_owned()).spawn(move || {
            while let Ok(user) = asked.recv() {
                let groups = ask(&user);
                if answered.send((user, groups)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { known: BTreeMap::new(), asked: BTreeSet::new(), questions, answers })
    }

    /// The groups of these users: those that are known, if need be from earlier, and what is told within a second.
    pub(crate) fn of(&mut self, users: &BTreeSet<String>) -> Known {
        let now = Instant::now();
        if self.known.len() > MOST_USERS {
            self.known.clear();
        }
        for user in users {
            let fresh = self.known.get(user).is_some_and(|(_, until)| now < *until);
            if !fresh && self.asked.len() < MOST_USERS && self.asked.insert(user.clone()) {
                // Should the thread have ended, nothing is told.
                let _ = self.questions.send(user.clone());
            }
        }
        let deadline = now + PATIENCE;
        while !self.asked.is_empty() {
            // An answer that is there is taken, however late.
            let missing = users.iter().any(|user| !self.known.contains_key(user));
            let patience = if missing { deadline.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
            match self.answers.recv_timeout(patience) {
                Ok((user, groups)) => {
                    self.asked.remove(&user);
                    self.learn(user, groups);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let mut found = Known::default();
        for user in users {
            match self.known.get(user) {
                Some((Some(groups), _)) => {
                    found.groups.insert(user.clone(), groups.clone());
                }
                Some((None, _)) | None => {
                    found.unknown.insert(user.clone());
                }
            }
        }
        found
    }

    /// Groups that were right are better than none.
    fn learn(&mut self, user: String, groups: Option<BTreeSet<String>>) {
        let lifetime = if groups.is_some() { LIFETIME } else { SILENCE_LIFETIME };
        let earlier = self.known.remove(&user).and_then(|(groups, _)| groups);
        let until = Instant::now() + lifetime;
        self.known.insert(user, (groups.or(earlier), until));
    }
}

/// Exempts users whose groups nobody tells from the rules that look at groups, for this cycle: a group's limit may be a
/// higher one, and an excepted group may be theirs.
#[must_use]
pub(crate) fn waiver_of_unknown(users: BTreeSet<String>, config: &Config, now_seconds: f64) -> Option<Waiver> {
    let rules = config.rules.iter().filter(|rule| looks_at_groups(rule));
    let rules: BTreeSet<String> = rules.map(|rule| rule.name.clone()).collect();
    // A waiver that names no rule would be one from all.
    let matters = !users.is_empty() && !rules.is_empty();
    matters.then(|| Waiver {
        users,
        rules,
        until_seconds: now_seconds + 1.0,
        reason: "the groups of this user are not known".to_owned(),
    })
}

/// Whether any rule looks at groups, so that somebody has to be asked.
#[must_use]
pub(crate) fn matter(config: &Config) -> bool {
    config.rules.iter().any(looks_at_groups)
}

fn looks_at_groups(rule: &Rule) -> bool {
    fn in_limit<T>(limit: &Limit<T>) -> bool {
        !limit.groups.is_empty()
    }
    fn in_limits<T>(limits: &Limits<T>) -> bool {
        in_limit(&limits.base) || limits.overrides.iter().any(|(_, limit)| in_limit(limit))
    }
    let selected = rule.selector.groups.is_some() || !rule.selector.except_groups.is_empty();
    selected || rule.kind.limits().is_some_and(in_limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn root_is_in_its_group_and_a_strangers_are_unknown() {
        let mut groups = Groups::start().unwrap();
        let found = groups.of(&users(&["root", "uid:3999999999"]));
        assert!(found.groups["root"].contains("root"), "{found:?}");
        assert_eq!(found.unknown, users(&["uid:3999999999"]));
    }

    #[test]
    fn a_name_service_that_hangs_leaves_users_unknown_and_the_others_known() {
        let (release, hang) = channel::<()>();
        let mut groups = Groups::asking(move |user| {
            if user == "bob" {
                let _ = hang.recv();
            }
            Some(users(&["staff"]))
        })
        .unwrap();
        let found = groups.of(&users(&["alice", "bob"]));
        assert_eq!(found.groups["alice"], users(&["staff"]));
        assert_eq!(found.unknown, users(&["bob"]));
        // It is not asked twice, and its late answer is taken.
        assert_eq!(groups.of(&users(&["bob"])).unknown, users(&["bob"]));
        drop(release);
        let found = groups.of(&users(&["bob"]));
        assert_eq!(found.groups["bob"], users(&["staff"]));
    }

    #[test]
    fn whose_groups_are_unknown_is_exempt_from_the_rules_that_look_at_groups_alone() {
        let config = |rules: &str| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("enforcer.yaml");
            std::fs::write(&path, format!("version: 1\nrules: [{rules}]\n")).unwrap();
            Config::load(&path).unwrap()
        };
        let mixed = config(
            "{kind: env-devices}, {kind: idle, match: {except_groups: [staff]}}, \
             {kind: max-age, limit: {default: 1d, groups: {staff: 7d}}}, \
             {kind: max-hosts-per-user, limit: 1}, {kind: env-memory, match: {groups: [students]}}",
        );
        let waiver = waiver_of_unknown(users(&["bob"]), &mixed, 5.0).unwrap();
        assert_eq!(waiver.users, users(&["bob"]));
        assert_eq!(waiver.rules, users(&["env-memory", "idle", "max-age"]));
        assert!(waiver.until_seconds > 5.0);
        assert_eq!(waiver_of_unknown(users(&[]), &mixed, 5.0), None);
        let without = config("{kind: env-devices}");
        assert_eq!(waiver_of_unknown(users(&["bob"]), &without, 5.0), None);
        assert!(matter(&mixed) && !matter(&without));
    }
}
