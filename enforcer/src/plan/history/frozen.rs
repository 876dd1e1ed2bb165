//! Violations that are not found, and of which it is not known whether they are over.

use super::History;
use super::evidence::unknown;
use super::of_rule::{Entry, OfRule};
use crate::plan::Key;
use crate::plan::facts::Facts;
use crate::plan::selector::View;

/// Violations that wait at once in this way.
pub(in crate::plan) const MOST_FROZEN: usize = 10_000;

/// A violation that was found before, and of which a part of the evidence is not known now: it neither goes on nor ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Frozen {
    /// What it is known by.
    pub key: Key,
    /// Who is responsible; absent if an earlier version saw it.
    pub username: Option<String>,
    /// Unix time at which it was first seen.
    pub since_seconds: f64,
    /// Unix time since which it is not known whether it goes on.
    pub unknown_since_seconds: f64,
    /// What is not known, in one clause.
    pub why: String,
}

impl History {
    /// The violations of a rule that the plan did not find and that are frozen now.
    pub(in crate::plan) fn frozen<'a, 'h>(
        &self,
        facts: &Facts<'a>,
        view: &View<'_, 'a>,
        of_rule: OfRule<'h, impl Iterator<Item = Entry<'h>>>,
        now_seconds: f64,
    ) -> Vec<Frozen> {
        let frozen = of_rule.others().filter_map(|(key, known)| {
            Some(Frozen {
                key: key.clone(),
                username: known.about.username.clone(),
                since_seconds: known.since_seconds,
                unknown_since_seconds: known.unknown_seconds.unwrap_or(now_seconds),
                why: unknown(facts, view, self, &key.subject, known)?,
            })
        });
        frozen.take(MOST_FROZEN).collect()
    }
}
