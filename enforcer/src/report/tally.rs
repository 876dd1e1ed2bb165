//! Lines of the audit, counted, in bounded memory.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::Report;
use super::line::{AuditLine, Outcome};

/// Rules with users that are counted by themselves; all others are counted together.
const MOST_ROWS: usize = 10_000;

/// The user of all others.
const OTHERS: &str = "(others)";

/// What comes later than this is a case of its own.
const CASE_SECONDS: f64 = 60.0;

/// Cases that are told.
const WORST: usize = 3;

/// Deeds that are told of a case.
const DEEDS: usize = 3;

/// How often something went so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Counts {
    pub(super) would: u64,
    pub(super) done: u64,
    pub(super) refused: u64,
    pub(super) failed: u64,
}

impl Counts {
    fn add(&mut self, outcome: Outcome, number: u64) {
        let count = match outcome {
            Outcome::Would => &mut self.would,
            Outcome::Done => &mut self.done,
            Outcome::Refused => &mut self.refused,
            Outcome::Failed => &mut self.failed,
        };
        *count = count.saturating_add(number);
    }

    pub(super) const fn all(&self) -> u64 {
        self.would + self.done + self.refused + self.failed
    }

    /// What was taken from people, or would have been, weighs most.
    const fn weight(&self) -> (u64, u64, u64) {
        (self.would + self.done, self.failed, self.refused)
    }
}

/// What came of one rule for one user.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) rule: String,
    pub(super) username: String,
    #[serde(flatten)]
    pub(super) counts: Counts,
}

/// What one rule did to one user on one host at one time.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Case {
    pub(super) from_seconds: f64,
    #[serde(skip)]
    until_seconds: f64,
    pub(super) rule: String,
    pub(super) username: String,
    pub(super) hostname: String,
    /// What was found, and what is allowed.
    pub(super) why: String,
    #[serde(flatten)]
    pub(super) counts: Counts,
    /// The first of what was done or not.
    pub(super) deeds: Vec<String>,
}

/// What was counted so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    rows: BTreeMap<(String, String), Counts>,
    /// By rule, user and host.
    open: HashMap<(String, String, String), Case>,
    worst: Vec<Case>,
    damaged_lines: u64,
}

impl Tally {
    /// Counts a line, nothing if it was too long to be one, unless it is of an earlier time.
    pub(super) fn add(&mut self, bytes: Option<&[u8]>, from_seconds: f64) {
        let Some(line) = bytes.and_then(AuditLine::parse) else {
            self.damaged_lines += 1;
            return;
        };
        let Some(outcome) = line.outcome().filter(|_| line.seconds() >= from_seconds) else {
            return;
        };
        let mut key = (line.rule.clone(), line.username.clone());
        if self.rows.len() >= MOST_ROWS && !self.rows.contains_key(&key) {
            key = (OTHERS.to_owned(), OTHERS.to_owned());
        }
        let number = line.more.unwrap_or(1);
        self.rows.entry(key).or_default().add(outcome, number);
        self.add_to_case(line, outcome);
    }

    fn add_to_case(&mut self, line: AuditLine, outcome: Outcome) {
        let (seconds, deed) = (line.seconds(), line.deed(outcome));
        let number = line.more.unwrap_or(1);
        let key = (line.rule.clone(), line.username.clone(), line.hostname.clone());
        if let Some(case) = self.open.get_mut(&key)
            && (seconds - case.until_seconds).abs() <= CASE_SECONDS
        {
            case.until_seconds = seconds;
            case.counts.add(outcome, number);
            if case.deeds.len() < DEEDS {
                case.deeds.push(deed);
            }
            return;
        }
        if self.open.len() >= MOST_ROWS {
            let all = std::mem::take(&mut self.open);
            self.worst.extend(all.into_values());
            self.keep_the_worst();
        }
        let mut counts = Counts::default();
        counts.add(outcome, number);
        let case = Case {
            from_seconds: seconds,
            until_seconds: seconds,
            rule: line.rule,
            username: line.username,
            hostname: line.hostname,
            why: line.why,
            counts,
            deeds: vec![deed],
        };
        if let Some(over) = self.open.insert(key, case) {
            self.worst.push(over);
            self.keep_the_worst();
        }
    }

    fn keep_the_worst(&mut self) {
        // Of equals the later first.
        self.worst.sort_by(|a, b| {
            let weight = b.counts.weight().cmp(&a.counts.weight());
            weight.then(b.from_seconds.total_cmp(&a.from_seconds))
        });
        self.worst.truncate(WORST);
    }

    pub(super) fn report(mut self, from_seconds: f64, until_seconds: f64) -> Report {
        let open = std::mem::take(&mut self.open);
        self.worst.extend(open.into_values());
        self.keep_the_worst();
        let mut total = Counts::default();
        for counts in self.rows.values() {
            total.would += counts.would;
            total.done += counts.done;
            total.refused += counts.refused;
            total.failed += counts.failed;
        }
        let rows = self.rows.into_iter();
        let mut rows: Vec<Row> = rows.map(|((rule, username), counts)| Row { rule, username, counts }).collect();
        // Stable: those with as much stay in the order of their names.
        rows.sort_by_key(|row| std::cmp::Reverse(row.counts.weight()));
        Report {
            version: 1,
            from_seconds,
            until_seconds,
            damaged_lines: self.damaged_lines,
            rows,
            total,
            worst: self.worst,
        }
    }
}
