//! Detaching a device from an environment.

use std::process;
use std::sync::Arc;

use genv_core::state::{Facts, Refusal, Request, Requester, SeenAttachment, StoreError};

use super::audit::{AuditAction, AuditRecord};
use super::evidence::{refuse_for_good, refuse_for_now};
use super::exempt::user_exemption;
use super::{Cause, Executor};
use crate::config::Mode;
use crate::plan::{AttachmentTarget, Outcome, Target};

/// Why the state was not changed.
#[derive(Debug, thiserror::Error)]
enum NotDetached {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Store(#[from] StoreError),
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
        let outcome = match ready.and_then(|()| self.judged_attachment(target)) {
            Ok(_) if self.policy.mode == Mode::DryRun => Outcome::Would,
            Ok(seen) => self.take_device(target, seen, &mut record),
            Err(outcome) => outcome,
        };
        self.conclude(record, named, &outcome);
        if matches!(outcome, Outcome::Done | Outcome::Would) {
            self.end_with_device(&target.processes, target.gpu, cause);
        }
        outcome
    }

    /// The attachment that the plan judged, with its present uid, if it may be detached. The name of the user is looked up
    /// here, since commands wait while the state is locked.
    pub(super) fn judged_attachment(&mut self, target: &AttachmentTarget) -> Result<SeenAttachment, Outcome> {
        if target.hostname != self.hostname {
            return Err(refuse_for_good("it is on another host"));
        }
        if target.uuid.is_some() && (self.evidence.gpu_uuid)(target.gpu) != target.uuid {
            return Err(refuse_for_now("another GPU is at the index of the device now, or none".to_owned()));
        }
        let state = self.evidence.state()?;
        let environment = state.environments.iter().find(|it| it.eid == target.eid);
        let environment = environment.ok_or_else(|| refuse_for_now("the environment has ended".to_owned()))?;
        let processes = self.evidence.processes.as_mut();
        let owner = processes.owner(environment.uid);
        if processes.username(owner) != target.username {
            return Err(refuse_for_now("the environment is another user's now".to_owned()));
        }
        let AttachmentTarget { gpu: index, attached_seconds, .. } = *target;
        let seen = SeenAttachment { eid: target.eid.clone(), uid: environment.uid, index, attached_seconds };
        seen.check(&state.environments, &state.devices).map_err(|refusal| refuse_for_now(refusal.to_string()))?;
        // `never` protects users, and no user made this attachment.
        if target.unconfirmed {
            return Ok(seen);
        }
        if owner == 0 {
            return Err(refuse_for_good("it is root's"));
        }
        if let Some(why) = user_exemption(owner, &target.username, &self.policy.never) {
            return Err(refuse_for_good(&why));
        }
        Ok(seen)
    }

    fn take_device(&mut self, target: &AttachmentTarget, seen: SeenAttachment, record: &mut AuditRecord) -> Outcome {
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
            Ok(()) => self.change_state(seen),
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

    pub(super) fn change_state(&mut self, seen: SeenAttachment) -> Outcome {
        let request = Request::DetachSeen(seen);
        // The rules of the site permit the enforcer what root may do, also where it runs as another user.
        let requester = Requester { uid: 0, pid: process::id() };
        let detached = self.store.change(&request, &requester, &Facts::default(), |_, _, _| Ok::<_, NotDetached>(()));
        self.log_repairs();
        let Err(error) = detached else {
            return Outcome::Done;
        };
        match &error {
            NotDetached::Refused(_) => {}
            NotDetached::Store(StoreError::Lock(_)) => self.note_blocked(error.to_string()),
            NotDetached::Store(_) => self.unchanged = Some(error.to_string()),
        }
        refuse_for_now(error.to_string())
    }
}
