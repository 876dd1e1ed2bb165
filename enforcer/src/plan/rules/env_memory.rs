//! More memory on a device than the environment's attachment has.

use super::{Finding, by_process, process_unit};
use crate::plan::Subject;
use crate::plan::selector::View;
use crate::plan::words;
use genv_core::model::DeviceIndex;

pub(super) fn findings(view: &View<'_, '_>) -> Vec<Finding> {
    let facts = view.facts;
    let mut findings = Vec::new();
    for id in view.attachments() {
        let attachment = &facts.attachments[id];
        // Another user may have reserved next to nothing.
        if attachment.unconfirmed {
            continue;
        }
        let environment = facts.environments[attachment.environment].environment;
        // As genv 1.4.3: what was configured after attaching counts where the attachment has no amount.
        let Some(capacity) = attachment.memory_bytes.or(environment.gpu_memory_bytes) else {
            continue;
        };
        let uses: Vec<_> = facts
            .uses_of(attachment.environment)
            .filter(|used| used.gpu == attachment.gpu)
            .collect();
        let processes = by_process(&uses);
        let used = processes
            .iter()
            .fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        if used <= capacity {
            continue;
        }
        let units = processes
            .into_iter()
            .map(|(process, bytes)| process_unit(facts, process, bytes));
        findings.push(Finding {
            subject: Subject::EnvironmentDevice {
                hostname: facts.hosts[attachment.host].hostname.to_owned(),
                eid: environment.eid.clone(),
                index: DeviceIndex::gpu(attachment.gpu),
            },
            user: attachment.user,
            host: Some(attachment.host),
            found: format!(
                "environment {} uses {} on device {}",
                words::name(&environment.eid),
                words::memory(used),
                attachment.gpu
            ),
            allowed: format!("{} that it reserved there", words::memory(capacity)),
            advice: format!(
                "free {} on device {}, or attach it with more memory",
                words::memory(used - capacity),
                attachment.gpu
            ),
            excess: used - capacity,
            units: units.collect(),
            held: None,
        });
    }
    findings
}
