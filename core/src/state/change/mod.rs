//! Changes of the state: [`apply`] decides what a request changes, without files, clock, driver and processes.

mod assign;
mod devices;
mod ends;
mod permission;
mod refusal;
mod request;
mod state;
#[cfg(test)]
pub(in crate::state) mod tests;

use assign::{Asked, assign};
pub(in crate::state) use ends::end_environments;
use permission::check_owner_or_root;
pub use refusal::Refusal;
pub use request::{
    Attached, ConfigurationChange, Enter, Facts, Founder, Left, Permission, Policy, Reply, Request, Requester,
    SeenAttachment, Wish,
};
pub use state::EditableState;

use super::data::{LONGEST_LEASE, MemberId};

/// The state after a request, and the reply. Only requests for devices use `facts`.
///
/// # Errors
/// The request is refused.
pub fn apply(
    state: &EditableState,
    request: &Request,
    requester: &Requester,
    facts: &Facts,
    _policy: &Policy,
    now_seconds: f64,
) -> Result<(EditableState, Reply), Refusal> {
    let uid = requester.uid;
    let mut after = EditableState { uid, now_seconds, ..state.clone() };
    let reply = match request {
        Request::Enter(enter) => return assign(after, Asked::Enter(enter), *requester, facts),
        Request::Attach { eid, permission, wish } => {
            let asked = Asked::Attach { eid, permission: *permission, wish };
            return assign(after, asked, *requester, facts);
        }
        Request::Join { eid, member, founder } => {
            let founder = match founder {
                None => {
                    after.check_own(eid, uid, "join")?;
                    Founder { uid, username: None }
                }
                Some(founder) => {
                    after.check_may_change(eid, uid, "join")?;
                    if after.environment(eid).is_none() {
                        check_owner_or_root(founder.uid, uid, || "activate an environment".to_owned())?;
                    }
                    founder.clone()
                }
            };
            after.activate(eid, founder.uid, founder.username.as_deref(), member);
            Reply::Done
        }
        Request::Detach { eid, permission, indices } => {
            after.check(*permission, eid, uid, "detach")?;
            let mut detached = Vec::new();
            for index in indices {
                detached.extend(after.detach(eid, Some(*index))?);
            }
            if indices.is_empty() {
                detached = after.detach(eid, None)?;
            }
            detached.sort_unstable();
            Reply::Detached(detached)
        }
        Request::DetachSeen(seen) => {
            after.check_may_change(&seen.eid, uid, "detach")?;
            seen.check(&after.environments, &after.devices)?;
            Reply::Detached(after.detach(&seen.eid, Some(seen.index))?)
        }
        Request::Configure { eid, permission, change } => {
            after.check(*permission, eid, uid, "configure")?;
            let known = after.configuration(eid)?;
            after.configure(eid, change.of(known))?;
            Reply::Done
        }
        Request::Extend { eid, more } => {
            after.check_own(eid, uid, "extend")?;
            let left = after.extend_lease(eid, *more);
            if left > LONGEST_LEASE {
                return Err(Refusal::LeaseTooLong { left });
            }
            Reply::Done
        }
        Request::HandOver { eid, from, to } => {
            after.check_may_enter(eid, uid)?;
            after.activate(eid, uid, None, &MemberId::Process(*to));
            after.leave(eid, &MemberId::Process(*from));
            Reply::Done
        }
        Request::Leave { eid: Some(eid), member, as_shell } => {
            after.check_may_change(eid, uid, "leave")?;
            let was_there = after.environment(eid).is_some();
            match member {
                MemberId::Process(pid) if *as_shell => after.leave_as_shell(eid, *pid),
                _ => drop(after.leave(eid, member)),
            }
            Reply::Left(match after.environment(eid) {
                Some(environment) => Left::Continues(environment.clone()),
                None if was_there => Left::Ends,
                None => Left::AlreadyEnded,
            })
        }
        Request::Leave { eid: None, member, .. } => {
            for environment in after.environments().iter().filter(|it| it.has(member)) {
                after.check_may_change(&environment.eid, uid, "leave")?;
            }
            after.deactivate(member);
            Reply::Done
        }
        Request::Withdraw => {
            after.leave_queue(requester.pid);
            Reply::Done
        }
        Request::ResetEnvironments => {
            after.check_reset_environments(uid)?;
            after.reset_environments();
            Reply::Done
        }
        Request::RecordDevices(inventory) => {
            after.merge_inventory(inventory);
            Reply::Done
        }
        Request::ResetDevices(inventory) => {
            after.check_reset_devices(uid)?;
            after.reset_devices(inventory);
            Reply::Done
        }
    };
    Ok((after, reply))
}
