//! The end of environments.

use std::collections::HashSet;

use crate::state::data::{DeviceState, EnvironmentState};

/// Removes environments without a member, and attachments of environments that do not exist.
pub(in crate::state) fn end_environments(environments: &mut Vec<EnvironmentState>, devices: &mut [DeviceState]) {
    environments.retain(|environment| !environment.members.is_empty() || !environment.kernel_ids.is_empty());
    let eids: HashSet<&str> = environments.iter().map(|it| it.eid.as_str()).collect();
    for device in devices {
        let attachments = &mut device.attachments;
        attachments.retain(|attachment| eids.contains(attachment.eid.as_str()));
    }
}
