//! Delivers notices to users, and knows whom each reached: a terminal took it, or `genv why` showed it.
//!
//! A user gets one text in a cycle, however many notices there are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use jiff::tz::TimeZone;

use super::notice::notice;
use super::notifier::{Fact, Facts, Notifier};
use super::readers::Readers;
use super::terminals::Terminals;
use crate::config::{Config, Undelivered};
use crate::directory::RuntimeDirectory;
use crate::plan::words;
use crate::plan::{Key, Outcome, StepKind, Violation};

/// Notices in one text; the others are counted.
const MOST_NOTICES: usize = 3;

/// Targets of a notice that the notifier learns.
const MOST_TARGETS: usize = 10;

/// A text that reached nobody is written again after so many intervals, or so long.
const RETRY_INTERVALS: u32 = 6;
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// After a notice that a rule takes back devices which others attached, the user gets no further notice by that rule
/// for this time; `genv why` shows all. Otherwise an attacker could cause notices without end.
const FORCED_AGAIN_SECONDS: f64 = 86_400.0;

/// Delivers notices.
#[derive(Debug)]
pub(crate) struct Post {
    terminals: Terminals,
    /// Without it nobody can tell who reads the status.
    readers: Option<Readers>,
    notifier: Option<Notifier<Letter>>,
    /// Warnings that did not reach all their recipients.
    pending: BTreeMap<Letter, Pending>,
    /// The last notice to a user about devices that others attached, by uid and rule; Unix time.
    forced: BTreeMap<(u32, String), f64>,
}

/// What a user is to be told about a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice<'a> {
    pub(crate) violation: &'a Violation,
    pub(crate) step: &'a StepKind,
}

/// One warning to one user.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Letter {
    uid: u32,
    key: Key,
    number: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    /// Since when the status lists it, Unix time.
    listed_seconds: Option<f64>,
    /// When it was written to terminals last, Unix time.
    tried_seconds: Option<f64>,
    is_delivered: bool,
}

impl Post {
    /// Delivers for an enforcer with this directory.
    pub(crate) fn open(directory: &RuntimeDirectory) -> Self {
        let readers = Readers::listen(directory).inspect_err(|error| {
            tracing::error!(event = "fault", %error, "what users read by 'genv why' does not count as delivered");
        });
        Self { readers: readers.ok(), ..Self::of_terminals() }
    }

    /// Delivers in terminals alone: nobody listens to users who read the status.
    pub(crate) fn of_terminals() -> Self {
        Self {
            terminals: Terminals::default(),
            readers: None,
            notifier: None,
            pending: BTreeMap::new(),
            forced: BTreeMap::new(),
        }
    }

    /// Has the service at this socket deliver notices besides, if there is to be one.
    pub(crate) fn follow(&mut self, socket: Option<&Path>, hostname: &str) {
        if self.notifier.as_ref().map(Notifier::socket) == socket {
            return;
        }
        let started = socket.map(|socket| Notifier::start(socket, hostname)).transpose();
        self.notifier = started.unwrap_or_else(|error| {
            tracing::error!(event = "fault", %error, "notices go to no notifier: no thread");
            None
        });
    }

    /// Delivers warnings, each until it has reached all its recipients. `genv why` shows those that the status lists. Returns
    /// of each why it has not yet.
    pub(crate) fn warn(
        &mut self,
        warnings: &[Notice<'_>],
        listed: &BTreeSet<&Key>,
        interval: Duration,
        now_seconds: f64,
        zone: &TimeZone,
    ) -> Vec<Result<(), String>> {
        let letters: Vec<Vec<Letter>> = warnings.iter().map(Notice::letters).collect();
        let uids: BTreeSet<u32> = letters.iter().flatten().map(|it| it.uid).collect();
        if let Some(readers) = &mut self.readers {
            readers.take(&uids);
        }
        let retry = (interval * RETRY_INTERVALS).min(LONGEST_RETRY).as_secs_f64();
        let is_recent = |at: f64| (0.0..FORCED_AGAIN_SECONDS).contains(&(now_seconds - at));
        self.forced.retain(|_, at| is_recent(*at));
        let mut before = std::mem::take(&mut self.pending);
        let accepted = self.notifier.as_mut().map(Notifier::accepted);
        for letter in accepted.unwrap_or_default() {
            if let Some(state) = before.get_mut(&letter) {
                state.is_delivered = true;
            }
        }
        let mut to_write: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (position, letter) in letters
            .iter()
            .enumerate()
            .flat_map(|(position, letters)| letters.iter().map(move |letter| (position, letter)))
        {
            let mut state = before.get(letter).copied().unwrap_or_default();
            if listed.contains(&letter.key) {
                let has_read = |readers: &Readers| {
                    let listed = state.listed_seconds;
                    listed.is_some_and(|listed| readers.has_read(letter.uid, listed))
                };
                state.is_delivered |= self.readers.as_ref().is_some_and(has_read);
                state.listed_seconds.get_or_insert(now_seconds);
            } else {
                state.listed_seconds = None;
            }
            let violation = warnings[position].violation;
            state.is_delivered |= self.knows_of_forced(letter.uid, violation);
            // What was tried in the future was tried before the clock was set back.
            let waits = |tried: f64| (0.0..retry).contains(&(now_seconds - tried));
            if !state.is_delivered && !state.tried_seconds.is_some_and(waits) {
                to_write.entry(letter.uid).or_default().push(position);
            }
            self.pending.insert(letter.clone(), state);
        }
        for (uid, mut positions) in to_write {
            let rules = rules_first(&mut positions, |it| &warnings[it].violation.key.rule);
            let all = positions.iter().map(|position| warnings[*position]);
            let all: Vec<Notice<'_>> = all.collect();
            // The text names these rules. A warning by another one comes with the next text.
            let named = positions.iter().flat_map(|position| &letters[*position]);
            let named = named.filter(|it| it.uid == uid && rules.contains(&it.key.rule));
            let named: Vec<Letter> = named.cloned().collect();
            self.note_forced(uid, &all, now_seconds);
            let took = self.write(uid, all.into_iter(), named.clone(), now_seconds, zone);
            for letter in named {
                if let Some(state) = self.pending.get_mut(&letter) {
                    state.tried_seconds = Some(now_seconds);
                    state.is_delivered |= took;
                }
            }
        }
        letters.iter().map(|letters| self.reached(letters)).collect()
    }

    /// Writes a text to the terminals of a user. Returns how many took it.
    pub(crate) fn say(&self, uid: u32, text: &str) -> usize {
        self.terminals.tell(uid, text)
    }

    /// Tells users what was done.
    pub(crate) fn tell(&mut self, done: &[Notice<'_>], now_seconds: f64, zone: &TimeZone) {
        let mut by_user: BTreeMap<u32, Vec<Notice<'_>>> = BTreeMap::new();
        for notice in done {
            for uid in notice.recipients() {
                if !self.knows_of_forced(uid, notice.violation) {
                    by_user.entry(uid).or_default().push(*notice);
                }
            }
        }
        for (uid, notices) in by_user {
            self.note_forced(uid, &notices, now_seconds);
            self.write(uid, notices.into_iter(), Vec::new(), now_seconds, zone);
        }
    }

    /// Whether a user got a notice within the last day that a rule takes back devices which others attached.
    fn knows_of_forced(&self, uid: u32, violation: &Violation) -> bool {
        violation.unconfirmed && self.forced.contains_key(&(uid, violation.key.rule.clone()))
    }

    fn note_forced(&mut self, uid: u32, notices: &[Notice<'_>], now_seconds: f64) {
        for violation in notices.iter().map(|it| it.violation) {
            if violation.unconfirmed {
                let of_rule = (uid, violation.key.rule.clone());
                self.forced.entry(of_rule).or_insert(now_seconds);
            }
        }
    }

    /// Whether a terminal of the user took one text of all these. The notifier gets it too; whether that delivers these
    /// warnings is seen later.
    fn write<'a>(
        &mut self,
        uid: u32,
        notices: impl ExactSizeIterator<Item = Notice<'a>>,
        warnings: Vec<Letter>,
        now_seconds: f64,
        zone: &TimeZone,
    ) -> bool {
        let more = notices.len().saturating_sub(MOST_NOTICES);
        let notices: Vec<Notice<'_>> = notices.take(MOST_NOTICES).collect();
        let texts = notices.iter().filter_map(|it| notice(it.violation, it.step, now_seconds, zone));
        let mut text: String = texts.collect();
        if text.is_empty() {
            return true;
        }
        if more > 0 {
            text += &format!("\r\n* and {} more: genv why\r\n", words::thousands(more as u64));
        }
        if let Some(notifier) = &mut self.notifier {
            let user = uzers::get_user_by_uid(uid);
            let facts = Facts {
                kind: if warnings.is_empty() { "done" } else { "warning" }.to_owned(),
                uid,
                username: user.and_then(|user| user.name().to_str().map(str::to_owned)),
                notices: notices.iter().map(Notice::fact).collect(),
                more,
                text: text.replace('\r', ""),
                ..Facts::default()
            };
            notifier.send(facts, warnings);
        }
        let terminals = self.terminals.tell(uid, &text);
        tracing::debug!(uid, terminals, "a notice is written");
        terminals > 0
    }

    /// Why a warning has not reached all its recipients, if it has not; one that has is forgotten.
    fn reached(&mut self, letters: &[Letter]) -> Result<(), String> {
        if letters.is_empty() {
            return Err("no uid is known".to_owned());
        }
        let missing = letters.iter().filter(|letter| {
            let state = self.pending.get(letter);
            !state.is_some_and(|state| state.is_delivered)
        });
        let missing = missing.map(|letter| letter.uid.to_string());
        let missing: Vec<String> = missing.take(MOST_NOTICES).collect();
        if missing.is_empty() {
            for letter in letters {
                self.pending.remove(letter);
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

impl Notice<'_> {
    /// What a warning that was delivered, or not, is to its rule.
    pub(crate) fn outcome(&self, delivered: &Result<(), String>, config: &Config) -> Outcome {
        let mut rules = config.rules.iter();
        let rule = rules.find(|rule| rule.name == self.violation.key.rule);
        // Where others attached the device, the user loses nothing: the step does not wait for an absent user.
        let holds = !self.violation.unconfirmed && rule.is_some_and(|rule| rule.undelivered == Undelivered::Hold);
        match delivered {
            Err(reason) if holds => Outcome::Refused { reason: reason.clone(), again: true },
            _ => Outcome::Done,
        }
    }

    /// Whom it is for: who breaks the rule, and the owners of processes that end.
    fn recipients(&self) -> BTreeSet<u32> {
        let owners = match words::step_target(self.step) {
            Some(target) => words::victims([&target]),
            None => words::victims(&self.violation.targets),
        };
        owners.into_iter().chain(self.violation.uid).collect()
    }

    fn fact(&self) -> Fact {
        let violation = self.violation;
        let target = words::step_target(self.step);
        let targets = match &target {
            Some(target) => std::slice::from_ref(target),
            None => &violation.targets[..],
        };
        Fact {
            rule: violation.key.rule.clone(),
            username: violation.username.clone(),
            hostname: violation.hostname.clone(),
            subject: words::subject(&violation.key.subject),
            found: violation.found.clone(),
            allowed: violation.allowed.clone(),
            remedy: violation.remedy.clone(),
            action: violation.action.word().to_owned(),
            end_timestamp_seconds: match self.step {
                StepKind::Warn { end_seconds, .. } => *end_seconds,
                _ => None,
            },
            targets: targets.iter().take(MOST_TARGETS).map(words::target).collect(),
        }
    }

    fn letters(&self) -> Vec<Letter> {
        let number = match self.step {
            StepKind::Warn { number, .. } => *number,
            _ => 0,
        };
        let letters = self.recipients().into_iter().map(|uid| Letter { uid, key: self.violation.key.clone(), number });
        letters.collect()
    }
}

/// Puts one notice of each rule before all others. Returns the rules that one text names.
fn rules_first<'a>(positions: &mut [usize], rule: impl Fn(usize) -> &'a String) -> BTreeSet<&'a String> {
    let mut seen = BTreeSet::new();
    let firsts: BTreeSet<usize> = positions.iter().copied().filter(|it| seen.insert(rule(*it))).collect();
    positions.sort_by_key(|it| !firsts.contains(it));
    let named = positions.iter().take(MOST_NOTICES);
    named.map(|it| rule(*it)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::sync::Arc;

    use genv_core::enforcement::READ_SOCKET;

    use super::*;
    use crate::plan::tests::lab::due_violation;
    use crate::plan::{ProcessTarget, Subject, Target};

    /// A user without a terminal.
    const NOBODY: u32 = 3_000_000_000;

    const WARNING: StepKind = StepKind::Warn { number: 1, of: 1, end_seconds: Some(1000.0) };

    fn violation(pid: u32, uid: u32, owner: u32, container_id: Option<&str>) -> Violation {
        let hostname = "gpu01".to_owned();
        let key = Key {
            rule: "rule".to_owned(),
            subject: Subject::Process { hostname: hostname.clone(), pid, start_time_ticks: 1 },
        };
        Violation {
            uid: Some(uid),
            targets: vec![Target::Process(Arc::new(ProcessTarget {
                hostname,
                pid,
                start_time_ticks: 1,
                uid: owner,
                username: "bob".to_owned(),
                comm: None,
                eid: None,
                container_id: container_id.map(str::to_owned),
            }))],
            ..due_violation(key, "alice")
        }
    }

    fn warn(post: &mut Post, violations: &[Violation], now_seconds: f64) -> Vec<Result<(), String>> {
        let step = &WARNING;
        let warnings = violations.iter().map(|violation| Notice { violation, step });
        let interval = Duration::from_secs(10);
        let listed = violations.iter().filter(|it| it.found.is_empty());
        post.warn(
            &warnings.collect::<Vec<_>>(),
            &listed.map(|it| &it.key).collect(),
            interval,
            now_seconds,
            &TimeZone::UTC,
        )
    }

    #[test]
    fn a_warning_is_delivered_once_everybody_whom_it_is_for_has_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RuntimeDirectory::open(folder.path()).unwrap();
        let own = rustix::process::getuid().as_raw();
        let mut post = Post::open(&directory);
        // No terminal is looked for.
        post.terminals = Terminals::nowhere();
        let both = [violation(1, own, NOBODY, None)];
        let one = [violation(2, own, own, None), violation(3, own, 0, Some("c"))];
        let reader = UnixDatagram::unbound().unwrap();
        let read = |seconds: f64| {
            let path = folder.path().join(READ_SOCKET);
            reader.send_to(seconds.to_string().as_bytes(), path).unwrap();
        };
        // What was read before the status showed it was not read.
        read(99.0);
        for now in [100.0, 110.0] {
            let warned = warn(&mut post, &[&both[..], &one[..]].concat(), now);
            assert!(warned.iter().all(Result::is_err), "{warned:?}");
        }
        read(110.0);
        let warned = warn(&mut post, &[&both[..], &one[..]].concat(), 120.0);
        assert_eq!(warned[1..], [Ok(()), Ok(())], "uids in containers are not waited for");
        let missing = warned[0].as_ref().unwrap_err();
        assert!(missing.contains(&format!("uid {NOBODY} takes")), "{missing}");
        assert!(warn(&mut post, &both, 130.0)[0].is_err());
        assert_eq!(post.pending.len(), 2);
        warn(&mut post, &[], 140.0);
        assert!(post.pending.is_empty(), "what is warned of no more is forgotten");
    }

    #[test]
    fn a_reader_of_the_status_has_read_what_it_lists_alone() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RuntimeDirectory::open(folder.path()).unwrap();
        let own = rustix::process::getuid().as_raw();
        let mut post = Post::open(&directory);
        post.terminals = Terminals::nowhere();
        let mut unlisted = violation(2, own, own, None);
        unlisted.found = "not listed".to_owned();
        let mut both = [violation(1, own, own, None), unlisted];
        let reader = UnixDatagram::unbound().unwrap();
        let mut warn_and_read = |both: &[Violation], now: f64| {
            let warned = warn(&mut post, both, now);
            let path = folder.path().join(READ_SOCKET);
            reader.send_to(now.to_string().as_bytes(), path).unwrap();
            warned.iter().map(Result::is_ok).collect::<Vec<_>>()
        };
        assert_eq!(warn_and_read(&both, 100.0), [false, false]);
        assert_eq!(warn_and_read(&both, 110.0), [true, false]);
        both[1].found.clear();
        assert_eq!(warn_and_read(&both[1..], 120.0), [false]);
        assert_eq!(warn_and_read(&both[1..], 130.0), [true]);
    }

    #[test]
    fn of_devices_that_others_attach_a_user_gets_one_text_a_day() {
        let own = rustix::process::getuid().as_raw();
        let mut post = Post::of_terminals();
        post.terminals = Terminals::nowhere();
        let forced = |pid: u32| Violation { unconfirmed: true, ..violation(pid, own, own, None) };
        let mut is_written = |violation: Violation, now: f64| {
            warn(&mut post, &[violation], now);
            let tried = post.pending.values().next();
            tried.is_some_and(|it| it.tried_seconds == Some(now))
        };
        assert!(is_written(forced(1), 100.0));
        assert!(!is_written(forced(1), 200.0));
        assert!(!is_written(forced(2), 300.0));
        // A notice about the user's own violation is written nevertheless.
        assert!(is_written(violation(3, own, own, None), 400.0));
        assert!(is_written(forced(4), 100.0 + FORCED_AGAIN_SECONDS));
    }

    #[test]
    fn a_text_names_as_many_rules_as_it_has_notices() {
        let rules = ["a", "a", "b", "a", "c", "d"].map(str::to_owned);
        let mut positions = vec![0, 1, 2, 3, 4, 5];
        let named = rules_first(&mut positions, |it| &rules[it]);
        assert_eq!(positions, [0, 2, 4, 5, 1, 3]);
        assert_eq!(named.into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(words::thousands(5), "5");
        assert_eq!(words::thousands(2999), "2,999");
        assert_eq!(words::thousands(1_234_567), "1,234,567");
    }
}
