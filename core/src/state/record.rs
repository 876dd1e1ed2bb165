//! The format of `state.json`: all that genv records of a host, as one document.
//!
//! Every user may write the file. A document is taken whole or not at all: one wrong value, and it is damaged.

use std::borrow::Cow;
use std::collections::HashSet;
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};

use super::data::{DeviceState, EnvironmentState, ProcessId, Started};
use super::written::LATEST_SECONDS;
use super::{file, surplus};
use crate::text::shortened;

const VERSION: u32 = 1;
/// The most bytes of the devices with their attachments.
const MOST_DEVICES_BYTES: usize = 3 << 20;
/// The most characters of a damage that are shown.
const MOST_SHOWN_CHARACTERS: usize = 200;

/// The records of a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Records {
    pub(super) environments: Vec<EnvironmentState>,
    pub(super) devices: Vec<DeviceState>,
    /// The processes of the queue, in order of arrival.
    pub(super) queue: Vec<ProcessId>,
    /// Whether the devices are simulated, if that is known.
    pub(super) simulated: Option<bool>,
    /// What was left out or taken in part, one sentence each.
    pub(super) warnings: Vec<String>,
}

/// The form in the file.
#[derive(Serialize, Deserialize)]
#[serde(expecting = "an object")]
struct Document<'a> {
    version: u32,
    boot_id: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    simulated: Option<bool>,
    environments: Cow<'a, [EnvironmentState]>,
    devices: Cow<'a, [DeviceState]>,
    #[serde(default)]
    queue: Cow<'a, [ProcessId]>,
}

/// The part that every version of the file has.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Header {
    version: u32,
}

/// Why a text is no state.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoRecords {
    #[error("{0}")]
    Damaged(String),
    /// Another version of genv wrote it.
    #[error("it has version {0}, and this genv knows version {VERSION} alone")]
    OtherVersion(u32),
}

impl From<serde_json::Error> for NoRecords {
    fn from(error: serde_json::Error) -> Self {
        Self::damaged(format!("it is not understood: {error}"))
    }
}

impl NoRecords {
    /// Every user may write any text into the file.
    fn damaged(why: impl AsRef<str>) -> Self {
        Self::Damaged(shortened(why.as_ref(), MOST_SHOWN_CHARACTERS))
    }
}

impl Records {
    /// Reads a document. `directory` is the state directory, which shows the records that count if there are too many.
    ///
    /// # Errors
    /// The document is damaged, or of another version.
    pub(super) fn parse(content: &[u8], boot_id: &str, directory: BorrowedFd<'_>) -> Result<Self, NoRecords> {
        if content.trim_ascii().is_empty() {
            return Err(NoRecords::damaged("it is empty"));
        }
        let Header { version } = serde_json::from_slice(content)?;
        if version != VERSION {
            return Err(NoRecords::OtherVersion(version));
        }
        let document: Document<'_> = serde_json::from_slice(content)?;
        let mut records = Self {
            environments: document.environments.into_owned(),
            devices: document.devices.into_owned(),
            queue: document.queue.into_owned(),
            simulated: document.simulated,
            ..Self::default()
        };
        records.check(content.len()).map_err(NoRecords::damaged)?;
        if document.boot_id != boot_id {
            records.outlive_boot();
        }
        records.warnings = surplus::leave_out(&mut records.environments, directory);
        Ok(records)
    }

    /// The document. Records beyond the limits are removed before.
    ///
    /// # Errors
    /// No reader would take it; the text is the reason.
    pub(super) fn write(&mut self, boot_id: &str, directory: BorrowedFd<'_>) -> Result<Vec<u8>, String> {
        let mut text = self.text(boot_id);
        if text.len() > MOST_DEVICES_BYTES {
            self.warnings.extend(surplus::leave_out(&mut self.environments, directory));
            text = self.text(boot_id);
        }
        if text.len() as u64 > file::MOST_FILE_BYTES {
            return Err(format!("it would have {} bytes, and {} are read", text.len(), file::MOST_FILE_BYTES));
        }
        self.check(text.len())?;
        Ok(text)
    }

    fn text(&self, boot_id: &str) -> Vec<u8> {
        let document = Document {
            version: VERSION,
            boot_id: boot_id.into(),
            simulated: self.simulated,
            environments: self.environments.as_slice().into(),
            devices: self.devices.as_slice().into(),
            queue: self.queue.as_slice().into(),
        };
        let mut text = serde_json::to_vec(&document).expect("texts and numbers always serialize");
        text.push(b'\n');
        text
    }

    /// What each reader relies on: names are distinct, pids are pids, and times are times.
    /// `bytes` is the length of the document.
    fn check(&self, bytes: usize) -> Result<(), String> {
        // With the environments that count, they fit into a file of allowed size.
        let devices = || serde_json::to_vec(&self.devices).map_or(0, |it| it.len());
        if bytes > MOST_DEVICES_BYTES && devices() > MOST_DEVICES_BYTES {
            return Err(format!("its devices have more than {MOST_DEVICES_BYTES} bytes"));
        }
        let mut eids = HashSet::with_capacity(self.environments.len());
        for environment in &self.environments {
            let eid = &environment.eid;
            if ![environment.created_timestamp_seconds, environment.context_seconds].into_iter().all(is_time) {
                return Err(format!("the environment {eid:?} has a time that no clock shows"));
            }
            if eid.is_empty() || !eids.insert(eid) {
                return Err(format!("an environment has no id, or the id {eid:?} of another one"));
            }
            let mut pids = HashSet::with_capacity(environment.members.len());
            let is_pid = |pid: u32| pid > 0 && i32::try_from(pid).is_ok();
            if !environment.pids().all(|pid| is_pid(pid) && pids.insert(pid)) {
                return Err(format!("the environment {eid:?} has a member that is no process, or that it has before"));
            }
        }
        let mut indices = HashSet::with_capacity(self.devices.len());
        for device in &self.devices {
            let mut holders = HashSet::with_capacity(device.attachments.len());
            if !indices.insert(device.index) || !device.attachments.iter().all(|it| holders.insert(&it.eid)) {
                return Err(format!("it has device {}, or one of its attachments, before", device.index));
            }
            if !device.attachments.iter().all(|it| is_time(it.attached_timestamp_seconds)) {
                return Err(format!("device {} has a time that no clock shows", device.index));
            }
        }
        Ok(())
    }

    /// Of the processes of another boot none lives.
    fn outlive_boot(&mut self) {
        self.queue.clear();
        for environment in &mut self.environments {
            environment.context_seconds = None;
            for member in environment.members.iter_mut().filter(|it| !it.started.is_unknown()) {
                member.started = Started::BeforeThisBoot;
            }
        }
    }
}

/// Whether a clock may have shown a time.
pub(super) fn is_time(seconds: Option<f64>) -> bool {
    seconds.is_none_or(|it| (0.0..=LATEST_SECONDS).contains(&it))
}

/// The kernel's id of the present boot (random(4)); empty if it cannot be read.
pub(super) fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

#[cfg(test)]
mod tests;
