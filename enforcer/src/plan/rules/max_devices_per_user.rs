//! More devices attached to a user's environments than the limit.
//!
//! A device counts once, however many of the user's environments share it, and is taken from all of them.

use super::{Finding, Unit, attachments_unit};
use crate::config::{Limits, Scope};
use crate::plan::Subject;
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
    let counted_together = |&a: &AttachmentId, &b: &AttachmentId| {
        of(a).user == of(b).user && (scope == Scope::AllHosts || of(a).host == of(b).host)
    };
    let mut findings = Vec::new();
    for held in attachments.chunk_by(counted_together) {
        let first = of(held[0]);
        let host = (scope == Scope::Host).then_some(first.host);
        let Some(limit) = view.limit(limits, first.user, host) else {
            continue;
        };
        let same_device = |&a: &AttachmentId, &b: &AttachmentId| {
            (of(a).host, of(a).gpu) == (of(b).host, of(b).gpu)
        };
        let devices = held.chunk_by(same_device);
        let number = devices.clone().count() as u64;
        if number <= limit.value {
            continue;
        }
        let excess = number - limit.value;
        let units: Vec<Unit> = devices
            .map(|device| attachments_unit(facts, device))
            .collect();
        findings.push(Finding {
            subject: Subject::User {
                username: facts.users[first.user].name.to_owned(),
                hostname: host.map(|host| facts.hosts[host].hostname.to_owned()),
            },
            user: first.user,
            host,
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
