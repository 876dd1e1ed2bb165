//! Listed processes of other users that were not put into the environment by their own user.
//!
//! Every user may list any process in a record: a listed daemon would keep the record and its devices for ever. The
//! kernel shows the user of each process. Another user's process may still be a true member: a record may carry a wrong
//! uid that a third user wrote, and root may put any process into an environment.

use std::collections::HashMap;
use std::path::Path;

use super::{EnvironmentState, read_confirmed};
use crate::model::{Confirmed, ConfirmedChange};
use crate::proc::{ProcessFacts, ProcessRead, ProcessRequest, ProcessSource, ProcessTable, UserNamespace};

/// The first uid of ordinary users (`UID_MIN` of login.defs(5)). Lower uids are system users, who, except root, use no
/// environment of genv 1.x.
const FIRST_USER: u32 = 1000;
/// The uid that owns no process of a user.
const NOBODY: u32 = 65_534;

/// Marks listed processes that are no members. An unknown fact excludes no process: the pid may be reused, the real and
/// effective users may differ, the process may run in a container, or uids may stand for other users here.
pub(super) fn mark(
    environments: &mut [EnvironmentState],
    table: &ProcessTable,
    processes: &mut dyn ProcessSource,
    directory: &Path,
) {
    if UserNamespace::own().translates {
        return;
    }
    let of_other = |uid: u32, pid: u32| {
        let found = table.living(pid).and_then(|found| found.uid);
        found.is_some_and(|it| table.owner(it) != uid)
    };
    let listed = environments.iter().flat_map(|it| it.pids().filter(|pid| of_other(it.uid, *pid)));
    let mut pids: Vec<u32> = listed.collect();
    if pids.is_empty() {
        return;
    }
    pids.sort_unstable();
    pids.dedup();
    let read = processes.read(&ProcessRequest { processes: pids, members: Vec::new() });
    let user = |pid: u32| match read.processes.get(&pid) {
        Some(ProcessRead::Present(facts)) if is_listed_process(facts, pid, table) => read.user(facts),
        _ => None,
    };
    let mut confirmed: HashMap<u32, Vec<Confirmed>> = HashMap::new();
    for environment in environments {
        let owner = processes.owner(environment.uid);
        for member in environment.members.iter_mut().filter(|it| of_other(environment.uid, it.pid)) {
            let pid = member.pid;
            let Some(user) = user(pid).filter(|user| *user != owner) else {
                continue;
            };
            let mut joined = |user: u32| {
                let changes = confirmed.entry(user).or_insert_with(|| read_confirmed(directory, user));
                let mut of_it = changes.iter().filter(|it| it.eid == environment.eid);
                let is_member = of_it.any(|it| it.change == ConfirmedChange::Joined { pid });
                (is_member, changes.is_empty() && may_use_genv_1(user, pid))
            };
            let (is_member, may_be_member) = joined(user);
            let (is_roots, _) = joined(0);
            member.is_stranger = !is_member && !may_be_member && !is_roots;
        }
    }
}

/// Whether these facts belong to the table's process, on this machine.
fn is_listed_process(facts: &ProcessFacts, pid: u32, table: &ProcessTable) -> bool {
    let listed = table.living(pid);
    facts.container_id.is_none() && listed.is_some_and(|it| it.start_time_ticks == facts.start_time_ticks)
}

/// Whether a user without confirmations may have made a process a member with genv 1.x.
const fn may_use_genv_1(user: u32, pid: u32) -> bool {
    pid != 1 && (user == 0 || user >= FIRST_USER && user != NOBODY)
}
