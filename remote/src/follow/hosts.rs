//! Which hosts are followed, as a host file says while it changes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use genv_core::model::HostSnapshot;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::cell::Cell;
use super::host::Host;
use super::{Dial, EnforceCall, Fleet, FollowOptions};
use crate::hosts::{HostEntry, HostList, HostListError};

/// The number of calls that can wait for the task of one host.
const MAX_CALLS: usize = 16;

/// Where the hosts are named.
#[derive(Clone, Debug)]
pub struct HostSource {
    /// Named once and for all.
    fixed: HostList,
    /// A file, which may change, and the hosts that it and the others name together.
    file: Option<PathBuf>,
}

impl HostSource {
    /// These hosts, and those of a file. All of them, as they are now, are returned too.
    ///
    /// # Errors
    /// The file cannot be used, a host is named twice, or there is none.
    pub fn open(fixed: HostList, file: Option<PathBuf>) -> Result<(Self, HostList), HostListError> {
        let this = Self { fixed, file };
        let hosts = this.read()?;
        Ok((this, hosts))
    }

    /// All hosts as they are named now.
    pub(super) fn read(&self) -> Result<HostList, HostListError> {
        match &self.file {
            Some(path) => {
                let listed = HostList::read(path)?;
                self.fixed.clone().and(listed, &path.display().to_string())
            }
            None => Ok(self.fixed.clone()),
        }
    }

    /// Whether it can change.
    pub(super) fn is_fixed(&self) -> bool {
        self.file.is_none()
    }
}

/// The hosts that are followed now, in their order.
pub(super) struct Followed<D> {
    dial: Arc<D>,
    options: FollowOptions,
    connecting: Arc<Semaphore>,
    fleet: Fleet,
    hosts: Vec<One>,
}

struct One {
    entry: HostEntry,
    cell: Cell,
    calls: mpsc::Sender<EnforceCall>,
    task: JoinHandle<()>,
}

impl Drop for One {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<D: Dial> Followed<D> {
    pub(super) fn new(dial: Arc<D>, options: FollowOptions, fleet: Fleet) -> Self {
        Self {
            dial,
            connecting: Arc::new(Semaphore::new(options.concurrency.max(1))),
            options,
            fleet,
            hosts: Vec::new(),
        }
    }

    /// Follows these hosts from now on. Those that were followed already and are named in the same way are not disturbed.
    pub(super) fn replace(&mut self, list: &HostList) {
        let before = std::mem::take(&mut self.hosts);
        let mut before: HashMap<HostEntry, One> = before.into_iter().map(|one| (one.entry.clone(), one)).collect();
        self.hosts =
            list.entries().iter().map(|entry| before.remove(entry).unwrap_or_else(|| self.begin(entry))).collect();
        let calls = self.hosts.iter().map(|one| (one.entry.name.clone(), one.calls.clone()));
        self.fleet.replace(calls.collect());
    }

    fn begin(&self, entry: &HostEntry) -> One {
        let cell = Cell::default();
        let (calls, received) = mpsc::channel(MAX_CALLS);
        let host = Host {
            entry: entry.clone(),
            dial: Arc::clone(&self.dial),
            options: self.options.clone(),
            connecting: Arc::clone(&self.connecting),
            cell: cell.clone(),
            calls: received,
        };
        One { entry: entry.clone(), cell, calls, task: tokio::spawn(host.run()) }
    }

    /// Whether every host has delivered or failed.
    pub(super) fn are_settled(&self) -> bool {
        self.hosts.iter().all(|one| one.cell.is_settled())
    }

    /// What is published of them.
    pub(super) fn publish(&self) -> Vec<HostSnapshot> {
        let hosts = self.hosts.iter();
        hosts.map(|one| one.cell.publish(&one.entry.name, self.options.max_age)).collect()
    }

    pub(super) const fn interval(&self) -> Duration {
        self.options.interval
    }
}
