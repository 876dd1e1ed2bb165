//! More device memory used by a user's processes than the limit, in environments or not.

use super::{Finding, by_process, process_unit};
use crate::config::{Limits, MemoryPer, Scope};
use crate::plan::Subject;
use crate::plan::facts::UseFacts;
use crate::plan::selector::View;
use crate::plan::words;
use genv_core::model::DeviceIndex;

pub(super) fn findings<'a>(
    view: &View<'_, 'a>,
    limits: &'a Limits<u64>,
    per: MemoryPer,
    scope: Scope,
) -> Vec<Finding> {
    let facts = view.facts;
    let uses: Vec<&UseFacts> = view.uses().collect();
    // Devices are each by itself on their host.
    let all_hosts = per == MemoryPer::Total && scope == Scope::AllHosts;
    let of = |used: &UseFacts| &facts.processes[used.process];
    let counted_together = |a: &&UseFacts, b: &&UseFacts| {
        of(a).user == of(b).user
            && (all_hosts || of(a).host == of(b).host)
            && (per == MemoryPer::Total || a.gpu == b.gpu)
    };
    let mut findings = Vec::new();
    for uses in uses.chunk_by(counted_together) {
        let first = of(uses[0]);
        let Some(user) = first.user else { continue };
        let host = (!all_hosts).then_some(first.host);
        let Some(limit) = view.limit(limits, user, host) else {
            continue;
        };
        let used = uses
            .iter()
            .fold(0_u64, |sum, used| sum.saturating_add(used.memory_bytes));
        if used <= limit.value {
            continue;
        }
        let username = facts.users[user].name.to_owned();
        let hostname = host.map(|host| facts.hosts[host].hostname.to_owned());
        let (subject, place) = match (per, hostname) {
            (MemoryPer::Device, Some(hostname)) => {
                let index = DeviceIndex::gpu(uses[0].gpu);
                let place = format!(" on device {}", uses[0].gpu);
                (
                    Subject::UserDevice {
                        username,
                        hostname,
                        index,
                    },
                    place,
                )
            }
            (_, hostname) => (Subject::User { username, hostname }, " in total".to_owned()),
        };
        let excess = used - limit.value;
        let units = by_process(uses).into_iter();
        findings.push(Finding {
            subject,
            user,
            host,
            found: format!("uses {}{place}", words::memory(used)),
            allowed: format!("{} {limit}", words::memory(limit.value)),
            advice: format!("free {}{place}", words::memory(excess)),
            excess,
            units: units
                .map(|(process, bytes)| process_unit(facts, process, bytes))
                .collect(),
            held: None,
        });
    }
    findings
}
