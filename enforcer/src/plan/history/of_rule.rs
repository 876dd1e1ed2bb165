//! The remembered violations of one rule.

use std::cmp::Ordering;
use std::iter::Peekable;

use super::{History, ViolationHistory};
use crate::config::Rule;
use crate::plan::{Key, Subject};

/// A remembered violation.
pub(super) type Entry<'h> = (&'h Key, &'h ViolationHistory);

/// A walk through the remembered violations of one rule, in parallel to the violations that a plan finds. Both are
/// sorted by subject.
pub(in crate::plan) struct OfRule<'h, I: Iterator<Item = Entry<'h>>> {
    entries: Peekable<I>,
    /// Whether the plan found the next entry.
    is_found: bool,
    /// Entries that the plan did not find.
    others: Vec<Entry<'h>>,
}

impl History {
    /// The remembered violations of a rule; none if the rule of this name had another meaning.
    pub(in crate::plan) fn of_rule<'h>(&'h self, rule: &Rule) -> OfRule<'h, impl Iterator<Item = Entry<'h>> + use<'h>> {
        OfRule { entries: self.entries(rule).peekable(), is_found: false, others: Vec::new() }
    }

    /// The same violations, sorted by subject.
    pub(super) fn entries<'h>(&'h self, rule: &Rule) -> impl Iterator<Item = Entry<'h>> + use<'h> {
        // The lowest key of a rule.
        let lowest_key = |rule: String| {
            let subject = Subject::Process { hostname: String::new(), pid: 0, start_time_ticks: 0 };
            Key { rule, subject }
        };
        // `\0` is the lowest character: no other name lies between the two.
        let (name, next) = (rule.name.clone(), format!("{}\0", rule.name));
        let entries = self.violations.range(lowest_key(name)..lowest_key(next));
        entries.take(if self.knows(rule) { usize::MAX } else { 0 })
    }
}

impl<'h, I: Iterator<Item = Entry<'h>>> OfRule<'h, I> {
    /// The remembered violation of a subject. The caller asks for subjects in ascending order; it may repeat a subject.
    pub(in crate::plan) fn find(&mut self, subject: &Subject) -> Option<&'h ViolationHistory> {
        while let Some(&entry) = self.entries.peek() {
            let (key, known) = entry;
            match key.subject.cmp(subject) {
                Ordering::Less => {
                    self.entries.next();
                    if !std::mem::take(&mut self.is_found) {
                        self.others.push(entry);
                    }
                }
                Ordering::Equal => {
                    self.is_found = true;
                    return Some(known);
                }
                Ordering::Greater => return None,
            }
        }
        None
    }

    /// All remembered violations that the plan did not find.
    pub(super) fn others(self) -> impl Iterator<Item = Entry<'h>> {
        let rest = self.entries.skip(usize::from(self.is_found));
        self.others.into_iter().chain(rest)
    }
}
