//! Detaching a device from an environment.

use std::sync::Arc;

use genv_core::proc::ProcessSource;
use genv_core::state::{DeviceState, EnvironmentState, StoreError};

use super::audit::{AuditAction, AuditRecord};
use super::evidence::{refuse_for_good, refuse_for_now};
use super::exempt::user_exemption;
use super::{Cause, Executor};
use crate::config::Mode;
use crate::plan::{AttachmentTarget, Outcome, Target};

/// Why the state was not changed.
enum NotDetached {
    Refused(Outcome),
    Store(StoreError),
}

impl From<StoreError> for NotDetached {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Executor {
    /// Detaches a device if environment and attachment are still those of the plan, then ends the processes of the target. Returns
    /// the outcome of the detachment; the audit has the outcome of each process.
    pub(super) fn detach(&mut self, target: &Arc<AttachmentTarget>, cause: &Cause<'_>) -> Outcome {
        let named = Target::Attachment(Arc::clone(target));
        let mut record = self.record(AuditAction::Detach, &named, cause);
        let ready = match target.unconfirmed {
            true => self.pace_taking_back(),
            false => self.pace(&target.username),
        };
        let outcome = match ready.and_then(|()| self.may_detach(target)) {
            Ok(()) if self.policy.mode == Mode::DryRun => Outcome::Would,
            Ok(()) => self.take_device(target, &mut record),
            Err(outcome) => outcome,
        };
        self.conclude(record, named, &outcome);
        if matches!(outcome, Outcome::Done | Outcome::Would) {
            self.end_with_device(&target.processes, target.gpu, cause);
        }
        outcome
    }

    fn may_detach(&mut self, target: &AttachmentTarget) -> Result<(), Outcome> {
        if target.hostname != self.hostname {
            return Err(refuse_for_good("it is on another host"));
        }
        if target.uuid.is_some() && (self.evidence.gpu_uuid)(target.gpu) != target.uuid {
            return Err(refuse_for_now("another GPU is at the index of the device now, or none".to_owned()));
        }
        let state = self.evidence.state()?;
        let processes = self.evidence.processes.as_mut();
        let uid = still_attached(target, &state.environments, &state.devices, processes)?;
        // `never` protects users, and no user made this attachment.
        if target.unconfirmed {
            return Ok(());
        }
        if uid == 0 {
            return Err(refuse_for_good("it is root's"));
        }
        if let Some(why) = user_exemption(uid, &target.username, &self.policy.never) {
            return Err(refuse_for_good(&why));
        }
        Ok(())
    }

    fn take_device(&mut self, target: &AttachmentTarget, record: &mut AuditRecord) -> Outcome {
        let prepared = self.check_breaker().and_then(|()| self.check_state_lock());
        let prepared = prepared.and_then(|()| self.intend(record));
        let counted = prepared.and_then(|()| match target.unconfirmed {
            true => {
                self.count_taken_back();
                Ok(())
            }
            false => self.count_act(&target.username),
        });
        let outcome = match counted {
            Ok(()) => self.change_state(target),
            Err(outcome) => return outcome,
        };
        if outcome != Outcome::Done {
            match target.unconfirmed {
                true => self.taken_back.uncount(),
                false => self.uncount_acts(&[&target.username]),
            }
        }
        outcome
    }

    fn change_state(&mut self, target: &AttachmentTarget) -> Outcome {
        let processes = self.evidence.processes.as_mut();
        let detached = self.store.update(|state| {
            still_attached(target, state.environments(), state.devices(), processes).map_err(NotDetached::Refused)?;
            let detached = state.detach(&target.eid, Some(target.gpu));
            detached.map_err(|error| NotDetached::Refused(refuse_for_now(error.to_string())))
        });
        self.log_repairs();
        match detached {
            Ok(_) => Outcome::Done,
            Err(NotDetached::Refused(outcome)) => outcome,
            Err(NotDetached::Store(error)) => {
                match &error {
                    StoreError::Lock(_) => self.note_blocked(error.to_string()),
                    _ => self.unchanged = Some(error.to_string()),
                }
                refuse_for_now(error.to_string())
            }
        }
    }
}

/// The uid of the environment's owner, if environment and attachment are still those of the plan.
fn still_attached(
    target: &AttachmentTarget,
    environments: &[EnvironmentState],
    devices: &[DeviceState],
    processes: &mut dyn ProcessSource,
) -> Result<u32, Outcome> {
    let environment = environments.iter().find(|it| it.eid == target.eid);
    let Some(environment) = environment else {
        return Err(refuse_for_now("the environment has ended".to_owned()));
    };
    let owner = processes.owner(environment.uid);
    if processes.username(owner) != target.username {
        return Err(refuse_for_now("the environment is another user's now".to_owned()));
    }
    let attachment = devices
        .iter()
        .filter(|device| device.index == target.gpu)
        .flat_map(|device| &device.attachments)
        .find(|attachment| attachment.eid == target.eid);
    let Some(attachment) = attachment else {
        return Err(refuse_for_now("the environment is not attached to it any more".to_owned()));
    };
    #[expect(clippy::cast_possible_truncation, reason = "clocks show less than the year 9999")]
    let attached = attachment.attached_timestamp_seconds.map(|seconds| seconds.floor() as i64);
    match (attached, target.attached_seconds) {
        (Some(now), Some(then)) if now != then => {
            Err(refuse_for_now("the environment was attached to it anew since".to_owned()))
        }
        _ => Ok(owner),
    }
}
