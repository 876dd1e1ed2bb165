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
        let environment = &facts.environments[attachment.environment];
        // Another user may have reserved next to nothing.
        if attachment.unconfirmed || environment.moved {
            continue;
        }
        let environment = environment.environment;
        // As genv 1.4.3: what was configured after attaching counts where the attachment has no amount.
        let Some(capacity) = attachment.memory_bytes.or(environment.gpu_memory_bytes) else {
            continue;
        };
        let uses = || facts.uses_on(attachment.environment, attachment.gpu);
        let used = uses().fold(0_u64, |sum, used| sum.saturating_add(used.memory_bytes));
        if used <= capacity {
            continue;
        }
        let units = by_process(&uses().collect::<Vec<_>>())
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
                "free {} on device {}, attach it with more memory, or end what uses it",
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
