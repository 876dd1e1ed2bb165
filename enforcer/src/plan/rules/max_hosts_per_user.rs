//! More hosts on which a user holds a device than the limit.

use super::{Finding, Unit, attachments_unit, counted, user_subject};
use crate::config::{Limits, Scope};
use crate::plan::facts::AttachmentId;
use crate::plan::selector::View;
use crate::plan::words::count;

pub(super) fn findings<'a>(view: &View<'_, 'a>, limits: &'a Limits<u64>) -> Vec<Finding> {
    let facts = view.facts;
    let of = |id: AttachmentId| &facts.attachments[id];
    let attachments: Vec<AttachmentId> = view.attachments().collect();
    let mut findings = Vec::new();
    let place = |&id: &AttachmentId| (of(id).user, of(id).host);
    for held in counted(view, limits, Scope::AllHosts, &attachments, place) {
        let (limit, user) = (held.limit, held.user);
        let hosts = held.items.chunk_by(|&a, &b| of(a).host == of(b).host);
        let number = hosts.clone().count() as u64;
        if number <= limit.value {
            continue;
        }
        let excess = number - limit.value;
        let units: Vec<Unit> = hosts.map(|host| attachments_unit(facts, host)).collect();
        findings.push(Finding {
            subject: user_subject(facts, user, held.host),
            user,
            host: held.host,
            found: format!("holds devices on {}", count(number, "host")),
            allowed: format!("{} {limit}", limit.value),
            advice: format!("give back the devices of {}", count(excess, "host")),
            excess,
            units,
            held: None,
        });
    }
    findings
}
