//! The environments of a state that live.

use crate::model::Member;
use crate::proc::ProcessTable;
use crate::state::standing::Standing;
use crate::state::{EnvironmentState, State};

/// An environment that lives: a member that is no job is alive, or it has Jupyter kernels.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveEnvironment<'a> {
    /// The environment.
    pub environment: &'a EnvironmentState,
    /// Its members that are alive, without those that are hidden, and without its jobs.
    pub members: Vec<Member>,
    /// Its jobs that are alive: they are in it, and do not keep it alive.
    pub jobs: Vec<Member>,
    /// Living processes that its record lists and that run as other users: they keep it alive, but are no members.
    pub foreign: Vec<Member>,
    /// When the oldest of `members` was started, Unix time.
    pub oldest_member_started_timestamp_seconds: Option<f64>,
}

impl<'a> LiveEnvironment<'a> {
    /// An environment without known living members.
    pub fn without_members(environment: &'a EnvironmentState) -> Self {
        Self {
            environment,
            members: Vec::new(),
            jobs: Vec::new(),
            foreign: Vec::new(),
            oldest_member_started_timestamp_seconds: None,
        }
    }
}

/// The environments of a state that live. The others ended, and no command has removed their records yet.
///
/// A member is alive if its pid exists, its process has not ended, and it is the recorded process. Without recorded
/// facts, the process must have started before the state was written: a bare pid means the process that had the pid at
/// that time. A hidden member counts as alive. A listed kernel counts as alive, since the read of the state leaves out
/// ended kernels. A listed process of another user keeps its environment alive: such an environment is disputed, and a
/// disputed environment does not end.
pub fn live_environments<'a>(state: &'a State, table: &ProcessTable) -> Vec<LiveEnvironment<'a>> {
    let listed = state.environments.iter();
    let found = listed.map(|environment| listed_members(state, environment, table));
    found.filter_map(|(environment, lives)| lives.then_some(environment)).collect()
}

/// An environment with its living members, and whether they keep it alive.
pub(crate) fn listed_members<'a>(
    state: &'a State,
    environment: &'a EnvironmentState,
    table: &ProcessTable,
) -> (LiveEnvironment<'a>, bool) {
    let written = state.written_timestamp_seconds;
    let (mut members, mut jobs, mut foreign) = (Vec::new(), Vec::new(), Vec::new());
    let mut may_live = false;
    for listed in &environment.members {
        let living = match listed.standing(environment, table, written) {
            Standing::Lives(living) => living,
            Standing::MayLive => {
                may_live |= !listed.is_job;
                continue;
            }
            Standing::Ended => continue,
        };
        let user = table.owner(environment.uid);
        let runs_as_user = living.uid.is_none_or(|uid| table.owner(uid) == user);
        let list = match runs_as_user {
            true if listed.is_job => &mut jobs,
            true => &mut members,
            false => &mut foreign,
        };
        list.push(Member { pid: living.pid, start_time_ticks: living.start_time_ticks });
    }
    let lives = !members.is_empty() || !foreign.is_empty() || !environment.kernel_ids.is_empty() || may_live;
    let started = members.iter().filter_map(|member: &Member| {
        let lineage = table.lineage.get(&member.pid)?;
        Some(lineage.start_timestamp_seconds)
    });
    let oldest_member_started_timestamp_seconds = started.reduce(f64::min);
    let environment = LiveEnvironment { environment, members, jobs, foreign, oldest_member_started_timestamp_seconds };
    (environment, lives)
}
