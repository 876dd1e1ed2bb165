//! Weeks of a scenario in a real Prometheus, without waiting for them.
//!
//! The real collection plays the scenario by a clock that is turned, the real families are what would have been scraped, and
//! Prometheus is given them by remote write, with the stale markers that a scrape would leave. Then its own engine evaluates
//! the shipped rules over all of it.

mod alerts;
mod enforcer;
mod exporter;
mod rules;
mod target;
mod write;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use genv_core::collect::Clock;
use genv_core::collect::CollectOptions;
use genv_core::model::HostSnapshot;
use genv_enforcer::config::Config;
use genv_simulator::Engine;

use crate::prometheus::Prometheus;
use enforcer::{Enforcement, PlayedEnforcer};
use exporter::{PlayedExporter, ensure_nothing_hangs, milliseconds};
use rules::Span;
pub use rules::{Group, Rule, RulesFile};
use target::{Scraped, Target, Trouble};
use write::Writer;

/// A history that is to be played.
#[derive(Clone, Debug)]
pub struct History {
    engine: Arc<Engine>,
    from: SystemTime,
    lasting: Duration,
    every: Duration,
    exporter_per_host: bool,
    enforcement: Option<Enforcement>,
    troubles: Vec<Trouble>,
}

/// A Prometheus that has scraped a history and evaluated the shipped rules.
#[derive(Debug)]
pub struct Past {
    /// It answers at any time of the history.
    pub prometheus: Prometheus,
    from: SystemTime,
    end: SystemTime,
}

impl History {
    /// A day of this scenario (YAML), scraped every 30 s. It begins at the epoch of the scenario's first host.
    ///
    /// # Errors
    /// It is not a scenario, has no host, or something in it hangs.
    pub fn of(scenario: &str) -> Result<Self> {
        Self::of_engine(Engine::from_text("scenario.yaml", scenario)?)
    }

    /// As [`History::of`], of the built-in lab.
    ///
    /// # Errors
    /// None: it is fixed.
    pub fn of_demo() -> Result<Self> {
        Self::of_engine(Engine::demo()?)
    }

    fn of_engine(engine: Engine) -> Result<Self> {
        ensure_nothing_hangs(&engine)?;
        let scenario = engine.scenario();
        let host = scenario.hosts.first().context("a scenario without hosts")?;
        let epoch = u64::try_from(host.epoch_milliseconds).context("an epoch before 1970")?;
        Ok(Self {
            engine: Arc::new(engine),
            from: SystemTime::UNIX_EPOCH + Duration::from_millis(epoch),
            lasting: Duration::from_secs(86_400),
            every: Duration::from_secs(30),
            exporter_per_host: false,
            enforcement: None,
            troubles: Vec::new(),
        })
    }

    /// When it begins.
    #[must_use]
    pub fn from(mut self, from: SystemTime) -> Self {
        self.from = from;
        self
    }

    /// How long it is.
    #[must_use]
    pub fn lasting(mut self, lasting: Duration) -> Self {
        self.lasting = lasting;
        self
    }

    /// Time between two collections, two scrapes, and two evaluations of the rules whose group does not tell.
    #[must_use]
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// An exporter on each host, with the instance `HOST:9820`, rather than one for all with the instance `localhost:9820`.
    #[must_use]
    pub fn exporter_per_host(mut self) -> Self {
        self.exporter_per_host = true;
        self
    }

    /// Beside the exporters an enforcer of all hosts, with the job `genv-enforcer` and the instance `localhost:9821`. It has
    /// these rules (YAML), is in dry-run until so long after the beginning, paused for the half hour before, and enforces
    /// then.
    ///
    /// # Errors
    /// It is no configuration.
    pub fn enforced(mut self, rules: &str, switched_on: Duration) -> Result<Self> {
        self.enforcement = Some(Enforcement { config: Config::parse("enforcer.yaml", rules)?, switched_on });
        Ok(self)
    }

    /// The exporter cannot be scraped between two times from the beginning, and has lost its counters afterwards.
    #[must_use]
    pub fn down(self, instance: &str, from: Duration, until: Duration) -> Self {
        self.trouble(instance, from, until, false)
    }

    /// The exporter is restarted between two scrapes.
    #[must_use]
    pub fn restarted(self, instance: &str, at: Duration) -> Self {
        self.down(instance, at, at)
    }

    /// The exporter collects nothing between two times from the beginning, and serves what it had.
    #[must_use]
    pub fn frozen(self, instance: &str, from: Duration, until: Duration) -> Self {
        self.trouble(instance, from, until, true)
    }

    fn trouble(mut self, instance: &str, from: Duration, until: Duration, frozen: bool) -> Self {
        self.troubles.push(Trouble { instance: instance.to_owned(), from, until, frozen });
        self
    }

    /// Plays it to a new Prometheus, `tool`.
    ///
    /// # Errors
    /// Prometheus cannot be started or refuses something; it would end in the future, which Prometheus refuses.
    pub fn start(self, tool: &str) -> Result<Past> {
        let end = self.from + self.lasting;
        ensure!(
            end <= SystemTime::now(),
            "cannot play a history that ends in the future: Prometheus refuses such samples. Let it begin earlier"
        );
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
        alerts::alert(&prometheus, &mut writer, &file, span)?;
        Ok(Past { prometheus, from: self.from, end })
    }

    fn scrape(&self, writer: &mut Writer) -> Result<()> {
        let now = Arc::new(Mutex::new(self.from));
        let clock: Clock = Arc::new({
            let now = Arc::clone(&now);
            move || *now.lock().unwrap_or_else(PoisonError::into_inner)
        });
        let mut targets = self.targets(&clock)?;
        let enforcement = self.enforcement.as_ref();
        let enforcer = enforcement.map(|it| PlayedEnforcer::new(it, self.from));
        let mut enforcer = enforcer.transpose()?;
        let mut of_enforcer = Scraped::new("genv-enforcer", "localhost:9821");
        let mut passed = Duration::ZERO;
        while passed <= self.lasting {
            let moment = self.from + passed;
            *now.lock().unwrap_or_else(PoisonError::into_inner) = moment;
            for target in &mut targets {
                target.scrape(passed, milliseconds(moment)?, writer)?;
            }
            if let Some(enforcer) = &mut enforcer {
                let hosts = targets.iter().flat_map(|target| target.exporter.hosts());
                let hosts: Vec<HostSnapshot> = hosts.cloned().collect();
                let families = enforcer.cycle(&hosts, passed);
                of_enforcer.write(Some(&families), milliseconds(moment)?, writer)?;
            }
            passed += self.every;
        }
        writer.flush()
    }

    fn targets(&self, clock: &Clock) -> Result<Vec<Target>> {
        let options = CollectOptions { interval: self.every, max_age: self.every * 3, ..CollectOptions::default() };
        let scenario = self.engine.scenario();
        let hostnames: Vec<Option<&str>> = if self.exporter_per_host {
            scenario.hosts.iter().map(|h| Some(h.name.as_str())).collect()
        } else {
            vec![None]
        };
        let target = |hostname: Option<&str>| {
            let instance = format!("{}:9820", hostname.unwrap_or("localhost"));
            let troubles = self.troubles.iter();
            let troubles = troubles.filter(|trouble| trouble.instance == instance);
            Target {
                exporter: PlayedExporter::new(&self.engine, hostname, &options, clock),
                troubles: troubles.cloned().collect(),
                scraped: Scraped::new("genv", &instance),
                at: None,
            }
        };
        let targets: Vec<Target> = hostnames.into_iter().map(target).collect();
        for trouble in &self.troubles {
            ensure!(
                targets.iter().any(|target| target.scraped.instance == trouble.instance),
                "no exporter {}: there are {:?}",
                trouble.instance,
                targets.iter().map(|t| &t.scraped.instance).collect::<Vec<_>>()
            );
        }
        Ok(targets)
    }
}

impl Past {
    /// When the history begins.
    #[must_use]
    pub const fn from(&self) -> SystemTime {
        self.from
    }

    /// When it ends.
    #[must_use]
    pub const fn end(&self) -> SystemTime {
        self.end
    }

    /// So long after its beginning.
    #[must_use]
    pub fn after(&self, passed: Duration) -> SystemTime {
        self.from + passed
    }
}
