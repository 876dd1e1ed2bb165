//! `genv-enforcer run`: the daemon around the cycles.

mod collecting;
mod cycles;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use genv_core::text::harmless;
use genv_web::{Limits, NotifyState, Server, WebConfig, build, notify, watchdog};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::commands::print_status;
use crate::config::{self, Config, NameService, zone};
use crate::cycle::Done;
use crate::directory::RuntimeDirectory;
use crate::endpoints::{Endpoints, LastCycle, MISSED_CYCLES};
use crate::flags::RunFlags;
use crate::metrics::{self, Instruments, mode_word};
use crate::output::now_seconds;
use crate::page::Findings;
use crate::reload::{Look, Rules};
use crate::{UsageError, log};
use collecting::{Collecting, Facts};
use cycles::{Cycles, start_cycles};

/// Threads that answer requests; collecting and cycles have their own.
const WORKER_THREADS: usize = 2;

/// Held while a daemon runs: two would act twice.
const RUN_LOCK: &str = "run.lock";

/// The time between two checks of the configuration, and between two messages to the watchdog.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How long a step of a cycle may take beyond the missed intervals: locks and disks can take seconds.
const LONGEST_STEP: Duration = Duration::from_secs(30);

/// How long the program waits for the end of a cycle after a signal.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs until a signal ends it, or for one cycle.
pub(crate) fn run(flags: RunFlags) -> anyhow::Result<()> {
    let source = flags.source().ok_or_else(|| {
        UsageError(
            "cannot enforce: no rules are named. Name a configuration with --config, or rules of genv 1.4.3, such as --env-devices"
                .to_owned(),
        )
    })?;
    let overrides = flags.overrides();
    let rules = Rules::open(source, overrides, now_seconds())?;
    log::start(flags.log);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .thread_name("serve")
        .enable_all()
        .build()
        .map_err(|error| {
            anyhow!("cannot start the threads that answer requests: {error}. Allow more processes (ulimit -u)")
        })?;
    let ended = runtime.block_on(enforce(flags, rules));
    // The program does not wait for a cycle that hangs.
    runtime.shutdown_background();
    ended
}

async fn enforce(flags: RunFlags, rules: Rules) -> anyhow::Result<()> {
    let once = rules.in_force().config.interval.is_zero();
    let signals = Signals::listen()?;
    let directory = RuntimeDirectory::open(flags.directory.path())?;
    let _only = directory.try_lock(RUN_LOCK)?.with_context(|| {
        let path = directory.path().display();
        format!("cannot enforce: another genv-enforcer has {path}. Stop it first, or name another directory with --state-directory")
    })?;
    let server = if once {
        None
    } else {
        let web_config = flags.web_config_file.as_deref().map(WebConfig::open);
        let (web_config, limits) = (web_config.transpose()?, Limits::default());
        Some(if flags.systemd_socket {
            Server::inherit(web_config, limits)?
        } else {
            Server::bind(&flags.listen_addresses, web_config, limits).await?
        })
    };
    let facts = Facts::new(flags.sources, flags.collect, flags.hosts)?;
    let (collecting, followed) = Collecting::start(facts, &rules.in_force().config)?;
    let cycles = start_cycles(directory, &collecting, followed, &rules)?;

    let last_cycle = Arc::new(LastCycle::new(rules.in_force().config.interval));
    let instruments = Instruments::new()?;
    let requests = instruments.requests();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = server.map(|server| {
        let addresses = server.local_addresses();
        tracing::info!(?addresses, "serving");
        let endpoints = Endpoints::new(Arc::clone(&last_cycle));
        tokio::spawn(server.serve(endpoints, requests, async {
            let _ = stopped.await;
        }))
    });
    let daemon = Daemon { rules, collecting, cycles, last_cycle, instruments, once };
    let ended = daemon.follow(signals).await;
    let _ = stop.send(());
    if let Some(serving) = serving {
        serving.await.context("cannot serve: a defect of this program")?;
    }
    ended
}

/// What a running daemon consists of.
struct Daemon {
    rules: Rules,
    collecting: Collecting,
    cycles: Cycles,
    last_cycle: Arc<LastCycle>,
    instruments: Instruments,
    once: bool,
}

impl Daemon {
    /// Runs a cycle for each publication until a signal.
    async fn follow(mut self, mut signals: Signals) -> anyhow::Result<()> {
        let in_force = self.rules.in_force();
        tracing::info!(
            event = "started",
            version = build::VERSION,
            revision = build::REVISION,
            config = in_force.source.as_str(),
            sha256 = in_force.config.hash.as_str(),
            rules = in_force.config.rules.len(),
            mode = mode_word(in_force.config.mode),
            timezone = zone::described(&in_force.config.timezone, now_seconds()),
            "enforcing"
        );
        if !self.once {
            self.say_warnings();
        }
        let mut ticks = interval(LOOK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let wake = self.rules.wake();
        let mut busy = false;
        let mut ready = false;
        let signal = loop {
            tokio::select! {
                _ = signals.terminate.recv() => break "SIGTERM",
                _ = signals.interrupt.recv() => break "SIGINT",
                _ = signals.hangup.recv() => self.look(true)?,
                () = wake.notified() => self.look(false)?,
                _ = ticks.tick() => {
                    self.look(false)?;
                    if watchdog().is_some() && self.goes_on() {
                        notify(&[NotifyState::Watchdog]);
                    }
                }
                publication = self.collecting.stream.next(), if !busy => {
                    let publication = publication.map_err(|_| {
                        anyhow!("cannot go on: the collection has ended. The log says why; start the enforcer again")
                    })?;
                    self.cycles.begin(publication, self.rules.in_force().clone())?;
                    busy = true;
                }
                done = self.cycles.done.recv() => {
                    let done = done.ok_or_else(|| anyhow!("cannot go on: the cycle has ended by a defect of this program. Report it, and start the enforcer again"))?;
                    busy = false;
                    if self.once {
                        return print_status(&done.status);
                    }
                    let measured = &done.measured;
                    self.instruments.cycle(measured.cycle_duration_seconds, &measured.actions);
                    let text = metrics::render(measured) + &self.instruments.text();
                    let summary = summary(&done);
                    let zone = self.rules.in_force().config.timezone.clone();
                    let findings = Findings::new(done.status, done.actions, zone);
                    self.last_cycle.publish(text, findings, self.interval(), done.all_blind);
                    if !ready {
                        notify(&[NotifyState::Ready]);
                        ready = true;
                    }
                    notify(&[NotifyState::Status(&harmless(&summary))]);
                }
            }
        };
        tracing::info!(event = "stopped", signal, "stopping on a signal");
        notify(&[NotifyState::Stopping]);
        self.cycles.stopping.store(true, Ordering::Relaxed);
        if busy && timeout(STOP_TIMEOUT, self.cycles.done.recv()).await.is_err() {
            tracing::warn!("a cycle was still going on");
        }
        Ok(())
    }

    /// Whether cycles, or steps of the running cycle, follow one another in time. With a short watchdog time, a step may take half
    /// of that time, so that a step that hangs is noticed within two watchdog times.
    fn goes_on(&self) -> bool {
        let watchdog = watchdog().unwrap_or(LONGEST_STEP * 2);
        let step = LONGEST_STEP.min(watchdog / 2);
        self.cycles.heartbeat.age() <= self.interval() * MISSED_CYCLES + step
    }

    fn interval(&self) -> Duration {
        self.rules.in_force().config.interval
    }

    /// Loads the configuration if it has changed, and always with `now`.
    fn look(&mut self, now: bool) -> anyhow::Result<()> {
        if now {
            let time = NotifyState::monotonic_usec_now().context("cannot read the clock")?;
            notify(&[NotifyState::Reloading, time]);
        }
        match self.rules.look(now, now_seconds()) {
            Look::Same => {}
            Look::Loaded => {
                let in_force = self.rules.in_force();
                tracing::info!(
                    event = "config_loaded",
                    config = in_force.source.as_str(),
                    sha256 = in_force.config.hash.as_str(),
                    rules = in_force.config.rules.len(),
                    mode = mode_word(in_force.config.mode),
                    timezone = zone::described(&in_force.config.timezone, now_seconds()),
                    "another configuration is in force"
                );
                self.collecting.follow(&in_force.config)?;
                self.say_warnings();
            }
            Look::Refused => {
                let in_force = self.rules.in_force();
                tracing::error!(
                    event = "config_refused",
                    error = in_force.error.as_deref().unwrap_or_default(),
                    sha256 = in_force.config.hash.as_str(),
                    "the configuration cannot be used; the last good one stays in force"
                );
            }
        }
        if now {
            notify(&[NotifyState::Ready]);
        }
        Ok(())
    }

    /// Logs probable mistakes of the configuration. This runs in the background: the lookup of users may take long.
    fn say_warnings(&self) {
        let Some(path) = self.rules.file().map(Path::to_owned) else {
            return;
        };
        task::spawn_blocking(move || {
            let source_name = path.display().to_string();
            let warnings =
                config::read(&path).and_then(|text| Config::warnings(&source_name, &text, &NameService, now_seconds()));
            // A file that cannot be used any more is about to be refused.
            for warning in warnings.unwrap_or_default() {
                let warning = warning.to_string();
                tracing::warn!(
                    event = "config_warning",
                    warning,
                    "the configuration has something that is probably a mistake"
                );
            }
        });
    }
}

/// A line for the service manager.
fn summary(done: &Done) -> String {
    let status = &done.status;
    let open = if status.breaker.is_some() { ", breaker open" } else { "" };
    let blind = if status.blind.is_empty() { "" } else { ", blind" };
    format!("{}: {} rules, {} violations{open}{blind}", status.mode, status.config.rules.len(), status.violations.len())
}

/// The signals to the daemon.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                anyhow!("cannot wait for the signals that end this program: {error}. Allow more open files (ulimit -n)")
            })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }
}
