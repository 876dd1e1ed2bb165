//! Restoring an environment whose record was lost with a damaged file.
//!
//! If a recorded member lives and a process of the same user names the environment, a command of this user or of root,
//! or the enforcer, writes the record again. Other commands cannot read that user's environs, and change nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::data::{LostMember, MemberState};
use super::jobs::{processes_of, reads_environs_of};
use super::{EnvironmentState, State, change};
use crate::proc::{Claim, Named, ProcessRead, ProcessRequest, ProcessSource, ProcessTable};

/// An environment, restored by the evidence of its processes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Restored {
    pub(super) environment: EnvironmentState,
    /// Devices that are visible to a process which names the environment.
    visible: BTreeSet<u32>,
}

/// The lost environments that this program may restore; `table` has their members.
pub(super) fn find(state: &State, table: &ProcessTable, processes: &mut dyn ProcessSource) -> Vec<Restored> {
    let mut lost: BTreeMap<&str, Vec<&LostMember>> = BTreeMap::new();
    for member in &state.recorded.lost {
        lost.entry(member.eid.as_str()).or_default().push(member);
    }
    let mut claims: BTreeMap<u32, BTreeMap<String, Vec<u32>>> = BTreeMap::new();
    let restore = |(eid, lost): (&str, Vec<&LostMember>)| {
        let living = |member: &&LostMember| {
            let process = member.process;
            let found = table.living(process.pid).filter(|_| table.is_of(member.pid_namespace))?;
            let is_same = found.start_time_ticks == process.start_time_ticks;
            let is_it = MemberState::found(process, member.pid_namespace, member.is_job);
            Some((is_it, table.owner(found.uid?))).filter(|_| is_same)
        };
        let (members, users): (Vec<MemberState>, BTreeSet<u32>) = lost.iter().filter_map(living).unzip();
        // An environment with members of several users is not restored.
        let uid = users.first().copied().filter(|_| users.len() == 1)?;
        if !reads_environs_of(uid) {
            return None;
        }
        let claims = claims.entry(uid).or_insert_with(|| claims_of(uid, processes));
        let visible = visible_to(claims.get(eid)?)?;
        let username = processes.username(uid);
        let known = state.recorded.known.get(eid);
        #[expect(clippy::cast_precision_loss, reason = "files end with the year 9999")]
        let created = lost.first()?.created_seconds.map(|seconds| seconds as f64);
        let mut environment = EnvironmentState {
            eid: eid.to_owned(),
            uid,
            username: Some(username).filter(|name| *name != format!("uid:{uid}")),
            created_timestamp_seconds: created,
            members,
            ..EnvironmentState::default()
        };
        if let Some(known) = known.filter(|known| known.is_of(&environment)) {
            environment.name.clone_from(&known.environment.name);
            environment.gpus = known.environment.gpus;
            environment.gpu_memory = known.environment.gpu_memory;
        }
        Some(Restored { environment, visible })
    };
    lost.into_iter().filter_map(restore).collect()
}

/// The environments that processes of a user name, each with the pids: a shell comes before its jobs, which may see fewer
/// devices.
pub(super) fn claims_of(uid: u32, processes: &mut dyn ProcessSource) -> BTreeMap<String, Vec<u32>> {
    let table =
        processes.read(&ProcessRequest { processes: processes_of(uid).unwrap_or_default(), members: Vec::new() });
    let mut claims: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (&pid, read) in &table.processes {
        if let ProcessRead::Present(facts) = read
            && let Claim::Named(eid) = &facts.claim
            && table.user(facts) == Some(uid)
        {
            claims.entry(eid.clone()).or_default().push(pid);
        }
    }
    claims.values_mut().for_each(|pids| pids.sort_unstable());
    claims
}

/// The devices that are visible to the first of these processes which sees any; absent if none can be read in time.
pub(super) fn visible_to(pids: &[u32]) -> Option<BTreeSet<u32>> {
    let mut all = pids.iter().filter_map(|pid| Some(Named::by(*pid)?.gpus)).peekable();
    all.peek()?;
    Some(all.find(|it| !it.is_empty()).unwrap_or_default())
}

/// Adds the restored environments. One without a device gets the free devices that are visible to its process.
pub(super) fn apply(state: &mut State, restored: Vec<Restored>, now_seconds: f64) {
    for Restored { environment, visible } in restored {
        let eid = environment.eid.clone();
        let is_lost = state.recorded.lost.iter().any(|it| it.eid == eid);
        if !is_lost || state.environments.iter().any(|it| it.eid == eid) {
            continue;
        }
        state.recorded.lost.retain(|it| it.eid != eid);
        if state.attached(&eid).is_empty() {
            change::attach_free(&mut state.devices, &environment, &visible, now_seconds);
        }
        state.environments.push(environment);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    #[test]
    fn devices_are_those_of_the_first_process_that_sees_any() {
        let sees = |devices| -> Child {
            Command::new("sleep").arg("1000").env("CUDA_VISIBLE_DEVICES", devices).spawn().unwrap()
        };
        let mut all = ["", "1,2", "3"].map(sees);
        let pids = all.each_ref().map(Child::id);
        let visible = [&pids[..], &pids[..1], &[]].map(visible_to);
        for process in &mut all {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        assert_eq!(visible, [Some([1, 2].into()), Some(BTreeSet::new()), None]);
    }
}
