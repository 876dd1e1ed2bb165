//! Weeks of a scenario in a real Prometheus, without waiting for them.
//!
//! The real collection plays the scenario by a clock that is turned, the real families are what would have been scraped, and
//! Prometheus is given them by remote write, with the stale markers that a scrape would leave. Then its own engine evaluates
//! the shipped rules over all of it.

mod exporter;
mod rules;
mod write;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use genv_core::collect::{Clock, CollectOptions};
use genv_simulator::Engine;

use crate::prometheus::Prometheus;
use exporter::PlayedExporter;
pub use exporter::Trouble;
use rules::Span;
pub use rules::{Group, Rule, RulesFile};
use write::{Writer, milliseconds};

#[derive(Clone, Debug)]
pub struct History {
    engine: Arc<Engine>,
    from: SystemTime,
    lasting: Duration,
    every: Duration,
    /// An exporter on each host, with the instance `HOST:9820`, rather than one for all with the instance `localhost:9820`.
    pub exporter_per_host: bool,
    pub troubles: Vec<Trouble>,
}

/// A Prometheus that has scraped a history and evaluated the shipped rules.
pub struct Past {
    /// It answers at any time of the history.
    pub prometheus: Prometheus,
    pub from: SystemTime,
    pub end: SystemTime,
}

impl History {
    /// It begins at the epoch of the scenario's first host. Between two collections, two scrapes, and two evaluations of the
    /// rules whose group does not tell, there is this interval.
    pub fn new(engine: Engine, lasting: Duration, every: Duration) -> Result<Self> {
        let scenario = engine.scenario();
        let host = scenario.hosts.first().context("a scenario without hosts")?;
        let epoch = u64::try_from(host.epoch_milliseconds).context("an epoch before 1970")?;
        let from = SystemTime::UNIX_EPOCH + Duration::from_millis(epoch);
        Ok(Self { engine: Arc::new(engine), from, lasting, every, exporter_per_host: false, troubles: Vec::new() })
    }

    pub fn start(self, tool: &str) -> Result<Past> {
        let end = self.from + self.lasting;
        // All of it stays in memory, where series may be written one after the other.
        let block = format!("{}s", (self.lasting * 4).as_secs().max(7200));
        let flags = [
            "--web.enable-remote-write-receiver".to_owned(),
            "--web.enable-admin-api".to_owned(),
            "--storage.tsdb.retention.time=100y".to_owned(),
            format!("--storage.tsdb.min-block-duration={block}"),
            format!("--storage.tsdb.max-block-duration={block}"),
            "--query.max-samples=1000000000".to_owned(),
        ];
        let prometheus = Prometheus::start_configured(tool, "{}", &flags)?;
        let mut writer = Writer::new(prometheus.port());
        self.scrape(&mut writer)?;
        let span = Span { from: self.from, to: end, interval: self.every };
        let file = RulesFile::shipped("genv-recording.yml")?;
        rules::record(&prometheus, &mut writer, &file, span)?;
        let file = RulesFile::shipped("genv-alerts.yml")?;
        rules::alert(&prometheus, &mut writer, &file, span)?;
        Ok(Past { prometheus, from: self.from, end })
    }

    fn scrape(&self, writer: &mut Writer) -> Result<()> {
        let now = Arc::new(Mutex::new(self.from));
        let clock: Clock = Arc::new({
            let now = Arc::clone(&now);
            move || *now.lock().unwrap_or_else(PoisonError::into_inner)
        });
        let options = CollectOptions { interval: self.every, max_age: self.every * 3, ..CollectOptions::default() };
        let hosts = &self.engine.scenario().hosts;
        let hostnames: Vec<Option<&str>> =
            if self.exporter_per_host { hosts.iter().map(|host| Some(&*host.name)).collect() } else { vec![None] };
        let exporters = hostnames.into_iter();
        let exporters = exporters.map(|name| PlayedExporter::new(&self.engine, name, &options, &clock, &self.troubles));
        let mut exporters: Vec<PlayedExporter> = exporters.collect();
        let mut passed = Duration::ZERO;
        while passed <= self.lasting {
            let moment = self.from + passed;
            *now.lock().unwrap_or_else(PoisonError::into_inner) = moment;
            for exporter in &mut exporters {
                exporter.scrape(passed, milliseconds(moment)?, writer)?;
            }
            passed += self.every;
        }
        writer.flush()
    }
}
