//! The Unix groups of users, from the name service switch, which may hang.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use genv_core::model::HostSnapshot;

use crate::config::{Accounts as _, Config, Limit, Limits, NameService, Rule, Waiver};

/// How long known groups are used: name services are slow, and groups hardly ever change.
const LIFETIME: Duration = Duration::from_secs(300);

/// How long groups stay unknown before the next lookup: a directory service may be unreachable for a moment.
const UNKNOWN_LIFETIME: Duration = Duration::from_secs(30);

/// How long a cycle waits for the name service.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The largest number of remembered users: no lab has more.
const MAX_USERS: usize = 4096;

/// Groups by user. A thread of its own looks them up.
#[derive(Debug)]
pub(crate) struct Groups {
    /// The last answer for each user, and the time of the next lookup.
    known: BTreeMap<String, (Option<BTreeSet<String>>, Instant)>,
    requested: BTreeSet<String>,
    requests: Sender<String>,
    answers: Receiver<(String, Option<BTreeSet<String>>)>,
}

/// The groups of the users of a cycle.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct UserGroups {
    /// Groups, by user.
    pub(crate) groups: BTreeMap<String, BTreeSet<String>>,
    /// Users whose groups are not known.
    pub(crate) unknown: BTreeSet<String>,
}

impl Groups {
    /// Starts the thread that looks groups up.
    pub(crate) fn start() -> io::Result<Self> {
        Self::with_lookup(|user| NameService.groups_of(user))
    }

    pub(crate) fn with_lookup(ask: impl Fn(&str) -> Option<BTreeSet<String>> + Send + 'static) -> io::Result<Self> {
        let (requests, requested) = channel::<String>();
        let (answered, answers) = channel();
        thread::Builder::new().name("groups".to_owned()).spawn(move || {
            while let Ok(user) = requested.recv() {
                let groups = ask(&user);
                if answered.send((user, groups)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { known: BTreeMap::new(), requested: BTreeSet::new(), requests, answers })
    }

    /// The groups of these users: known groups, also old ones, and groups that the name service returns within a second.
    pub(crate) fn of(&mut self, users: &BTreeSet<String>) -> UserGroups {
        let now = Instant::now();
        if self.known.len() > MAX_USERS {
            self.known.clear();
        }
        for user in users {
            let fresh = self.known.get(user).is_some_and(|(_, until)| now < *until);
            if !fresh && self.requested.len() < MAX_USERS && self.requested.insert(user.clone()) {
                // If the thread has ended, the groups stay unknown.
                let _ = self.requests.send(user.clone());
            }
        }
        let deadline = now + TIMEOUT;
        while !self.requested.is_empty() {
            // Late answers are taken too.
            let missing = users.iter().any(|user| !self.known.contains_key(user));
            let patience = if missing { deadline.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
            match self.answers.recv_timeout(patience) {
                Ok((user, groups)) => {
                    self.requested.remove(&user);
                    self.learn(user, groups);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let mut found = UserGroups::default();
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

    /// Stores an answer. Without an answer, the earlier groups stay.
    fn learn(&mut self, user: String, groups: Option<BTreeSet<String>>) {
        let lifetime = if groups.is_some() { LIFETIME } else { UNKNOWN_LIFETIME };
        let earlier = self.known.remove(&user).and_then(|(groups, _)| groups);
        let until = Instant::now() + lifetime;
        self.known.insert(user, (groups.or(earlier), until));
    }
}

/// Exempts users with unknown groups from the rules that depend on groups, for this cycle: one of their groups may have a
/// higher limit or be excepted.
pub(crate) fn waiver_of_unknown_groups(users: BTreeSet<String>, config: &Config, now_seconds: f64) -> Option<Waiver> {
    let rules = config.rules.iter().filter(|rule| looks_at_groups(rule));
    let rules: BTreeSet<String> = rules.map(|rule| rule.name.clone()).collect();
    // A waiver without rules would waive all rules.
    let matters = !users.is_empty() && !rules.is_empty();
    matters.then(|| Waiver {
        users,
        rules,
        until_seconds: now_seconds + 1.0,
        reason: "the groups of this user are not known".to_owned(),
    })
}

/// Whether any rule depends on groups.
pub(crate) fn are_needed(config: &Config) -> bool {
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

/// Users of environments and processes.
pub(crate) fn users(hosts: &[HostSnapshot]) -> BTreeSet<String> {
    let snapshots = hosts.iter().filter_map(|host| host.snapshot.as_deref());
    let users = snapshots.flat_map(|snapshot| {
        let environments = snapshot.environments.iter().map(|it| it.username.as_str());
        let processes = snapshot.processes.iter().filter_map(|it| snapshot.user_of(it));
        environments.chain(processes)
    });
    let users: BTreeSet<&str> = users.collect();
    users.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_name_service_that_hangs_leaves_users_unknown_and_the_others_known() {
        let (release, hang) = channel::<()>();
        let mut groups = Groups::with_lookup(move |user| {
            if user == "bob" {
                let _ = hang.recv();
            }
            Some(users(&["staff"]))
        })
        .unwrap();
        let found = groups.of(&users(&["alice", "bob"]));
        assert_eq!(found.groups["alice"], users(&["staff"]));
        assert_eq!(found.unknown, users(&["bob"]));
        // It is not requested twice, and its late answer is taken.
        assert_eq!(groups.of(&users(&["bob"])).unknown, users(&["bob"]));
        drop(release);
        let found = groups.of(&users(&["bob"]));
        assert_eq!(found.groups["bob"], users(&["staff"]));
    }

    #[test]
    fn a_user_with_unknown_groups_is_exempt_only_from_rules_that_depend_on_groups() {
        let config = |rules: &str| Config::parse("enforcer.yaml", &format!("version: 1\nrules: [{rules}]\n")).unwrap();
        let mixed = config(
            "{kind: env-devices}, {kind: idle, match: {except_groups: [staff]}}, \
             {kind: max-age, limit: {default: 1d, groups: {staff: 7d}}}, \
             {kind: max-hosts-per-user, limit: 1}, {kind: env-memory, match: {groups: [students]}}",
        );
        let waiver = waiver_of_unknown_groups(users(&["bob"]), &mixed, 5.0).unwrap();
        assert_eq!(waiver.users, users(&["bob"]));
        assert_eq!(waiver.rules, users(&["env-memory", "idle", "max-age"]));
        assert!(waiver.until_seconds > 5.0);
        assert_eq!(waiver_of_unknown_groups(users(&[]), &mixed, 5.0), None);
        let without = config("{kind: env-devices}");
        assert_eq!(waiver_of_unknown_groups(users(&["bob"]), &without, 5.0), None);
        assert!(are_needed(&mixed) && !are_needed(&without));
    }
}
