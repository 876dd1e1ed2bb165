//! The followed hosts, which change with the host file.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use genv_core::model::HostSnapshot;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::host::HostTask;
use super::status::SharedStatus;
use super::{Dial, EnforceCall, Fleet, FollowOptions};
use crate::hosts::{HostEntry, HostList, HostListError};

/// The interval between two checks whether each host has delivered a snapshot or failed.
const SETTLED_CHECK: Duration = Duration::from_millis(20);

/// The number of calls that can wait for the task of one host.
const MAX_CALLS: usize = 16;

/// The source of the list of hosts.
#[derive(Clone, Debug)]
pub struct HostSource {
    /// Hosts of flags, which do not change.
    fixed: HostList,
    /// The host file, which can change.
    file: Option<PathBuf>,
}

impl HostSource {
    /// A source of fixed hosts and the hosts of a file, and the present list of all these hosts.
    ///
    /// # Errors
    /// The file cannot be used, a host is listed twice, or no host is listed.
    pub fn open(fixed: HostList, file: Option<PathBuf>) -> Result<(Self, HostList), HostListError> {
        let this = Self { fixed, file };
        let hosts = this.read()?;
        Ok((this, hosts))
    }

    /// Reads the present list.
    pub(super) fn read(&self) -> Result<HostList, HostListError> {
        match &self.file {
            Some(path) => {
                let listed = HostList::read(path)?;
                self.fixed.clone().and(listed, &path.display().to_string())
            }
            None => Ok(self.fixed.clone()),
        }
    }

    /// The file, which may change.
    pub(super) fn file(&self) -> Option<&PathBuf> {
        self.file.as_ref()
    }
}

/// The followed hosts, in the order of the list.
pub(super) struct FollowedHosts<D> {
    dial: Arc<D>,
    options: FollowOptions,
    connecting: Arc<Semaphore>,
    fleet: Fleet,
    hosts: Vec<FollowedHost>,
}

struct FollowedHost {
    entry: HostEntry,
    status: SharedStatus,
    calls: mpsc::Sender<EnforceCall>,
    task: JoinHandle<()>,
}

impl Drop for FollowedHost {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<D: Dial> FollowedHosts<D> {
    pub(super) fn new(dial: Arc<D>, options: FollowOptions, fleet: Fleet) -> Self {
        Self {
            dial,
            connecting: Arc::new(Semaphore::new(options.concurrency.max(1))),
            options,
            fleet,
            hosts: Vec::new(),
        }
    }

    /// Follows these hosts from now on. A host with an unchanged entry keeps its session.
    pub(super) fn replace(&mut self, list: &HostList) {
        let before = std::mem::take(&mut self.hosts);
        let mut before: HashMap<HostEntry, FollowedHost> =
            before.into_iter().map(|host| (host.entry.clone(), host)).collect();
        self.hosts =
            list.entries().iter().map(|entry| before.remove(entry).unwrap_or_else(|| self.start(entry))).collect();
        let calls = self.hosts.iter().map(|host| (host.entry.name.clone(), host.calls.clone()));
        self.fleet.replace(calls.collect());
    }

    fn start(&self, entry: &HostEntry) -> FollowedHost {
        let status = SharedStatus::default();
        let (calls, received) = mpsc::channel(MAX_CALLS);
        let task = HostTask {
            entry: entry.clone(),
            dial: Arc::clone(&self.dial),
            options: self.options.clone(),
            connecting: Arc::clone(&self.connecting),
            status: status.clone(),
            calls: received,
        };
        FollowedHost { entry: entry.clone(), status, calls, task: tokio::spawn(task.run()) }
    }

    /// Waits until each host has delivered a snapshot or failed.
    pub(super) async fn settled(&self) {
        while !self.hosts.iter().all(|host| host.status.is_settled()) {
            sleep(SETTLED_CHECK.min(self.options.interval)).await;
        }
    }

    /// The hosts of a publication.
    pub(super) fn publish(&self) -> Vec<HostSnapshot> {
        let hosts = self.hosts.iter();
        hosts.map(|host| host.status.publish(&host.entry.name, self.options.max_age)).collect()
    }

    pub(super) const fn interval(&self) -> Duration {
        self.options.interval
    }
}
