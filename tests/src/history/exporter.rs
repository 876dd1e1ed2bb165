//! An exporter of a scenario whose time is turned by hand, and what its scrapes leave in Prometheus.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Result, ensure};
use genv_core::collect::{Clock, CollectOptions, Collection};
use genv_core::model::Publication;
use genv_core::proc::{ProcessRequest, ProcessSource, ProcessTable};
use genv_core::state::{State, StateError, StateSource};
use genv_exporter::families::{self, Limits, own};
use genv_simulator::{Engine, RealSources, sources};
use genv_web::metrics::{MetricFamily, OwnProcess, Samples};

use super::write::{SeriesId, Writer};
use crate::metrics::{self, Labels};

/// What the exporter does unless told otherwise: `--collector.processes.limit`.
const LIMITS: Limits = Limits { processes: Some(64) };

/// When an exporter is in trouble; both times count from the beginning of the history.
#[derive(Clone, Debug)]
pub struct Trouble {
    pub instance: String,
    pub from: Duration,
    pub until: Duration,
    /// It serves what it had; otherwise it is down.
    pub frozen: bool,
}

/// An exporter of one host of a scenario, or of all, that is scraped.
pub(super) struct PlayedExporter {
    engine: Arc<Engine>,
    hostname: Option<String>,
    instance: String,
    options: CollectOptions,
    clock: Clock,
    troubles: Vec<Trouble>,
    running: Option<Running>,
    /// When it was last scraped, from the beginning.
    scraped: Option<Duration>,
    /// What the last scrape had, in its order and as the exporter writes it.
    series: Vec<(String, SeriesId)>,
}

struct Running {
    collection: Collection,
    latest: Publication,
    process: OwnProcess,
}

impl PlayedExporter {
    pub(super) fn new(
        engine: &Arc<Engine>,
        hostname: Option<&str>,
        options: &CollectOptions,
        clock: &Clock,
        troubles: &[Trouble],
    ) -> Self {
        let instance = format!("{}:9820", hostname.unwrap_or("localhost"));
        let troubles = troubles.iter().filter(|trouble| trouble.instance == instance);
        Self {
            engine: Arc::clone(engine),
            hostname: hostname.map(str::to_owned),
            options: options.clone(),
            clock: Arc::clone(clock),
            troubles: troubles.cloned().collect(),
            instance,
            running: None,
            scraped: None,
            series: Vec::new(),
        }
    }

    /// Collects and is scraped so long after the beginning, unless it is in trouble. Series that it has no more have ended.
    pub(super) fn scrape(&mut self, passed: Duration, at: i64, writer: &mut Writer) -> Result<()> {
        let last = self.scraped.replace(passed);
        let now = self.troubles.iter().filter(|trouble| trouble.from <= passed && passed < trouble.until);
        let (down, frozen) = (now.clone().any(|trouble| !trouble.frozen), now.clone().any(|trouble| trouble.frozen));
        let was_down = |trouble: &Trouble| {
            !trouble.frozen && trouble.until <= passed && last.is_some_and(|last| last < trouble.until)
        };
        if down || self.troubles.iter().any(was_down) {
            self.running = None;
        }
        if !down && !frozen {
            self.collect()?;
        }
        let up = writer.series(self.labels("up", Labels::new()));
        writer.add(up, at, if down { 0.0 } else { 1.0 })?;
        let mut told = Vec::with_capacity(self.series.len());
        // Most scrapes tell the same series in the same order as the one before.
        let mut next = 0;
        for family in self.families() {
            for (series, value) in family.samples() {
                let known = self.series.get(next).filter(|(known, _)| known == series);
                let id = if let Some((_, id)) = known {
                    next += 1;
                    *id
                } else {
                    let (name, labels) = metrics::series(series)?;
                    let id = writer.series(self.labels(&name, labels));
                    next = self.series.iter().position(|(_, known)| *known == id).map_or(next, |found| found + 1);
                    id
                };
                writer.add(id, at, value)?;
                told.push((series.to_owned(), id));
            }
        }
        if told.iter().map(|(_, id)| id).ne(self.series.iter().map(|(_, id)| id)) {
            let there: HashSet<SeriesId> = told.iter().map(|(_, id)| *id).collect();
            for (_, id) in self.series.iter().filter(|(_, id)| !there.contains(id)) {
                writer.end(*id, at)?;
            }
        }
        self.series = told;
        Ok(())
    }

    fn labels(&self, name: &str, mut labels: Labels) -> Labels {
        let own = [("__name__", name), ("job", "genv"), ("instance", &self.instance)];
        labels.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
        labels
    }

    fn collect(&mut self) -> Result<()> {
        if self.running.is_none() {
            self.running = Some(self.start()?);
        }
        if let Some(running) = &mut self.running {
            running.latest = running.collection.cycle();
        }
        Ok(())
    }

    fn families(&self) -> Vec<MetricFamily> {
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
