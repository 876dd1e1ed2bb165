//! `genv-enforcer carry-out`: what the enforcer of another machine decided, planned again by what is true here and now.

mod judgement;
mod published;

use std::collections::BTreeSet;
use std::io::{Read as _, stdin};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use genv_core::collect;
use genv_core::model::{HostSnapshot, Publication};
use genv_core::text::harmless;
use genv_simulator::SourceOptions;
use jiff::tz::TimeZone;
use serde::Deserialize;

use crate::UsageError;
use crate::commands::{now_seconds, print_json, tell};
use crate::config::{BreakerLimits, Config, Mode, Never};
use crate::control::Control;
use crate::cycle::{is_left_alone, keep_left};
use crate::directory::RuntimeDirectory;
use crate::execute::surprise::Expected;
use crate::execute::{Executor, Policy};
use crate::execute_report::CONFIGURATION;
use crate::flags::CarryOutFlags;
use crate::groups::Groups;
use crate::host::{Latest, executor_called, own_sources, users_of_devices};
use crate::intents::{Intent, Intents, Outcomes, Rules, VERSION};
use crate::plan::{History, Outcome, Plan, StepKind, Violation};
use crate::reload::Written;
use crate::tell::post::{Notice, Post};
use judgement::{Agreed, Judgement, later};

/// More cannot come through a session.
const MOST_BYTES: u64 = 16 << 20;

/// How long GPUs may take to tell who uses them.
const PATIENCE: Duration = Duration::from_secs(5);

/// Nothing is begun after this: whoever asks waits a little longer, and should learn how it went.
const LONGEST: Duration = Duration::from_secs(15);

/// Does what stdin says as far as it is right, and prints how each step went.
pub(crate) fn carry_out(flags: CarryOutFlags) -> anyhow::Result<()> {
    let began = Instant::now();
    let intents = read()?;
    let own = own_configuration(flags.config.as_deref())?;
    let sources = SourceOptions::from(flags.sources).or_from_environment()?;
    let directory = RuntimeDirectory::open(flags.directory.path())?;
    let outcomes = Machine { sources, directory, own }.carry_out(&intents, began)?;
    print_json(&Outcomes { version: VERSION, outcomes })
}

/// This machine, and what its administrator says.
struct Machine {
    sources: SourceOptions,
    directory: RuntimeDirectory,
    /// Its own configuration.
    own: Option<Config>,
}

impl Machine {
    fn carry_out(&self, intents: &Intents, began: Instant) -> anyhow::Result<Vec<Outcome>> {
        let rules = config(&intents.rules);
        let publication = self.look(&intents.hostname)?;
        let latest = Arc::new(Latest::default());
        latest.replace(Arc::clone(&publication));
        let policy = policy(rules.as_ref().ok(), self.own.as_ref());
        let executor = executor_called(intents.hostname.clone(), &self.sources, self.directory.path(), policy, latest)?;
        let mut executor = executor.asked_by(intents.asked_by.clone())?;
        let config = match rules {
            Ok(config) => config,
            Err(why) => return Ok(refuse_all(&mut executor, intents, &why)),
        };
        let control = match Control::read(&self.directory, now_seconds()) {
            Ok(control) => control,
            Err(error) => return Ok(refuse_all(&mut executor, intents, &error.to_string())),
        };
        let mut groups = Groups::start().context("cannot ask for groups: no thread")?;
        let judgement = Judgement::new(intents, &config, &publication, &control, &mut groups);

        let steps = intents.steps.iter().map(|intent| intent.step.clone());
        let plan = Plan { steps: steps.collect(), ..Plan::default() };
        let notes = executor.begin(&Expected::default().hits(&plan), &users_of_devices(&publication.hosts));
        if let Some(why) = notes.tripped {
            tell(&format!("the breaker trips: {why}: see to it, then 'genv-enforcer reset'"));
        }
        end_left(&mut executor, &publication.hosts, intents, &config, &control);
        let agreed: Vec<Result<Agreed, Outcome>> = intents
            .steps
            .iter()
            .map(|intent| match began.elapsed() > LONGEST {
                true => Err(later("the host was too slow to come to it")),
                false => judgement.of(intent),
            })
            .collect();
        let violations: Vec<Option<Violation>> = intents
            .steps
            .iter()
            .zip(&agreed)
            .map(|(intent, agreed)| Some(violation(intents, intent, agreed.as_ref().ok()?)))
            .collect();
        let mut post = Post::of_terminals();
        let mut warned = warn(&mut post, intents, &violations, &config).into_iter();
        let mut outcomes = Vec::with_capacity(intents.steps.len());
        let (mut told, mut done) = (Vec::new(), Vec::new());
        for ((intent, agreed), violation) in intents.steps.iter().zip(&agreed).zip(&violations) {
            let outcome = match (agreed, &intent.step.kind) {
                (Err(outcome), _) => executor.refuse(&intent.step, &intent.why(), outcome.clone()),
                (Ok(_), StepKind::Report) => Outcome::Done,
                (Ok(_), StepKind::Warn { .. }) => warned.next().unwrap_or(Outcome::Done),
                (Ok(_), _) if began.elapsed() > LONGEST => {
                    let outcome = later("the host was too slow to come to it");
                    executor.refuse(&intent.step, &intent.why(), outcome)
                }
                (Ok(agreed), _) => executor.carry_out(&agreed.step, &intent.why()),
            };
            if let (Outcome::Done, Ok(agreed), Some(violation)) = (&outcome, agreed, violation) {
                told.extend(published::of(intents, intent, agreed, now_seconds()));
                if !matches!(agreed.step.kind, StepKind::Report | StepKind::Warn { .. }) {
                    let step = &agreed.step.kind;
                    done.push(Notice { violation, step });
                }
            }
            outcomes.push(outcome);
        }
        executor.end_cycle();
        // What was done was done, whether or not it can be told.
        if let Err(error) = published::add(&self.directory, &intents.asked_by, told, now_seconds()) {
            tell(&format!("what was done is not told by 'genv why': {error}"));
        }
        // Who reads that finds the rest by 'genv why'.
        post.tell(&done, intents.now_seconds, &config.timezone);
        Ok(outcomes)
    }

    /// What is true here, under the name that whoever asks has for this host.
    fn look(&self, hostname: &str) -> anyhow::Result<Arc<Publication>> {
        let collected = collect::once(vec![own_sources(&self.sources)?], PATIENCE);
        let collected = collected.context("cannot ask this machine")?;
        let snapshot = collected.hosts.first().and_then(|it| it.snapshot.clone());
        let mut snapshot = snapshot.context("cannot carry out anything: nothing tells of this machine")?;
        Arc::make_mut(&mut snapshot).hostname = hostname.to_owned();
        let host =
            HostSnapshot { hostname: hostname.to_owned(), snapshot: Some(snapshot), ..collected.hosts[0].clone() };
        Ok(Arc::new(Publication { sequence: 1, hosts: vec![host] }))
    }
}

/// Ends processes of devices that were taken when this host was asked before, and whose turn has come.
fn end_left(executor: &mut Executor, hosts: &[HostSnapshot], intents: &Intents, config: &Config, control: &Control) {
    if control.paused_until_seconds.is_some() {
        return;
    }
    let at = (intents.hostname.as_str(), intents.now_seconds);
    let mut given = control.waivers();
    // What was told here ends by the clock here.
    let behind = intents.now_seconds - now_seconds();
    for waiver in &mut given {
        waiver.until_seconds += behind;
    }
    keep_left(executor, hosts, config, &History::default(), intents.now_seconds);
    executor.end_left(|rule, process| is_left_alone(config, &given, at, rule, process));
}

/// Delivers the warnings that this host agrees to. Returns how each went, in their order.
fn warn(post: &mut Post, intents: &Intents, violations: &[Option<Violation>], config: &Config) -> Vec<Outcome> {
    let steps = intents.steps.iter().zip(violations);
    let warnings: Vec<Notice<'_>> = steps
        .filter_map(|(intent, violation)| {
            let step = &intent.step.kind;
            let violation = violation.as_ref()?;
            matches!(step, StepKind::Warn { .. }).then_some(Notice { violation, step })
        })
        .collect();
    let (now, zone) = (intents.now_seconds, &config.timezone);
    let delivered = post.warn(&warnings, &BTreeSet::new(), config.interval, now, zone);
    let outcomes = warnings.iter().zip(delivered);
    let outcomes = outcomes.map(|(warning, delivered)| warning.outcome(&delivered, config));
    outcomes.collect()
}

/// What the user is told of.
fn violation(intents: &Intents, intent: &Intent, agreed: &Agreed) -> Violation {
    Violation {
        key: intent.step.key.clone(),
        username: intent.username.clone(),
        uid: agreed.uid,
        hostname: Some(intents.hostname.clone()),
        action: intent.action,
        since_seconds: intents.now_seconds,
        stage: crate::plan::Stage::Due,
        found: intent.found.clone(),
        allowed: intent.allowed.clone(),
        remedy: intent.remedy.clone(),
        targets: intent.targets.clone(),
        unconfirmed: false,
    }
}

fn refuse_all(executor: &mut Executor, intents: &Intents, why: &str) -> Vec<Outcome> {
    let steps = intents.steps.iter();
    let refused = steps.map(|intent| executor.refuse(&intent.step, &intent.why(), later(why)));
    refused.collect()
}

/// The version alone, of intents that may be of another one.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

fn read() -> anyhow::Result<Intents> {
    let mut json = Vec::new();
    let read = stdin().lock().take(MOST_BYTES + 1).read_to_end(&mut json);
    let length = read.context("cannot read the intents from stdin")?;
    if length as u64 > MOST_BYTES {
        bail!("cannot read the intents: they are longer than {} MiB: send fewer at once", MOST_BYTES >> 20);
    }
    parse(&json)
}

fn parse(json: &[u8]) -> anyhow::Result<Intents> {
    let cannot = |why: &str| {
        UsageError(format!(
            "cannot understand the intents: {}: see that genv-enforcer is of the same version here and where they come from",
            harmless(why)
        ))
    };
    let version = serde_json::from_slice::<Version>(json);
    let version = version.map_err(|error| cannot(&error.to_string()))?.version;
    if version != VERSION {
        let why = format!("they are of version {version}, and this program reads {VERSION}");
        return Err(cannot(&why).into());
    }
    let intents: Intents = serde_json::from_slice(json).map_err(|error| cannot(&error.to_string()))?;
    if !intents.now_seconds.is_finite() || intents.hostname.is_empty() {
        return Err(cannot("they tell no time, or no host").into());
    }
    Ok(intents)
}

/// The rules that came with the intents.
fn config(rules: &Rules) -> Result<Config, String> {
    let config = match &rules.written {
        Written::Flags(flags) => Config::from_flags(flags),
        Written::Yaml(text) => {
            let zone = match &rules.timezone {
                None => Ok(TimeZone::UTC),
                Some(name) => TimeZone::get(name),
            };
            let zone = zone.map_err(|error| {
                format!("the time zone of the rules is not known here: {error}: install the package tzdata")
            })?;
            Config::of_machine(&rules.source, text, zone)
                .map_err(|error| format!("the rules cannot be read here: {error}"))?
        }
    };
    if config.hash != rules.hash {
        return Err("the rules are not those that they claim to be: their hash is another one".to_owned());
    }
    Ok(config)
}

/// What this machine's administrator says, if anything.
fn own_configuration(config: Option<&Path>) -> anyhow::Result<Option<Config>> {
    let default = Some(Path::new(CONFIGURATION)).filter(|path| path.exists());
    Ok(config.or(default).map(Config::load).transpose()?)
}

/// Who and what is out of reach of either side, and of both breakers what stops first. How many users may be hit at once is
/// looked at over all hosts where the rules are; here, only if this machine says so.
fn policy(rules: Option<&Config>, own: Option<&Config>) -> Policy {
    let sides = || [rules, own].into_iter().flatten();
    let mut never = Never::default();
    for side in sides() {
        never.users.extend(side.never.users.iter().cloned());
        let executables = side.never.executables.iter().cloned();
        never.executables.extend(executables);
    }
    let signals = sides().map(|side| side.breaker.signals_per_minute).min();
    let defaults = BreakerLimits::default();
    let own_breaker = own.map(|own| own.breaker);
    Policy {
        mode: Mode::Enforce,
        never,
        breaker: BreakerLimits {
            signals_per_minute: signals.unwrap_or(defaults.signals_per_minute),
            share_of_users: own_breaker.map_or(1.0, |own| own.share_of_users),
            at_least_users: own_breaker.map_or(defaults.at_least_users, |own| own.at_least_users),
        },
    }
}
