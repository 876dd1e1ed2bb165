//! This host: its snapshots, and the executor of steps on it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::anyhow;
use genv_core::collect::{self, CollectOptions, HostSources};
use genv_core::model::{DeviceIndex, HostSnapshot, Publication};
use genv_core::proc::ProcReader;
use genv_core::state::{StateDirectory, directory_path};
use genv_core::stream::SnapshotStream;
use genv_simulator::SourceOptions;

use crate::execute::{EvidenceSources, Executor, ExecutorHost, Policy, gpu_use};

/// Values older than both this many intervals and this time are withdrawn.
const MAX_AGE_INTERVALS: u32 = 3;
const SHORTEST_MAX_AGE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct LatestPublication(RwLock<Arc<Publication>>);

impl LatestPublication {
    pub(crate) fn replace(&self, publication: Arc<Publication>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = publication;
    }

    fn get(&self) -> Arc<Publication> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The largest age of values that could not be read again.
pub(crate) fn max_age(interval: Duration) -> Duration {
    SHORTEST_MAX_AGE.max(interval * MAX_AGE_INTERVALS)
}

/// The default options of a collection.
pub(crate) fn collect_options(interval: Duration) -> CollectOptions {
    CollectOptions { interval, max_age: max_age(interval), ..CollectOptions::default() }
}

/// Starts collecting.
pub(crate) fn collect(hosts: Vec<HostSources>, options: CollectOptions) -> anyhow::Result<SnapshotStream> {
    collect::spawn(hosts, options)
        .map_err(|error| anyhow!("cannot start the threads that collect: {error}. Allow more processes (ulimit -u)"))
}

/// The executor for this host.
pub(crate) fn executor(
    sources: &SourceOptions,
    directory: &Path,
    policy: Policy,
    latest: Arc<LatestPublication>,
) -> anyhow::Result<Executor> {
    executor_for_host(sources.own_hostname(), sources, directory, policy, latest)
}

/// The executor for this host, by the name that the publication and the steps use for this host.
pub(crate) fn executor_for_host(
    hostname: String,
    sources: &SourceOptions,
    directory: &Path,
    policy: Policy,
    latest: Arc<LatestPublication>,
) -> anyhow::Result<Executor> {
    let genv_directory = sources.state_directory.clone();
    let place = ExecutorHost {
        hostname: hostname.clone(),
        genv_directory: genv_directory.unwrap_or_else(|| directory_path(None)),
        state_directory: directory.to_owned(),
    };
    let own = sources.open_own()?;
    let (of_uuids, called) = (Arc::clone(&latest), hostname.clone());
    let evidence = EvidenceSources {
        gpu_uuid: Box::new(move |gpu| {
            let publication = of_uuids.get();
            let mut hosts = publication.hosts.iter();
            let host = hosts.find(|host| host.hostname == called)?;
            let mut devices = host.snapshot.as_ref()?.devices.iter();
            let device = devices.find(|it| it.index == DeviceIndex::gpu(gpu));
            device.filter(|it| it.up).map(|it| it.uuid.clone())
        }),
        gpu_use: Box::new(move || {
            let publication = latest.get();
            let mut hosts = publication.hosts.iter();
            let host = hosts.find(|host| host.hostname == hostname);
            let snapshot = host.and_then(|host| host.snapshot.as_deref());
            let snapshot = snapshot.ok_or("there is no snapshot of this host")?;
            match snapshot.collectors.get("gpu") {
                Some(gpu) if gpu.success && gpu.current => Ok(gpu_use(snapshot)),
                _ => Err("the processes on the GPUs are not known now".to_owned()),
            }
        }),
        processes: own.processes,
        state: own.state,
    };
    Ok(Executor::open(place, policy, evidence)?)
}

/// The executor of an enforcer that sends all steps to other hosts: it reads nothing from this host, and acts on no process
/// here.
pub(crate) fn dispatching_executor(hostname: String, directory: &Path, policy: Policy) -> anyhow::Result<Executor> {
    let genv_directory = directory_path(None);
    let evidence = EvidenceSources {
        gpu_use: Box::new(|| Err("other hosts execute the steps".to_owned())),
        gpu_uuid: Box::new(|_| None),
        processes: Box::new(ProcReader::new()),
        state: Box::new(StateDirectory::new(&genv_directory)),
    };
    let place = ExecutorHost { hostname, genv_directory, state_directory: directory.to_owned() };
    Ok(Executor::open(place, policy, evidence)?)
}

/// The users who hold or use a device.
pub(crate) fn users_of_devices(hosts: &[HostSnapshot]) -> BTreeSet<String> {
    let snapshots = hosts.iter().filter_map(|host| host.snapshot.as_deref());
    let users = snapshots.flat_map(|snapshot| {
        let environments = snapshot.environments.iter();
        let holding = environments.filter(|it| !it.devices.is_empty());
        let holding = holding.map(|it| it.username.as_str());
        let processes = snapshot.processes.iter();
        holding.chain(processes.filter_map(|it| snapshot.user_of(it)))
    });
    let users: BTreeSet<&str> = users.collect();
    users.into_iter().map(str::to_owned).collect()
}
