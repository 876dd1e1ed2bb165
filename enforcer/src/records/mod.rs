//! What counts of genv's records, which everybody may write: between the snapshots and the plan.
//!
//! Each record is remembered as it was first seen together with a living member of its user. A later change that takes
//! something from its user counts once a command of that user confirms it; until then the record is *disputed*, and what
//! was first seen counts. A change that gives its user more counts at once where that helps; where it could harm, as by a
//! limit, the user's command or the environment variables of the user's processes have to bear it out. Ages are bounded by
//! what the kernel and this program saw themselves. What is found about a record affects no user but its own.

mod amounts;
mod evidence;
mod given_back;
mod judgement;
mod known;
mod owner;
mod places;
mod surplus;
#[cfg(test)]
mod tests;
mod witness;
mod workers;

use std::collections::BTreeMap;
use std::sync::Arc;

use genv_core::enforcement::DisputedRecord;
use genv_core::model::{HostSnapshot, Snapshot};
use serde::{Deserialize, Serialize};

use crate::directory::{Audience, FileError, RuntimeDirectory};
use crate::plan::Unconfirmed;
use evidence::Claims;
use given_back::GivenBack;
use judgement::{Judgement, Memory};
use known::KnownByEid;
use places::Places;
pub(crate) use witness::{Here, Witness};

/// The file of the enforcer's directory in which records are remembered.
pub(crate) const RECORDS_FILE: &str = "records.json";

const VERSION: u32 = 1;

/// How many records of one user, and of one host, count and are remembered.
const MAX_OF_A_USER: usize = 256;
const MAX_OF_A_HOST: usize = 8192;

/// How many disputes are named; all are counted.
const MAX_NAMED: usize = 100;

/// The records that were seen since the machine was started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Records {
    version: u32,
    boot_id: String,
    /// By host and eid.
    hosts: BTreeMap<String, KnownByEid>,
    /// Where processes were first seen, by host.
    #[serde(default)]
    places: BTreeMap<String, Places>,
    /// Users' releases, by host.
    #[serde(default)]
    given_back: BTreeMap<String, GivenBack>,
    /// Whether what the first moment of a host shows may have been there for long.
    #[serde(skip)]
    is_recording: bool,
    /// What processes of this host name.
    #[serde(skip)]
    claims: Claims,
    #[serde(skip)]
    changed: bool,
}

/// The hosts as they count.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    pub(crate) hosts: Vec<HostSnapshot>,
    /// Records of which not all counts as the files have it: so many of them by name.
    pub(crate) disputed: Vec<DisputedRecord>,
    /// How many there are, by host.
    pub(crate) numbers: BTreeMap<String, u64>,
    /// Users with more records than count.
    pub(crate) too_many: Vec<TooManyRecords>,
    /// Attachments that nothing shows to be their user's doing.
    pub(crate) unconfirmed: Unconfirmed,
}

/// A user with more records than count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TooManyRecords {
    pub(crate) hostname: String,
    pub(crate) username: String,
    pub(crate) uid: Option<u32>,
    /// How many there are.
    pub(crate) records: u64,
}

impl Records {
    /// Nothing was seen yet. For a recording: what its first moment shows may have been there for long.
    pub(crate) fn of_a_recording() -> Self {
        Self { is_recording: true, ..Self::default() }
    }

    /// What was remembered since the machine was started, and what is wrong with the file.
    pub(crate) fn load(directory: &RuntimeDirectory) -> Result<(Self, Option<String>), FileError> {
        let Some(content) = directory.read(RECORDS_FILE)? else {
            return Ok((Self::new(), None));
        };
        match serde_json::from_slice::<Self>(&content) {
            Ok(records) if records.version == VERSION && records.boot_id == witness::boot_id() => Ok((records, None)),
            Ok(records) if records.version == VERSION => Ok((Self::new(), None)),
            read => {
                let why = match read {
                    Ok(records) => format!("it has version {}", records.version),
                    Err(error) => error.to_string(),
                };
                let aside = directory.path().join(directory.set_aside(RECORDS_FILE)?);
                let said = format!(
                    "cannot use the records that were first seen ({why}): the file is set aside as {}, and records count as they are seen now",
                    aside.display()
                );
                Ok((Self::new(), Some(said)))
            }
        }
    }

    /// As [`Records::load`], for a program that only looks; nothing where the file may not be read.
    pub(crate) fn peek(directory: &std::path::Path) -> Self {
        let read = std::fs::read(directory.join(RECORDS_FILE)).ok();
        let records = read.and_then(|content| serde_json::from_slice::<Self>(&content).ok());
        let records = records.filter(|it| it.version == VERSION);
        let records = records.filter(|it| it.boot_id == witness::boot_id());
        records.unwrap_or_else(Self::of_a_recording)
    }

    fn new() -> Self {
        Self { version: VERSION, boot_id: witness::boot_id(), changed: true, ..Self::default() }
    }

    /// Writes down what was seen for the first time, if anything was.
    ///
    /// # Errors
    /// It cannot be written; it is tried again the next time.
    pub(crate) fn save(&mut self, directory: &RuntimeDirectory) -> Result<(), FileError> {
        if !self.changed {
            return Ok(());
        }
        let content = serde_json::to_vec(self).unwrap_or_default();
        directory.replace(RECORDS_FILE, &content, Audience::Own)?;
        self.changed = false;
        Ok(())
    }

    /// Notes that the enforcer took a device from an environment. A record that has the device afterwards needs new
    /// evidence, even if it equals the record from before.
    pub(crate) fn note_taken(&mut self, hostname: &str, eid: &str, gpu: u32, now_seconds: f64) {
        let host = self.hosts.get_mut(hostname);
        let known = host.and_then(|environments| environments.get_mut(eid));
        if let Some(held) = known.and_then(|known| known.devices.get_mut(gpu)) {
            held.taken_seconds = Some(now_seconds);
            self.changed = true;
        }
    }

    /// The hosts as they count now. `witness` tells what the kernel says of the host `here`, where there is one.
    pub(crate) fn count(
        &mut self,
        hosts: &[HostSnapshot],
        mut witness: Option<(&str, &mut dyn Witness)>,
        now_seconds: f64,
    ) -> Counting {
        let mut counting = Counting::default();
        for host in hosts {
            let witness = match &mut witness {
                Some((here, witness)) if *here == host.hostname => Some(&mut **witness),
                _ => None,
            };
            let snapshot = host.snapshot.as_deref();
            let snapshot = snapshot.filter(|snapshot| host.up && is_current(snapshot));
            let mut counts = host.clone();
            if let Some(snapshot) = snapshot {
                let is_first = !self.hosts.contains_key(&host.hostname);
                let memory = Memory {
                    known: self.hosts.entry(host.hostname.clone()).or_default(),
                    places: self.places.entry(host.hostname.clone()).or_default(),
                    given_back: self.given_back.entry(host.hostname.clone()).or_default(),
                    claims: &mut self.claims,
                };
                let unconfirmed = &mut counting.unconfirmed;
                let mut judgement = Judgement::new(snapshot, memory, witness, unconfirmed, now_seconds);
                judgement.begins = self.is_recording && is_first;
                judgement.believes |= is_first;
                let judged = judgement.judge();
                self.changed |= judged.changed;
                let disputes: Vec<DisputedRecord> = judged.disputes.into_values().collect();
                if let Some(mut snapshot) = judged.snapshot {
                    note_left_out(&mut snapshot, &disputes);
                    counts.snapshot = Some(Arc::new(snapshot));
                }
                let number = disputes.len() as u64;
                counting.numbers.insert(host.hostname.clone(), number);
                let room = MAX_NAMED.saturating_sub(counting.disputed.len());
                let named = disputes.into_iter().take(room);
                counting.disputed.extend(named);
                counting.too_many.extend(judged.too_many);
            }
            counting.hosts.push(counts);
        }
        if !hosts.is_empty() {
            let named = |hostname: &String| hosts.iter().any(|it| it.hostname == *hostname);
            self.hosts.retain(|hostname, _| named(hostname));
            self.places.retain(|hostname, _| named(hostname));
            self.given_back.retain(|hostname, _| named(hostname));
        }
        counting
    }
}

/// Says of a snapshot without a disputed environment that its state is not whole: what is not there may exist all the same.
fn note_left_out(snapshot: &mut Snapshot, disputes: &[DisputedRecord]) {
    let mut disputes = disputes.iter();
    let left_out = disputes.find(|it| snapshot.environment(&it.eid).is_none());
    if let Some((left_out, status)) = left_out.zip(snapshot.collectors.get_mut("state")) {
        let why = || format!("the record of {} is disputed", left_out.eid.escape_debug());
        status.error.get_or_insert_with(why);
    }
}

/// Whether a snapshot shows which environments there are.
fn is_current(snapshot: &Snapshot) -> bool {
    let state = snapshot.collectors.get("state");
    state.is_none_or(|state| state.current)
}
