//! More device memory used by a user's processes than the limit, in environments or not.

use super::{Counted, Finding, by_process, counted, process_unit, user_subject};
use crate::config::{Limits, MemoryPer, Scope};
use crate::plan::Subject;
use crate::plan::facts::{Facts, UseFacts};
use crate::plan::selector::View;
use crate::plan::words;
use genv_core::model::DeviceIndex;

pub(super) fn findings<'a>(view: &View<'_, 'a>, limits: &'a Limits<u64>, per: MemoryPer, scope: Scope) -> Vec<Finding> {
    let facts = view.facts;
    let uses: Vec<&UseFacts> = view.uses().collect();
    // The user of each is known, or the view would not show it.
    let place = |used: &&UseFacts| {
        let process = &facts.processes[used.process];
        (process.user.unwrap_or_default(), process.host)
    };
    // Devices are each by itself on their host.
    let scope = match per {
        MemoryPer::Device => Scope::Host,
        MemoryPer::Total => scope,
    };
    let by_device = |a: &&UseFacts, b: &&UseFacts| per == MemoryPer::Total || a.gpu == b.gpu;
    let mut findings = Vec::new();
    for counted in counted(view, limits, scope, &uses, place) {
        for uses in counted.items.chunk_by(by_device) {
            findings.extend(finding(facts, &counted, uses, per));
        }
    }
    findings
}

fn finding(
    facts: &Facts<'_>,
    counted: &Counted<'_, '_, &UseFacts>,
    uses: &[&UseFacts],
    per: MemoryPer,
) -> Option<Finding> {
    let Counted { user, host, limit, .. } = *counted;
    let used = uses.iter().fold(0_u64, |sum, used| sum.saturating_add(used.memory_bytes));
    if used <= limit.value {
        return None;
    }
    let (subject, place) = match (per, host) {
        (MemoryPer::Device, Some(host)) => {
            let subject = Subject::UserDevice {
                username: facts.users[user].name.to_owned(),
                hostname: facts.hosts[host].hostname.to_owned(),
                index: DeviceIndex::gpu(uses[0].gpu),
            };
            (subject, format!(" on device {}", uses[0].gpu))
        }
        (_, host) => (user_subject(facts, user, host), " in total".to_owned()),
    };
    let excess = used - limit.value;
    let units = by_process(uses).into_iter();
    Some(Finding {
        subject,
        user,
        host,
        found: format!("uses {}{place}", words::memory(used)),
        allowed: format!("{} {limit}", words::memory(limit.value)),
        advice: format!("free {}{place}", words::memory(excess)),
        excess,
        units: units.map(|(process, bytes)| process_unit(facts, process, bytes)).collect(),
        held: None,
    })
}
