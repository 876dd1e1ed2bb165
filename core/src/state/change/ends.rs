//! The end of environments.

use std::collections::HashSet;

use crate::state::data::{DeviceState, EnvironmentState, KnownEnvironments, LostMember};

/// Removes environments without a member, and attachments of environments that do not exist. An environment that a
/// damaged file lost keeps its attachments while one of its members may live, and while it is known: a command that can
/// read the processes of its user decides on it.
pub(in crate::state) fn end_environments(
    environments: &mut Vec<EnvironmentState>,
    devices: &mut [DeviceState],
    lost: &[LostMember],
    known: &KnownEnvironments,
) {
    let listed: HashSet<String> = environments.iter().map(|it| it.eid.clone()).collect();
    let missing = known.keys().filter(|eid| !listed.contains(*eid));
    environments.retain(|environment| !environment.members.is_empty() || !environment.kernel_ids.is_empty());
    let lost = lost.iter().map(|it| it.eid.as_str());
    let eids: HashSet<&str> =
        environments.iter().map(|it| it.eid.as_str()).chain(lost).chain(missing.map(String::as_str)).collect();
    for device in devices {
        let attachments = &mut device.attachments;
        attachments.retain(|attachment| eids.contains(attachment.eid.as_str()));
    }
}
