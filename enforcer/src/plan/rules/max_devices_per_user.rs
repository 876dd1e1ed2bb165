//! More devices attached to a user's environments than the limit.
//!
//! A device counts once, however many of the user's environments share it, and is taken from all of them.

use super::{Finding, Unit, attachments_unit, counted, user_subject};
use crate::config::{Limits, Scope};
use crate::plan::facts::AttachmentId;
use crate::plan::selector::View;
use crate::plan::words::count;

pub(super) fn findings<'a>(
    view: &View<'_, 'a>,
    limits: &'a Limits<u64>,
    scope: Scope,
) -> Vec<Finding> {
    let facts = view.facts;
    let of = |id: AttachmentId| &facts.attachments[id];
    let attachments: Vec<AttachmentId> = view.attachments().collect();
    let same_device =
        |&a: &AttachmentId, &b: &AttachmentId| (of(a).host, of(a).gpu) == (of(b).host, of(b).gpu);
    let mut findings = Vec::new();
    let place = |&id: &AttachmentId| (of(id).user, of(id).host);
    for held in counted(view, limits, scope, &attachments, place) {
        let limit = held.limit;
        let devices = held.items.chunk_by(same_device);
        let number = devices.clone().count() as u64;
        if number <= limit.value {
            continue;
        }
        let excess = number - limit.value;
        let units: Vec<Unit> = devices
            .map(|device| attachments_unit(facts, device))
            .collect();
        findings.push(Finding {
            subject: user_subject(facts, held.user, held.host),
            user: held.user,
            host: held.host,
            found: format!("holds {}", count(number, "device")),
            allowed: format!("{} {limit}", limit.value),
            advice: format!("detach {}", count(excess, "device")),
            excess,
            units,
            held: None,
        });
    }
    findings
}
