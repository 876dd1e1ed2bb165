//! The thread that runs the cycles.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread;

use anyhow::anyhow;
use genv_core::model::Publication;
use genv_core::state::directory_path;
use genv_web::allocator;
use tokio::sync::mpsc as async_mpsc;

use super::collecting::{Collecting, Facts};
use crate::cycle::{Cycle, Done};
use crate::directory::RuntimeDirectory;
use crate::execute::Policy;
use crate::heartbeat::Heartbeat;
use crate::host::{self, LatestPublication};
use crate::output::now_seconds;
use crate::reload::{InForce, Rules};
use crate::remote_steps::dispatcher::Dispatcher;
use crate::remote_steps::transport::SshTransport;

/// The thread that runs one cycle at a time. Cycles wait for locks and disks.
pub(super) struct Cycles {
    jobs: mpsc::Sender<(Arc<Publication>, InForce)>,
    pub(super) done: async_mpsc::UnboundedReceiver<Done>,
    pub(super) stopping: Arc<AtomicBool>,
    pub(super) heartbeat: Arc<Heartbeat>,
    latest: Arc<LatestPublication>,
}

impl Cycles {
    pub(super) fn begin(&self, publication: Arc<Publication>, rules: InForce) -> anyhow::Result<()> {
        self.latest.replace(Arc::clone(&publication));
        self.jobs
            .send((publication, rules))
            .map_err(|_| anyhow!("cannot go on: the thread of the cycles has ended. Start the enforcer again"))
    }
}

pub(super) fn start_cycles(
    directory: RuntimeDirectory,
    collecting: &Collecting,
    transport: Option<SshTransport>,
    rules: &Rules,
) -> anyhow::Result<Cycles> {
    let latest = Arc::new(LatestPublication::default());
    let policy = Policy::from(&*rules.in_force().config);
    let hostname = collecting.facts.hostname();
    let path = directory.path();
    let executor = match &collecting.facts {
        Facts::Here { sources, .. } => host::executor(sources, path, policy, Arc::clone(&latest))?,
        Facts::Elsewhere { .. } => host::dispatching_executor(hostname.clone(), path, policy)?,
    };
    let mut cycle = Cycle::new(hostname, directory, executor, now_seconds())?;
    if let Facts::Here { sources, .. } = &collecting.facts {
        let directory = sources.state_directory.clone();
        cycle = cycle.seeing(directory.unwrap_or_else(|| directory_path(None)));
    }
    if let Some(transport) = transport {
        let once = rules.in_force().config.interval.is_zero();
        cycle = cycle.with_dispatcher(Dispatcher::new(Box::new(transport), once));
    }

    let heartbeat = cycle.heartbeat();
    let (jobs, asked) = mpsc::channel::<(Arc<Publication>, InForce)>();
    let (finished, done) = async_mpsc::unbounded_channel();
    let stopping = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopping);
    thread::Builder::new()
        .name("cycle".to_owned())
        .spawn(move || {
            while let Ok((publication, rules)) = asked.recv() {
                let done = cycle.run(&publication, &rules, now_seconds, &stop);
                if finished.send(done).is_err() {
                    return;
                }
                // A user may have written any number of records, and removed them.
                allocator::give_back();
            }
        })
        .map_err(|error| anyhow!("cannot start the thread of the cycles: {error}. Allow more processes (ulimit -u)"))?;
    Ok(Cycles { jobs, done, stopping, heartbeat, latest })
}
