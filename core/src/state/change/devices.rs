//! Devices and attachments of the state that is being changed.

use std::collections::BTreeSet;

use super::refusal::Refusal;
use super::state::EditableState;
use crate::state::allocate::{self, AllocateError, AttachRequest};
use crate::state::data::AttachmentState;
use crate::state::inventory::Inventory;
use crate::state::queue::RequestedDevices;

impl EditableState {
    /// Records the GPUs of the machine: new ones are added, lost ones stay.
    pub(in crate::state) fn merge_inventory(&mut self, inventory: &Inventory) {
        inventory.merge_into(&mut self.devices);
        self.devices_known = true;
    }

    /// Attaches an environment to devices with its configured memory; returns the indices of all its devices. Devices
    /// that it keeps get the same amount.
    ///
    /// # Errors
    /// The environment does not exist, or the devices cannot be assigned. The state may have changed: discard it.
    pub fn attach(&mut self, eid: &str, request: &AttachRequest) -> Result<Vec<u32>, Refusal> {
        let memory = self.configuration(eid)?.gpu_memory;
        self.requested = Some(RequestedDevices::new(request, memory));
        let chosen = allocate::choose(&self.devices, eid, memory, request);
        let chosen = chosen.map_err(|error| self.with_users(error))?;
        let renewed: &BTreeSet<u32> = match &request.selection {
            allocate::Selection::Count(_) => &chosen,
            allocate::Selection::Indices(indices) => indices,
        };
        for device in &mut self.devices {
            let own = device.attachments.iter().position(|it| it.eid == eid);
            match (own, chosen.contains(&device.index)) {
                (Some(own), false) => {
                    device.attachments.remove(own);
                }
                (Some(own), true) if renewed.contains(&device.index) => {
                    device.attachments[own].gpu_memory = memory;
                }
                (Some(_), true) | (None, false) => {}
                (None, true) => device.attachments.push(AttachmentState {
                    eid: eid.to_owned(),
                    gpu_memory: memory,
                    attached_timestamp_seconds: Some(self.now_seconds),
                }),
            }
        }
        Ok(chosen.into_iter().collect())
    }

    /// The error with the users of the environments that it names.
    fn with_users(&self, mut error: AllocateError) -> AllocateError {
        if let AllocateError::NotEnough(shortage) = &mut error {
            for holder in &mut shortage.holders {
                holder.uid = self.environment(&holder.eid).map(|it| it.uid);
            }
        }
        error
    }

    /// Detaches an environment from one device, or from all; returns the detached devices.
    ///
    /// # Errors
    /// There is no device with this index.
    pub(in crate::state) fn detach(&mut self, eid: &str, index: Option<u32>) -> Result<Vec<u32>, Refusal> {
        if let Some(index) = index
            && self.devices.iter().all(|device| device.index != index)
        {
            return Err(AllocateError::NoSuchDevice {
                index,
                total: u32::try_from(self.devices.len()).unwrap_or(u32::MAX),
            }
            .into());
        }
        let mut detached = Vec::new();
        for device in &mut self.devices {
            if index.is_none_or(|index| index == device.index) {
                let before = device.attachments.len();
                device.attachments.retain(|it| it.eid != eid);
                if device.attachments.len() < before {
                    detached.push(device.index);
                }
            }
        }
        Ok(detached)
    }

    /// Removes all devices and attachments, and adds the devices of this inventory.
    pub(super) fn reset_devices(&mut self, inventory: &Inventory) {
        self.devices.clear();
        self.merge_inventory(inventory);
    }
}
