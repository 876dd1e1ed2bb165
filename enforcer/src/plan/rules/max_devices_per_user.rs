//! More devices attached to a user's environments than the limit.
//!
//! A device counts once, however many of the user's environments share it, and is taken from all of them.

use super::{Finding, attachments_unit, counted, too_many};
use crate::config::{Limits, Scope};
use crate::plan::facts::AttachmentId;
use crate::plan::selector::View;
use crate::plan::words::count;

pub(super) fn findings<'a>(view: &View<'_, 'a>, limits: &'a Limits<u64>, scope: Scope) -> Vec<Finding> {
    let facts = view.facts;
    let of = |id: AttachmentId| &facts.attachments[id];
    let attachments: Vec<AttachmentId> = view.attachments().collect();
    let same_device = |&a: &AttachmentId, &b: &AttachmentId| (of(a).host, of(a).gpu) == (of(b).host, of(b).gpu);
    let place = |&id: &AttachmentId| (of(id).user, of(id).host);
    let counted = counted(view, limits, scope, &attachments, place);
    let findings = counted.iter().filter_map(|held| {
        let devices = || held.items.chunk_by(same_device);
        if devices().count() as u64 <= held.limit.value {
            return None;
        }
        let units = devices().map(|device| attachments_unit(facts, device));
        too_many(facts, held, units.collect(), |number, excess| {
            (format!("holds {}", count(number, "device")), format!("detach {}", count(excess, "device")))
        })
    });
    findings.collect()
}
