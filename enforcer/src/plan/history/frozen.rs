//! Violations that are not found, and of which it is not known whether they are over.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::History;
use super::evidence::unknown;
use crate::plan::facts::Facts;
use crate::plan::selector::View;
use crate::plan::{Key, Violation};

/// Violations that wait at once in this way.
const MOST_FROZEN: usize = 10_000;

/// A violation that was found before, and of which a part of the evidence is not known now: it neither goes on nor ends.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    /// The violations that are frozen now, besides those that were found.
    pub(in crate::plan) fn frozen<'a>(
        &self,
        facts: &Facts<'a>,
        views: &BTreeMap<&str, View<'_, 'a>>,
        found: &[Violation],
        now_seconds: f64,
    ) -> Vec<Frozen> {
        let found: BTreeSet<&Key> = found.iter().map(|violation| &violation.key).collect();
        let others = self
            .violations
            .iter()
            .filter(|(key, _)| !found.contains(key));
        let frozen = others.filter_map(|(key, known)| {
            let view = views.get(key.rule.as_str())?;
            let view = self.knows(view.rule).then_some(view)?;
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
