//! Environments without a living shell, with a process that works on a device that they hold.

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};

use super::clock::Moment;
use crate::attribute::{LiveEnvironment, listed_members};
use crate::gpu::GpuSample;
use crate::proc::{Claim, ProcessRead, ProcessTable};
use crate::state::{Belonging, EnvironmentState, State, belonging, linger_seconds, lingers};

/// When a process of an environment last had a context on a device that the environment holds.
#[derive(Debug)]
pub(super) struct Lingering {
    linger_seconds: f64,
    /// By eid: the creation of the environment, Unix time, and the time of the last context, by the clock of the
    /// cycles.
    last: HashMap<String, (Option<f64>, f64)>,
}

impl Lingering {
    pub(super) fn new() -> Self {
        Self { linger_seconds: linger_seconds(), last: HashMap::new() }
    }

    /// Adds to the living environments those of the state that continue without a shell.
    pub(super) fn extend<'a>(
        &mut self,
        live: &mut Vec<LiveEnvironment<'a>>,
        state: &'a State,
        table: &ProcessTable,
        sample: Option<&GpuSample>,
        moved: &HashSet<&'a str>,
        now: Moment,
    ) {
        let mut unclear = self.note(state, table, sample, now.seconds);
        // The GPU of a moved environment is not known.
        unclear.extend(moved);
        let oldest = now.seconds - self.linger_seconds;
        self.last.retain(|_, (_, last)| *last >= oldest);
        if live.len() == state.environments.len() {
            return;
        }
        let living: HashSet<&str> = live.iter().map(|it| it.environment.eid.as_str()).collect();
        let continues = |environment: &&EnvironmentState| {
            let eid = environment.eid.as_str();
            let last = self.last.get(eid);
            let seen = last.is_some_and(|(created, _)| *created == environment.created_timestamp_seconds);
            // A command may have seen a context before this collection began.
            let noted = environment.context_seconds;
            let noted = lingers(noted, now.timestamp_seconds, self.linger_seconds);
            !living.contains(eid) && (seen || noted || unclear.contains(eid)) && !state.attached(eid).is_empty()
        };
        let more: Vec<_> = state.environments.iter().filter(continues).collect();
        live.extend(more.into_iter().map(|it| listed_members(state, it, table).0));
    }

    /// Notes the environments with a context now. Returns the environments for which this is not known: a process of
    /// their user does not show its environment, or one of their jobs lives while the processes of a device that they
    /// hold are not known.
    fn note<'a>(
        &mut self,
        state: &'a State,
        table: &ProcessTable,
        sample: Option<&GpuSample>,
        now_seconds: f64,
    ) -> HashSet<&'a str> {
        let mut unclear = HashSet::new();
        let environments: HashMap<&str, &EnvironmentState> =
            state.environments.iter().map(|it| (it.eid.as_str(), it)).collect();
        for device in sample.iter().flat_map(|sample| &sample.devices) {
            let held = state.devices.iter().find(|it| it.index == device.index.gpu);
            let holders: HashMap<&str, &EnvironmentState> = held
                .iter()
                .flat_map(|held| &held.attachments)
                .filter_map(|attachment| environments.get_key_value(attachment.eid.as_str()))
                .map(|(eid, environment)| (*eid, *environment))
                .collect();
            if holders.is_empty() {
                continue;
            }
            if !device.processes_known() {
                let may_work = |it: &&&EnvironmentState| {
                    let (live, has_shell) = listed_members(state, it, table);
                    !has_shell && !live.jobs.is_empty()
                };
                let may_work = holders.values().filter(may_work);
                unclear.extend(may_work.map(|it| it.eid.as_str()));
            }
            for process in device.processes.iter().flatten() {
                let Some(ProcessRead::Present(facts)) = table.processes.get(&process.pid) else {
                    continue;
                };
                let look = |holder: &&'a EnvironmentState| match belonging(holder, process.pid, facts, table) {
                    Belonging::Own => self.touch(holder, now_seconds),
                    Belonging::Unclear => drop(unclear.insert(holder.eid.as_str())),
                    Belonging::Other => {}
                };
                match &facts.claim {
                    Claim::Named(eid) => holders.get(eid.as_str()).into_iter().for_each(look),
                    Claim::Absent | Claim::Missing(_) => holders.values().for_each(look),
                }
            }
        }
        unclear
    }

    fn touch(&mut self, environment: &EnvironmentState, now_seconds: f64) {
        let created = environment.created_timestamp_seconds;
        match self.last.get_mut(&environment.eid) {
            Some(last) => *last = (created, now_seconds),
            None => drop(self.last.insert(environment.eid.clone(), (created, now_seconds))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::tests::{add_process, attached, environment, gpu, on_gpu, sample, state};
    use crate::gpu::DeviceSample;

    /// An environment of user 1 that holds device 0, and a process of that user on a device.
    fn lives(lingering: &mut Lingering, device: u32, uid: u32, claim: Claim, now_seconds: f64) -> bool {
        let state = state(vec![environment("e", 1, &[7])], vec![attached(0, &[("e", None)])]);
        let sample = sample(vec![DeviceSample { processes: Some(vec![on_gpu(9, None)]), ..gpu(device) }]);
        let mut table = ProcessTable::default();
        add_process(&mut table, 9, uid, claim);
        table.lineage.clear();
        let mut live = Vec::new();
        let now = Moment { seconds: now_seconds, timestamp_seconds: now_seconds };
        lingering.extend(&mut live, &state, &table, Some(&sample), &HashSet::new(), now);
        !live.is_empty()
    }

    #[test]
    fn a_context_on_a_held_device_keeps_an_environment_for_the_linger_time() {
        let named = || Claim::Named("e".to_owned());
        let mut lingering = Lingering { linger_seconds: 60.0, last: HashMap::new() };
        assert!(!lives(&mut lingering, 1, 1, named(), 0.0));
        assert!(!lives(&mut lingering, 0, 2, named(), 0.0));
        assert!(!lives(&mut lingering, 0, 1, Claim::Absent, 0.0));
        assert!(lives(&mut lingering, 0, 1, named(), 0.0));
        assert!(lives(&mut lingering, 1, 1, named(), 60.0));
        assert!(!lives(&mut lingering, 1, 1, named(), 61.0));
        let overwritten = Claim::Missing(crate::proc::MissingEvidence::EnvironOverwritten);
        assert!(lives(&mut lingering, 0, 1, overwritten, 100.0));
        assert!(lingering.last.is_empty());
    }
}
