//! More hosts on which a user holds a device than the limit.

use super::{Finding, attachments_unit, counted, too_many};
use crate::config::{Limits, Scope};
use crate::plan::facts::AttachmentId;
use crate::plan::selector::View;
use crate::plan::words::count;

pub(super) fn findings<'a>(view: &View<'_, 'a>, limits: &'a Limits<u64>) -> Vec<Finding> {
    let facts = view.facts;
    let of = |id: AttachmentId| &facts.attachments[id];
    let attachments: Vec<AttachmentId> = view.attachments().collect();
    let place = |&id: &AttachmentId| (of(id).user, of(id).host);
    let counted = counted(view, limits, Scope::AllHosts, &attachments, place);
    let findings = counted.iter().filter_map(|held| {
        let hosts = || held.items.chunk_by(|&a, &b| of(a).host == of(b).host);
        if hosts().count() as u64 <= held.limit.value {
            return None;
        }
        let units = hosts().map(|host| attachments_unit(facts, host));
        too_many(facts, held, units.collect(), |number, excess| {
            (
                format!("holds devices on {}", count(number, "host")),
                format!("give back the devices of {}", count(excess, "host")),
            )
        })
    });
    findings.collect()
}
