//! Delivery of notices to users, and which notices are delivered: a terminal took the notice, `genv why` showed it, or the
//! notifier accepted it.
//!
//! A user gets at most one text in a cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use jiff::tz::TimeZone;

use super::notice::Notice;
use super::notifier::{Notifier, NotifierMessage};
use super::readers::Readers;
use super::terminals::Terminals;
use super::text::notice_text;
use crate::directory::RuntimeDirectory;
use crate::plan::words;
use crate::plan::{Key, StepKind, Violation};

/// The largest number of notices in one text; the text has the number of the others.
const MAX_NOTICES: usize = 3;

/// An undelivered text is written again after this many intervals, or after this time if it is shorter.
const RETRY_INTERVALS: u32 = 6;
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// After a notice that a rule takes back devices which others attached, the user gets no further notice by that rule
/// for this time; `genv why` shows all. Otherwise an attacker could cause notices without end.
const RECLAIM_NOTICE_SECONDS: f64 = 86_400.0;

/// Delivers notices.
#[derive(Debug)]
pub(crate) struct NoticeDelivery {
    terminals: Terminals,
    /// Absent if the socket could not be made.
    readers: Option<Readers>,
    notifier: Option<Notifier<UserWarning>>,
    /// Warnings that are not delivered to all recipients.
    pending: BTreeMap<UserWarning, Pending>,
    /// The last notice to a user about devices that others attached, by uid and rule; Unix time.
    reclaim_notices: BTreeMap<(u32, String), f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UserWarning {
    uid: u32,
    key: Key,
    number: usize,
}

impl UserWarning {
    /// A warning to each recipient of a notice.
    fn of(notice: &Notice<'_>) -> Vec<Self> {
        let number = match notice.step {
            StepKind::Warn { number, .. } => *number,
            _ => 0,
        };
        let user_warnings =
            notice.recipients().into_iter().map(|uid| Self { uid, key: notice.violation.key.clone(), number });
        user_warnings.collect()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    /// Since when the status lists the warning, Unix time.
    listed_seconds: Option<f64>,
    /// When the warning was last written to terminals, Unix time.
    tried_seconds: Option<f64>,
    is_delivered: bool,
}

impl NoticeDelivery {
    /// A delivery with the readers of this directory's status.
    pub(crate) fn open(directory: &RuntimeDirectory) -> Self {
        let readers = Readers::listen(directory).inspect_err(|error| {
            tracing::error!(event = "fault", %error, "what users read by 'genv why' does not count as delivered");
        });
        Self { readers: readers.ok(), ..Self::to_terminals() }
    }

    /// A delivery to terminals only.
    pub(crate) fn to_terminals() -> Self {
        Self {
            terminals: Terminals::default(),
            readers: None,
            notifier: None,
            pending: BTreeMap::new(),
            reclaim_notices: BTreeMap::new(),
        }
    }

    /// Sends notices also to the notifier at this socket, if there is one.
    pub(crate) fn set_notifier(&mut self, socket: Option<&Path>, hostname: &str) {
        if self.notifier.as_ref().map(Notifier::socket) == socket {
            return;
        }
        let started = socket.map(|socket| Notifier::start(socket, hostname)).transpose();
        self.notifier = started.unwrap_or_else(|error| {
            tracing::error!(event = "fault", %error, "notices go to no notifier: no thread");
            None
        });
    }

    /// Delivers warnings, each until all recipients have it. `genv why` shows the warnings with a key in `listed`. Returns for each
    /// warning the reason why it is not delivered.
    pub(crate) fn warn(
        &mut self,
        warnings: &[Notice<'_>],
        listed: &BTreeSet<&Key>,
        interval: Duration,
        now_seconds: f64,
        zone: &TimeZone,
    ) -> Vec<Result<(), String>> {
        let user_warnings: Vec<Vec<UserWarning>> = warnings.iter().map(UserWarning::of).collect();
        let uids: BTreeSet<u32> = user_warnings.iter().flatten().map(|it| it.uid).collect();
        if let Some(readers) = &mut self.readers {
            readers.take(&uids);
        }
        let retry = (interval * RETRY_INTERVALS).min(LONGEST_RETRY).as_secs_f64();
        let is_recent = |at: f64| (0.0..RECLAIM_NOTICE_SECONDS).contains(&(now_seconds - at));
        self.reclaim_notices.retain(|_, at| is_recent(*at));
        let mut before = std::mem::take(&mut self.pending);
        let accepted = self.notifier.as_mut().map(Notifier::accepted);
        for user_warning in accepted.unwrap_or_default() {
            if let Some(state) = before.get_mut(&user_warning) {
                state.is_delivered = true;
            }
        }
        let mut to_write: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (position, user_warning) in user_warnings.iter().enumerate().flat_map(|(position, user_warnings)| {
            user_warnings.iter().map(move |user_warning| (position, user_warning))
        }) {
            let mut state = before.get(user_warning).copied().unwrap_or_default();
            if listed.contains(&user_warning.key) {
                let has_read = |readers: &Readers| {
                    let listed = state.listed_seconds;
                    listed.is_some_and(|listed| readers.has_read(user_warning.uid, listed))
                };
                state.is_delivered |= self.readers.as_ref().is_some_and(has_read);
                state.listed_seconds.get_or_insert(now_seconds);
            } else {
                state.listed_seconds = None;
            }
            let violation = warnings[position].violation;
            state.is_delivered |= self.knows_of_reclaim(user_warning.uid, violation);
            // A try in the future was made before the clock was set back.
            let waits = |tried: f64| (0.0..retry).contains(&(now_seconds - tried));
            if !state.is_delivered && !state.tried_seconds.is_some_and(waits) {
                to_write.entry(user_warning.uid).or_default().push(position);
            }
            self.pending.insert(user_warning.clone(), state);
        }
        for (uid, mut positions) in to_write {
            let rules = rules_first(&mut positions, |it| &warnings[it].violation.key.rule);
            let all = positions.iter().map(|position| warnings[*position]);
            let all: Vec<Notice<'_>> = all.collect();
            // The text names these rules. A warning by another one comes with the next text.
            let named = positions.iter().flat_map(|position| &user_warnings[*position]);
            let named = named.filter(|it| it.uid == uid && rules.contains(&it.key.rule));
            let named: Vec<UserWarning> = named.cloned().collect();
            self.note_reclaim(uid, &all, now_seconds);
            let took = self.write(uid, all.into_iter(), named.clone(), now_seconds, zone);
            for user_warning in named {
                if let Some(state) = self.pending.get_mut(&user_warning) {
                    state.tried_seconds = Some(now_seconds);
                    state.is_delivered |= took;
                }
            }
        }
        user_warnings.iter().map(|user_warnings| self.outcome_of(user_warnings)).collect()
    }

    /// Writes a text to the terminals of a user. Returns the number of terminals that took it.
    pub(crate) fn write_text(&self, uid: u32, text: &str) -> usize {
        self.terminals.write(uid, text)
    }

    /// Reports actions to their users.
    pub(crate) fn report(&mut self, done: &[Notice<'_>], now_seconds: f64, zone: &TimeZone) {
        let mut by_user: BTreeMap<u32, Vec<Notice<'_>>> = BTreeMap::new();
        for notice in done {
            for uid in notice.recipients() {
                if !self.knows_of_reclaim(uid, notice.violation) {
                    by_user.entry(uid).or_default().push(*notice);
                }
            }
        }
        for (uid, notices) in by_user {
            self.note_reclaim(uid, &notices, now_seconds);
            self.write(uid, notices.into_iter(), Vec::new(), now_seconds, zone);
        }
    }

    /// Whether the user got a notice within the last day that this rule takes back devices which others attached.
    fn knows_of_reclaim(&self, uid: u32, violation: &Violation) -> bool {
        violation.unconfirmed && self.reclaim_notices.contains_key(&(uid, violation.key.rule.clone()))
    }

    fn note_reclaim(&mut self, uid: u32, notices: &[Notice<'_>], now_seconds: f64) {
        for violation in notices.iter().map(|it| it.violation) {
            if violation.unconfirmed {
                let of_rule = (uid, violation.key.rule.clone());
                self.reclaim_notices.entry(of_rule).or_insert(now_seconds);
            }
        }
    }

    /// Writes one text with all notices to a user's terminals, and sends it to the notifier. Returns whether a terminal took the
    /// text. The reply of the notifier comes later.
    fn write<'a>(
        &mut self,
        uid: u32,
        notices: impl ExactSizeIterator<Item = Notice<'a>>,
        warnings: Vec<UserWarning>,
        now_seconds: f64,
        zone: &TimeZone,
    ) -> bool {
        let more = notices.len().saturating_sub(MAX_NOTICES);
        let notices: Vec<Notice<'_>> = notices.take(MAX_NOTICES).collect();
        let texts = notices.iter().filter_map(|it| notice_text(it.violation, it.step, now_seconds, zone));
        let mut text: String = texts.collect();
        if text.is_empty() {
            return true;
        }
        if more > 0 {
            text += &format!("\r\n* and {} more: genv why\r\n", words::thousands(more));
        }
        if let Some(notifier) = &mut self.notifier {
            let user = uzers::get_user_by_uid(uid);
            let message = NotifierMessage {
                kind: if warnings.is_empty() { "done" } else { "warning" }.to_owned(),
                uid,
                username: user.and_then(|user| user.name().to_str().map(str::to_owned)),
                notices: notices.iter().map(Notice::notifier_violation).collect(),
                more,
                text: text.replace('\r', ""),
                ..NotifierMessage::default()
            };
            notifier.send(message, warnings);
        }
        let terminals = self.terminals.write(uid, &text);
        tracing::debug!(uid, terminals, "a notice is written");
        terminals > 0
    }

    /// The reason why a warning is not delivered to all recipients. A delivered warning is removed.
    fn outcome_of(&mut self, user_warnings: &[UserWarning]) -> Result<(), String> {
        if user_warnings.is_empty() {
            return Err("no uid is known".to_owned());
        }
        let missing = user_warnings.iter().filter(|user_warning| {
            let state = self.pending.get(user_warning);
            !state.is_some_and(|state| state.is_delivered)
        });
        let missing = missing.map(|user_warning| user_warning.uid.to_string());
        let missing: Vec<String> = missing.take(MAX_NOTICES).collect();
        if missing.is_empty() {
            for user_warning in user_warnings {
                self.pending.remove(user_warning);
            }
            return Ok(());
        }
        Err(format!(
            "no terminal of uid {} takes it, neither 'genv why' nor a prompt has shown it there, and {}",
            missing.join(", "),
            match self.notifier {
                Some(_) => "the notifier has not accepted it",
                None => "there is no notifier",
            }
        ))
    }
}

/// Puts one notice of each rule before all others. Returns the rules that one text names.
fn rules_first<'a>(positions: &mut [usize], rule: impl Fn(usize) -> &'a String) -> BTreeSet<&'a String> {
    let mut seen = BTreeSet::new();
    let firsts: BTreeSet<usize> = positions.iter().copied().filter(|it| seen.insert(rule(*it))).collect();
    positions.sort_by_key(|it| !firsts.contains(it));
    let named = positions.iter().take(MAX_NOTICES);
    named.map(|it| rule(*it)).collect()
}

#[cfg(test)]
mod tests;
