//! How far a user is with a rule on a device, for a time after a violation is over: a user who leaves and returns,
//! attaches again or starts another process continues where the violation was.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{History, ViolationHistory};
use crate::config::Rule;
use crate::plan::facts::Facts;
use crate::plan::{Key, Subject};

/// The most places whose progress is remembered: a user who may write genv's state may invent any number of users.
const MOST_REMEMBERED: usize = 10_000;

/// Whose progress it is, and where. Progress of one user is never another's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::plan) struct Place {
    /// Of a violation that exists only by attachments that nothing shows to be their user's doing: as the first field it has
    /// these behind all others.
    #[serde(default)]
    unconfirmed: bool,
    rule: String,
    username: String,
    /// Absent where all hosts count together.
    hostname: Option<String>,
    /// Absent where a rule counts over devices.
    gpu: Option<u32>,
}

/// Progress of a violation that is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::plan) struct Remembered {
    progress: ViolationHistory,
    /// When it was last seen to be over, Unix time.
    over_seconds: f64,
}

impl History {
    /// How far a violation of a user is: what is `known` of it, or of one that is over, whichever is farther.
    pub(in crate::plan) fn progress<'h>(
        &self,
        facts: &Facts<'_>,
        rule: &Rule,
        key: &Key,
        (username, unconfirmed): (&str, bool),
        known: Option<Cow<'h, ViolationHistory>>,
        now_seconds: f64,
    ) -> Option<Cow<'h, ViolationHistory>> {
        let is_new = known.is_none() && !rule.remember.is_zero();
        if self.remembered.is_empty() && !is_new || !self.knows(rule) {
            return known;
        }
        let places = places(facts, rule, &key.subject, username, unconfirmed);
        let replaced = is_new.then(|| self.replaced(facts, rule, &places));
        let remembered = places
            .iter()
            .filter_map(|place| self.remembered.get(place))
            .filter(|it| it.lasts(rule, now_seconds))
            .map(|it| &it.progress)
            .chain(replaced.iter().flatten())
            .max_by(|a, b| a.cmp_progress(b));
        match (known, remembered) {
            (Some(known), Some(other)) if other.cmp_progress(&known).is_gt() => {
                Some(Cow::Owned(known.with_progress_of(other)))
            }
            (None, Some(other)) => {
                let begun = ViolationHistory::begin(now_seconds);
                Some(Cow::Owned(begun.with_progress_of(other)))
            }
            (known, _) => known,
        }
    }

    /// Progress of a violation that the last look showed at one of these places and of which this look shows that it is
    /// over: where a new one is there now, the time between the looks counts.
    fn replaced(&self, facts: &Facts<'_>, rule: &Rule, places: &[Place]) -> Option<ViolationHistory> {
        let was_at = |place: &Place, key: &Key, known: &ViolationHistory| {
            let gpu = match &key.subject {
                Subject::Process { .. } => place.gpu.filter(|gpu| known.about.gpus.contains(gpu)),
                subject => device(subject),
            };
            known.unconfirmed == place.unconfirmed
                && known.about.username.as_ref() == Some(&place.username)
                && key.subject.hostname() == place.hostname.as_deref()
                && gpu == place.gpu
        };
        let replaced = self.entries(rule).filter(|(key, known)| {
            places.iter().any(|place| was_at(place, key, known)) && is_gone(facts, &key.subject)
        });
        let farthest = replaced.max_by(|a, b| a.1.cmp_progress(b.1));
        farthest.map(|(_, known)| ViolationHistory { seen: known.seen, ..known.to_remember() })
    }

    /// Keeps the progress of a violation that is over, for as long as its rule says.
    pub(super) fn remember(&mut self, rule: &Rule, key: &Key, known: &ViolationHistory, now_seconds: f64) {
        let Some(username) = &known.about.username else {
            return;
        };
        if rule.remember.is_zero() {
            return;
        }
        let gpus: Vec<Option<u32>> = match &key.subject {
            Subject::Process { .. } => known.about.gpus.iter().copied().map(Some).collect(),
            subject => vec![device(subject)],
        };
        for gpu in gpus {
            let place = place(rule, &key.subject, username, gpu, known.unconfirmed);
            if !self.remembered.contains_key(&place) && !self.has_room(known.unconfirmed) {
                continue;
            }
            let progress = known.to_remember();
            let before = self.remembered.get(&place);
            let before = before.filter(|before| before.progress.cmp_progress(&progress).is_gt());
            let progress = before.map_or(progress, |before| before.progress.clone());
            self.remembered.insert(place, Remembered { progress, over_seconds: now_seconds });
        }
    }

    /// Whether there is room for one place more. Those of violations that exist by unconfirmed attachments alone give way to
    /// the others.
    fn has_room(&mut self, unconfirmed: bool) -> bool {
        if self.remembered.len() < MOST_REMEMBERED {
            return true;
        }
        let last = self.remembered.last_key_value();
        let gives_way = !unconfirmed && last.is_some_and(|(place, _)| place.unconfirmed);
        if gives_way {
            self.remembered.pop_last();
        }
        gives_way
    }

    /// Forgets what is over for longer than its rule says, and what is of rules that are not there any more.
    pub(super) fn forget_old_progress(&mut self, rules: &[Rule], now_seconds: f64) {
        self.remembered.retain(|place, remembered| {
            let mut rules = rules.iter().filter(|rule| rule.name == place.rule);
            rules.any(|rule| remembered.lasts(rule, now_seconds))
        });
    }
}

impl Remembered {
    fn lasts(&self, rule: &Rule, now_seconds: f64) -> bool {
        (now_seconds - self.over_seconds).abs() <= rule.remember.as_secs_f64()
    }

    pub(super) const fn is_rehearsed(&self) -> bool {
        self.progress.rehearsed
    }
}

impl ViolationHistory {
    /// Whether a violation goes on with this one: what exists only by unconfirmed attachments counts for no other.
    pub(in crate::plan) const fn counts_for(&self, unconfirmed: bool) -> bool {
        unconfirmed || !self.unconfirmed
    }

    /// More warnings are farther, and of as many, more time.
    fn cmp_progress(&self, other: &Self) -> std::cmp::Ordering {
        let seconds = self.seen.seconds.total_cmp(&other.seen.seconds);
        self.warnings_given.cmp(&other.warnings_given).then(seconds)
    }

    fn with_progress_of(&self, other: &Self) -> Self {
        Self {
            since_seconds: self.since_seconds,
            reported: self.reported,
            reported_seconds: self.reported_seconds,
            acted_seconds: self.acted_seconds,
            chosen: self.chosen.clone(),
            about: self.about.clone(),
            put_off: self.put_off,
            undelivered: self.undelivered.clone(),
            ..other.clone()
        }
    }

    /// The time that was seen and the warnings that were given, without what was done.
    fn to_remember(&self) -> Self {
        let mut progress = Self {
            seen: self.seen,
            warnings_given: self.warnings_given,
            end_seen_seconds: self.end_seen_seconds,
            rehearsed: self.rehearsed,
            unconfirmed: self.unconfirmed,
            ..Self::begin(self.since_seconds)
        };
        progress.seen.wait();
        progress
    }

    /// Goes on with what came after the action, by the warnings that were given.
    pub(in crate::plan) fn resume(&mut self) {
        self.acted_seconds = None;
        self.chosen.clear();
    }

    /// Whether what came after the action is of the same progress: within the time for which the rule remembers it.
    pub(in crate::plan) fn may_resume(&self, rule: &Rule, now_seconds: f64) -> bool {
        let within = |acted: f64| now_seconds - acted <= rule.remember.as_secs_f64();
        !rule.remember.is_zero() && self.acted_seconds.is_some_and(within)
    }
}

/// Whether the facts at hand no longer show what broke a rule.
fn is_gone(facts: &Facts<'_>, subject: &Subject) -> bool {
    match subject {
        Subject::Process { hostname, pid, start_time_ticks } => facts.process(hostname, *pid).is_none_or(|id| {
            let started = facts.processes[id].process.start_time_ticks;
            started.is_some_and(|it| it != *start_time_ticks)
        }),
        Subject::Environment { hostname, eid } => facts.environment(hostname, eid).is_none(),
        Subject::EnvironmentDevice { hostname, eid, index } => facts.environment(hostname, eid).is_none_or(|id| {
            let mut held = facts.attachments_of(id).iter();
            !held.any(|attachment| attachment.gpu == index.gpu)
        }),
        Subject::User { .. } | Subject::UserDevice { .. } => false,
    }
}

const fn device(subject: &Subject) -> Option<u32> {
    match subject {
        Subject::EnvironmentDevice { index, .. } | Subject::UserDevice { index, .. } => Some(index.gpu),
        Subject::Process { .. } | Subject::Environment { .. } | Subject::User { .. } => None,
    }
}

fn place(rule: &Rule, subject: &Subject, username: &str, gpu: Option<u32>, unconfirmed: bool) -> Place {
    Place {
        unconfirmed,
        rule: rule.name.clone(),
        username: username.to_owned(),
        hostname: subject.hostname().map(str::to_owned),
        gpu,
    }
}

/// Where progress with a violation may come from.
fn places(facts: &Facts<'_>, rule: &Rule, subject: &Subject, username: &str, unconfirmed: bool) -> Vec<Place> {
    let gpus = match subject {
        Subject::Process { hostname, pid, .. } => {
            let process = facts.process(hostname, *pid);
            let uses = process.map(|id| facts.processes[id].uses.clone());
            let uses = uses.map_or(&[][..], |uses| &facts.uses[uses]);
            uses.iter().map(|used| Some(used.gpu)).collect()
        }
        subject => vec![device(subject)],
    };
    let places = gpus.into_iter().flat_map(|gpu| {
        let own = place(rule, subject, username, gpu, false);
        let also = unconfirmed.then(|| place(rule, subject, username, gpu, true));
        std::iter::once(own).chain(also)
    });
    places.collect()
}
