//! The remembered violations of one rule.

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
        // The first possible subject.
        let first = Subject::Process { hostname: String::new(), pid: 0, start_time_ticks: 0 };
        let first = Key { rule: rule.name.clone(), subject: first };
        let name = rule.name.clone();
        let entries = self.violations.range(first..);
        let entries = entries.take_while(move |(key, _)| key.rule == name);
        entries.take(if self.knows(rule) { usize::MAX } else { 0 })
    }
}

impl<'h, I: Iterator<Item = Entry<'h>>> OfRule<'h, I> {
    /// The remembered violation of a subject. The caller asks for subjects in ascending order; it may repeat a subject.
    pub(in crate::plan) fn find(&mut self, subject: &Subject) -> Option<&'h ViolationHistory> {
        while let Some(entry) = self.entries.next_if(|(key, _)| key.subject < *subject) {
            if !std::mem::take(&mut self.is_found) {
                self.others.push(entry);
            }
        }
        let (_, known) = self.entries.peek().filter(|(key, _)| key.subject == *subject)?;
        self.is_found = true;
        Some(*known)
    }

    /// All remembered violations that the plan did not find.
    pub(super) fn others(self) -> impl Iterator<Item = Entry<'h>> {
        let rest = self.entries.skip(usize::from(self.is_found));
        self.others.into_iter().chain(rest)
    }
}
