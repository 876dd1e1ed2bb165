//! Environments of a scenario.

use genv_core::model::MemoryAmount;
use genv_core::state::{AttachmentState, DeviceState, EnvironmentState, MemberState, State, StateError, StateSource};

use super::Stage;
use crate::definition::Device;

/// Environments of a scenario, or the real ones.
pub(super) struct SimulatedState {
    stage: Stage,
    real: Box<dyn StateSource>,
}

impl SimulatedState {
    pub(super) fn new(stage: Stage, real: Box<dyn StateSource>) -> Self {
        Self { stage, real }
    }
}

impl StateSource for SimulatedState {
    fn read(&mut self) -> Result<State, StateError> {
        let scenario = self.stage.scenario();
        let (host, _) = self.stage.now(&scenario).map_err(|message| StateError { message })?;
        let Some(environments) = host.environments() else {
            return self.real.read();
        };
        let device = |device: &Device| DeviceState {
            index: device.index,
            total_memory: Some(MemoryAmount::from_bytes(device.memory_bytes)),
            attachments: environments
                .iter()
                .filter(|(environment, _)| environment.devices.contains(&device.index))
                .map(|(environment, created)| AttachmentState {
                    eid: environment.eid.clone(),
                    gpu_memory: environment.gpu_memory_bytes.map(MemoryAmount::from_bytes),
                    attached_timestamp_seconds: Some(*created),
                })
                .collect(),
        };
        Ok(State {
            installed: true,
            written_timestamp_seconds: Some(host.timestamp_seconds()),
            devices: host.host().devices.iter().map(device).collect(),
            environments: environments
                .iter()
                .map(|(environment, created)| EnvironmentState {
                    eid: environment.eid.clone(),
                    uid: environment.uid,
                    username: Some(environment.username.clone()),
                    created_timestamp_seconds: Some(*created),
                    name: environment.name.clone(),
                    gpus: environment.gpus,
                    gpu_memory: environment.gpu_memory_bytes.map(MemoryAmount::from_bytes),
                    members: environment.pids.iter().map(|pid| MemberState::from(*pid)).collect(),
                    kernel_ids: environment.kernel_ids.clone(),
                    context_seconds: None,
                })
                .collect(),
            leases: environments
                .iter()
                .filter_map(|(environment, created)| {
                    Some((environment.eid.clone(), created + environment.lease_seconds?))
                })
                .collect(),
            ..State::default()
        })
    }
}
