//! The output of `facts.sh`: processes of a host, by a shell loop over `/proc`.

use std::collections::HashMap;

use genv_core::proc::{Claim, Lineage, MissingEvidence, ProcessFacts, ProcessRead, ProcessTable};

/// One process of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PolledProcess {
    pub(super) uid: Option<u32>,
    pub(super) environ_readable: bool,
    start_time_ticks: u64,
    comm: String,
}

/// The whole output.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessList {
    facts: HashMap<u32, PolledProcess>,
    lineage: foldhash::HashMap<u32, Lineage>,
    pub(super) usernames: HashMap<u32, String>,
}

impl ProcessList {
    /// Parses the output. Other lines are skipped.
    pub(super) fn parse(text: &[u8]) -> Self {
        let mut list = Self::default();
        let mut boot_seconds = 0.0;
        let mut ticks_per_second = 100.0;
        for line in String::from_utf8_lossy(text).lines() {
            let Some((kind, rest)) = line.split_once(' ') else {
                continue;
            };
            match kind {
                "boot" => {
                    let mut numbers = rest.split(' ').map(|number| number.parse::<f64>().ok());
                    if let (Some(Some(boot)), Some(Some(ticks))) = (numbers.next(), numbers.next())
                        && ticks >= 1.0
                    {
                        (boot_seconds, ticks_per_second) = (boot, ticks);
                    }
                }
                "user" => {
                    if let Some((uid, name)) = rest.split_once(' ')
                        && let Ok(uid) = uid.parse()
                        && !name.is_empty()
                    {
                        list.usernames.insert(uid, name.to_owned());
                    }
                }
                "process" => list.add_process(rest, boot_seconds, ticks_per_second),
                _ => {}
            }
        }
        list
    }

    fn add_process(&mut self, rest: &str, boot_seconds: f64, ticks_per_second: f64) {
        let mut fields = rest.splitn(6, ' ');
        let mut next = || fields.next().unwrap_or_default();
        let (pid, parent, start, uid, environ, comm) = (next(), next(), next(), next(), next(), next());
        let (Ok(pid), Ok(parent), Ok(start_time_ticks)) = (pid.parse(), parent.parse(), start.parse::<u64>()) else {
            return;
        };
        #[expect(clippy::cast_precision_loss, reason = "a time needs no more than 53 bits")]
        let start_timestamp_seconds = boot_seconds + start_time_ticks as f64 / ticks_per_second;
        let uid = uid.parse().ok();
        self.lineage.insert(pid, Lineage { start_time_ticks, start_timestamp_seconds, parent, uid });
        self.facts.insert(
            pid,
            PolledProcess { uid, environ_readable: environ == "yes", start_time_ticks, comm: comm.to_owned() },
        );
    }

    /// A table of these processes. `claim` gives the claim of each process.
    pub(super) fn table(
        &self,
        pids: impl IntoIterator<Item = u32>,
        claim: impl Fn(u32, &PolledProcess) -> Claim,
    ) -> ProcessTable {
        let read = |pid: u32| {
            let Some(facts) = self.facts.get(&pid) else {
                return ProcessRead::Vanished;
            };
            ProcessRead::Present(ProcessFacts {
                start_time_ticks: facts.start_time_ticks,
                uid: facts.uid,
                real_uid: facts.uid,
                comm: facts.comm.clone(),
                container_id: None,
                container_owner: None,
                claim: claim(pid, facts),
            })
        };
        ProcessTable {
            processes: pids.into_iter().map(|pid| (pid, read(pid))).collect(),
            lineage: self.lineage.clone(),
            ..ProcessTable::default()
        }
    }
}

/// The claim of a process with an unreadable environ.
pub(super) const UNREADABLE: Claim = Claim::Missing(MissingEvidence::EnvironUnreadable);
