//! An exporter of a scenario whose time is turned by hand.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use genv_core::collect::Clock;
use genv_core::collect::{CollectOptions, Collection};
use genv_core::model::{HostSnapshot, Publication};
use genv_core::proc::{ProcessRequest, ProcessSource, ProcessTable};
use genv_core::state::{State, StateError, StateSource};
use genv_exporter::families::{self, Limits, own};
use genv_simulator::{Engine, RealSources, sources};
use genv_web::metrics::OwnProcess;
use genv_web::metrics::{MetricFamily, Samples};

/// What the exporter does unless told otherwise: `--collector.processes.limit`.
const LIMITS: Limits = Limits { processes: Some(64) };

/// An exporter of one host of a scenario, or of all.
pub(super) struct PlayedExporter {
    engine: Arc<Engine>,
    hostname: Option<String>,
    options: CollectOptions,
    clock: Clock,
    running: Option<Running>,
}

struct Running {
    collection: Collection,
    latest: Publication,
    process: OwnProcess,
}

impl PlayedExporter {
    /// An exporter that is not started yet.
    pub(super) fn new(engine: &Arc<Engine>, hostname: Option<&str>, options: &CollectOptions, clock: &Clock) -> Self {
        Self {
            engine: Arc::clone(engine),
            hostname: hostname.map(str::to_owned),
            options: options.clone(),
            clock: Arc::clone(clock),
            running: None,
        }
    }

    /// Ends its process, and with it its counters.
    pub(super) fn stop(&mut self) {
        self.running = None;
    }

    /// Collects now; it is started if it does not run.
    ///
    /// # Errors
    /// Its threads cannot be started.
    pub(super) fn collect(&mut self) -> Result<()> {
        if self.running.is_none() {
            self.running = Some(self.start()?);
        }
        if let Some(running) = &mut self.running {
            running.latest = running.collection.cycle();
        }
        Ok(())
    }

    /// What it collected last; nothing while it does not run.
    pub(super) fn hosts(&self) -> &[HostSnapshot] {
        let running = self.running.as_ref();
        running.map_or(&[], |running| &running.latest.hosts)
    }

    /// What it would serve at `/metrics`.
    pub(super) fn families(&self) -> Vec<MetricFamily> {
        let Some(running) = &self.running else {
            return Vec::new();
        };
        let (mut samples, mut all) = (Samples::default(), Vec::new());
        let mut each = |family: &MetricFamily| all.push(family.clone());
        own::of_process(&running.process, &mut samples, &mut each);
        families::of_hosts(&running.latest.hosts, LIMITS, &mut samples, each);
        all
    }

    fn start(&self) -> Result<Running> {
        let real = || RealSources { processes: Box::new(NoMachine), state: Box::new(NoMachine) };
        let mut hosts = sources(&self.engine, &self.clock, None, real);
        if let Some(hostname) = &self.hostname {
            hosts.retain(|host| host.hostname == *hostname);
        }
        ensure!(!hosts.is_empty(), "no host to play: the scenario lists none");
        let since = (self.clock)().duration_since(UNIX_EPOCH)?;
        Ok(Running {
            collection: Collection::by_clock(hosts, &self.options, Arc::clone(&self.clock))?,
            latest: Publication::default(),
            process: OwnProcess { start_time_seconds: Some(since.as_secs_f64()), ..OwnProcess::read() },
        })
    }
}

/// A history is the same wherever it is played: nothing of this machine is in it.
struct NoMachine;

impl ProcessSource for NoMachine {
    fn read(&mut self, _: &ProcessRequest) -> ProcessTable {
        ProcessTable::default()
    }

    fn username(&mut self, uid: u32) -> String {
        format!("uid:{uid}")
    }
}

impl StateSource for NoMachine {
    fn read(&mut self) -> Result<State, StateError> {
        Err(StateError { message: "a history has no real environments: give the host the key environments".to_owned() })
    }
}

/// Refuses what only passes in real time.
///
/// # Errors
/// Something in the scenario hangs.
pub(super) fn ensure_nothing_hangs(engine: &Engine) -> Result<()> {
    let scenario = engine.scenario();
    for host in &scenario.hosts {
        let hangs = |fault: &_| matches!(fault, genv_simulator::HostFault::Hang(_));
        let device_hangs = |fault: &_| matches!(fault, genv_simulator::DeviceFault::Hang(_));
        let devices = host.devices.iter().flat_map(|device| &device.faults);
        let mut faults = host.faults.iter().map(|(_, fault)| hangs(fault));
        let mut device_faults = devices.map(|(_, fault)| device_hangs(fault));
        ensure!(
            !faults.any(|hangs| hangs) && !device_faults.any(|hangs| hangs),
            "cannot play the host {}: a call that hangs takes real time. Use the fault init instead",
            host.name
        );
    }
    Ok(())
}

/// Milliseconds of Unix time.
///
/// # Errors
/// It is before 1970.
pub(super) fn milliseconds(moment: SystemTime) -> Result<i64> {
    Ok(i64::try_from(moment.duration_since(UNIX_EPOCH)?.as_millis())?)
}
