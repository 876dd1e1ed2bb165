//! The kinds that compare a number of things with a limit.

use super::finding::{Finding, SharedFact, Unit, ViolationFact, user_subject};
use super::units::attachments_unit;
use super::{Limits, Scope};
use crate::plan::facts::{AttachmentFacts, AttachmentId, Facts, HostId, UserId};
use crate::plan::limits::{Applied, OwnedLimit};
use crate::plan::selector::View;

/// Items that count together, and their limit.
pub(super) struct Counted<'i, 'a, T> {
    pub(super) items: &'i [T],
    pub(super) user: UserId,
    /// Absent where all hosts count together.
    pub(super) host: Option<HostId>,
    pub(super) limit: Applied<'a>,
}

/// Groups items, sorted by user and host, that count together and have a limit. Where all hosts count together, the items
/// on a host with a limit of its own also form a group.
pub(super) fn counted<'i, 'a, T>(
    view: &View<'_, 'a>,
    limits: &Limits<u64>,
    scope: Scope,
    items: &'i [T],
    place: impl Fn(&T) -> (UserId, HostId),
) -> Vec<Counted<'i, 'a, T>> {
    let mut all = Vec::new();
    if scope == Scope::AllHosts {
        for items in items.chunk_by(|a, b| place(a).0 == place(b).0) {
            let (user, _) = place(&items[0]);
            all.extend(view.limit(user, None).map(|limit| Counted { items, user, host: None, limit }));
        }
        if limits.overrides.is_empty() {
            return all;
        }
    }
    for items in items.chunk_by(|a, b| place(a) == place(b)) {
        let (user, host) = place(&items[0]);
        let limit = view.limit(user, Some(host));
        let limit = limit.filter(|limit| scope == Scope::Host || limit.host.is_some());
        all.extend(limit.map(|limit| Counted { items, user, host: Some(host), limit }));
    }
    all
}

/// A finding, if the units, which count one each, are more than the limit. `fact` gets their number and the limit.
pub(super) fn too_many<T, F: ViolationFact>(
    facts: &Facts<'_>,
    counted: &Counted<'_, '_, T>,
    units: Vec<Unit>,
    fact: impl FnOnce(u64, OwnedLimit) -> F,
) -> Option<Finding> {
    let Counted { user, host, limit, .. } = *counted;
    let number = units.len() as u64;
    if number <= limit.value {
        return None;
    }
    Some(Finding {
        subject: user_subject(facts, user, host),
        user,
        host,
        fact: SharedFact::new(fact(number, limit.to_owned())),
        excess: number - limit.value,
        units,
        held: None,
    })
}

/// The findings of users who hold more than the limit. Neighbouring attachments of a user that are the `same` count as one.
pub(super) fn too_many_attachments<F: ViolationFact>(
    view: &View<'_, '_>,
    limits: &Limits<u64>,
    scope: Scope,
    same: impl Fn(&AttachmentFacts, &AttachmentFacts) -> bool,
    fact: impl Fn(u64, OwnedLimit) -> F,
) -> Vec<Finding> {
    let facts = view.facts;
    let of = |id: AttachmentId| &facts.attachments[id];
    let attachments: Vec<AttachmentId> = view.attachments().collect();
    let place = |&id: &AttachmentId| (of(id).user, of(id).host);
    let counted = counted(view, limits, scope, &attachments, place);
    let findings = counted.iter().filter_map(|held| {
        let is_kept = |number: usize| number as u64 <= held.limit.value;
        let groups = || held.items.chunk_by(|&a, &b| same(of(a), of(b)));
        // The groups are never more than the attachments, which are counted faster.
        if is_kept(held.items.len()) || is_kept(groups().count()) {
            return None;
        }
        let units = groups().map(|group| attachments_unit(facts, group));
        too_many(facts, held, units.collect(), &fact)
    });
    findings.collect()
}
