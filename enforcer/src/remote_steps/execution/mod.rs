//! `genv-enforcer carry-out`: executes a [`StepRequest`] as far as the plan of this host confirms its steps.

mod local_plan;
mod published;
#[cfg(test)]
mod tests;

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

use super::messages::{RemoteStep, Rules, StepReport, StepRequest, VERSION};
use crate::UsageError;
use crate::config::{BreakerLimits, Config, Mode, Never, Waiver, zone};
use crate::control::Control;
use crate::cycle::{is_exempt_now, keep_remaining};
use crate::directory::RuntimeDirectory;
use crate::execute::surprise::Expected;
use crate::execute::{Executor, Policy};
use crate::execute_report::CONFIGURATION;
use crate::flags::CarryOutFlags;
use crate::groups::Groups;
use crate::host::{LatestPublication, executor_for_host, users_of_devices};
use crate::kinds::SharedFact;
use crate::notices::{delivery::NoticeDelivery, notice::Notice};
use crate::output::{now_seconds, print_json, print_note};
use crate::plan::{History, Outcome, Plan, StepKind, Violation};
use crate::present::WrittenFact;
use crate::reload::Written;
use local_plan::{ConfirmedStep, LocalPlan, later};

/// The longest request that a session can deliver.
const MAX_BYTES: u64 = 16 << 20;

/// How long the GPUs may take for the list of their processes.
const GPU_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason of a step that comes after [`MAX_DURATION`].
const TOO_SLOW: &str = "the host was too slow to begin it";

/// No step is begun after this time, so that the report arrives before the timeout of the machine that has sent the request.
const MAX_DURATION: Duration = Duration::from_secs(15);

/// Reads a request from stdin, executes its steps, and prints the report.
pub(crate) fn run(flags: CarryOutFlags) -> anyhow::Result<()> {
    let began = Instant::now();
    let request = read()?;
    let own = own_configuration(flags.config.as_deref())?;
    let sources = SourceOptions::from(flags.sources).or_from_environment()?;
    let directory = RuntimeDirectory::open(flags.directory.path())?;
    let outcomes = Machine { sources, directory, own }.execute(&request, began)?;
    print_json(&StepReport { version: VERSION, outcomes })
}

/// This machine.
struct Machine {
    sources: SourceOptions,
    directory: RuntimeDirectory,
    /// The configuration that its administrator has written.
    own: Option<Config>,
}

impl Machine {
    fn execute(&self, request: &StepRequest, began: Instant) -> anyhow::Result<Vec<Outcome>> {
        let rules = config(&request.rules);
        let publication = self.collect(&request.hostname)?;
        let latest = Arc::new(LatestPublication::default());
        latest.replace(Arc::clone(&publication));
        let policy = policy(rules.as_ref().ok(), self.own.as_ref());
        let executor =
            executor_for_host(request.hostname.clone(), &self.sources, self.directory.path(), policy, latest)?;
        let mut executor = executor.requested_by(request.asked_by.clone())?;
        let config = match rules {
            Ok(config) => config,
            Err(why) => return Ok(refuse_all(&mut executor, request, &why)),
        };
        let control = match Control::read(&self.directory, now_seconds()) {
            Ok(control) => control,
            Err(error) => return Ok(refuse_all(&mut executor, request, &error.to_string())),
        };
        let mut groups = Groups::start().context("cannot look up groups: no thread")?;
        let local_plan = LocalPlan::new(request, &config, &publication, &control, &mut groups);

        let steps = request.steps.iter().map(|remote| remote.step.clone());
        let plan = Plan { steps: steps.collect(), ..Plan::default() };
        let notes = executor.begin(&Expected::default().hits(&plan), &users_of_devices(&publication.hosts));
        if let Some(why) = notes.tripped {
            print_note(&format!("the breaker trips: {why}: find the cause, then run 'genv-enforcer reset'"));
        }
        end_remaining(&mut executor, &publication.hosts, request, &config, &control);
        let is_late = || began.elapsed() > MAX_DURATION;
        let confirmed: Vec<Result<ConfirmedStep, Outcome>> = request
            .steps
            .iter()
            .map(|remote| match is_late() {
                true => Err(later(TOO_SLOW)),
                false => local_plan.confirm(remote),
            })
            .collect();
        let violations: Vec<Option<Violation>> = request
            .steps
            .iter()
            .zip(&confirmed)
            .map(|(remote, confirmed)| Some(violation(request, remote, confirmed.as_ref().ok()?)))
            .collect();
        let mut delivery = NoticeDelivery::to_terminals();
        let mut warned = warn(&mut delivery, request, &violations, &config).into_iter();
        let mut outcomes = Vec::with_capacity(request.steps.len());
        let (mut published, mut notices) = (Vec::new(), Vec::new());
        for ((remote, confirmed), violation) in request.steps.iter().zip(&confirmed).zip(&violations) {
            let outcome = match (confirmed, &remote.step.kind) {
                (Err(outcome), _) => executor.refuse(&remote.step, &remote.why(), outcome.clone()),
                (Ok(_), StepKind::Report) => Outcome::Done,
                (Ok(_), StepKind::Warn { .. }) => warned.next().unwrap_or(Outcome::Done),
                (Ok(_), _) if is_late() => executor.refuse(&remote.step, &remote.why(), later(TOO_SLOW)),
                (Ok(confirmed), _) => executor.execute(&confirmed.step, &remote.why()),
            };
            if let (Outcome::Done, Ok(confirmed), Some(violation)) = (&outcome, confirmed, violation) {
                published.extend(published::of(request, remote, confirmed, now_seconds()));
                if !matches!(confirmed.step.kind, StepKind::Report | StepKind::Warn { .. }) {
                    notices.push(Notice { violation, step: &confirmed.step.kind });
                }
            }
            outcomes.push(outcome);
        }
        executor.end_cycle();
        // The steps are executed: an error here changes no outcome.
        if let Err(error) = published::add(&self.directory, &request.asked_by, published, now_seconds()) {
            print_note(&format!("'genv why' does not show the executed steps: {error}"));
        }
        // The notices come last, so that a user who reads a notice finds the step with 'genv why'.
        delivery.report(&notices, request.now_seconds, &config.timezone);
        Ok(outcomes)
    }

    /// A snapshot of this host, under the name that the request has for it.
    fn collect(&self, hostname: &str) -> anyhow::Result<Arc<Publication>> {
        let collected = collect::once(vec![self.sources.open_own()?], GPU_TIMEOUT);
        let collected = collected.context("cannot collect a snapshot of this machine")?;
        let snapshot = collected.hosts.first().and_then(|it| it.snapshot.clone());
        let mut snapshot = snapshot.context("cannot execute any step: there is no snapshot of this machine")?;
        Arc::make_mut(&mut snapshot).hostname = hostname.to_owned();
        let host =
            HostSnapshot { hostname: hostname.to_owned(), snapshot: Some(snapshot), ..collected.hosts[0].clone() };
        Ok(Arc::new(Publication { sequence: 1, hosts: vec![host] }))
    }
}

/// Ends processes of devices that earlier requests have detached, at the pace of the rules.
fn end_remaining(
    executor: &mut Executor,
    hosts: &[HostSnapshot],
    request: &StepRequest,
    config: &Config,
    control: &Control,
) {
    if control.paused_until_seconds.is_some() {
        return;
    }
    let at = (request.hostname.as_str(), request.now_seconds);
    let given = own_waivers(control, request);
    keep_remaining(executor, hosts, config, &History::default(), request.now_seconds);
    executor.end_remaining(|rule, process| is_exempt_now(config, &given, at, rule, process));
}

/// The waivers of this host. They end by its clock, and are compared with the time of the request.
fn own_waivers(control: &Control, request: &StepRequest) -> Vec<Waiver> {
    let ahead_seconds = request.now_seconds - now_seconds();
    let mut waivers = control.waivers();
    for waiver in &mut waivers {
        waiver.until_seconds += ahead_seconds;
    }
    waivers
}

/// Delivers the warnings that the local plan has confirmed, and returns their outcomes in the same order.
fn warn(
    delivery: &mut NoticeDelivery,
    request: &StepRequest,
    violations: &[Option<Violation>],
    config: &Config,
) -> Vec<Outcome> {
    let steps = request.steps.iter().zip(violations);
    let warnings: Vec<Notice<'_>> = steps
        .filter_map(|(remote, violation)| {
            let step = &remote.step.kind;
            let violation = violation.as_ref()?;
            matches!(step, StepKind::Warn { .. }).then_some(Notice { violation, step })
        })
        .collect();
    let (now, zone) = (request.now_seconds, &config.timezone);
    let delivered = delivery.warn(&warnings, &BTreeSet::new(), config.interval, now, zone);
    let outcomes = warnings.iter().zip(delivered);
    let outcomes = outcomes.map(|(warning, delivered)| warning.outcome(&delivered, config));
    outcomes.collect()
}

/// The violation in messages to the user.
fn violation(request: &StepRequest, remote: &RemoteStep, confirmed: &ConfirmedStep) -> Violation {
    Violation {
        key: remote.step.key.clone(),
        username: remote.username.clone(),
        uid: confirmed.uid,
        hostname: Some(request.hostname.clone()),
        action: remote.action,
        since_seconds: request.now_seconds,
        stage: crate::plan::Stage::Due,
        fact: SharedFact::new(WrittenFact {
            found: remote.found.clone(),
            allowed: remote.allowed.clone(),
            remedy: remote.remedy.clone(),
        }),
        targets: remote.targets.clone(),
        unconfirmed: false,
    }
}

fn refuse_all(executor: &mut Executor, request: &StepRequest, why: &str) -> Vec<Outcome> {
    let steps = request.steps.iter();
    let refused = steps.map(|remote| executor.refuse(&remote.step, &remote.why(), later(why)));
    refused.collect()
}

/// The version of a request, which may have other fields than [`StepRequest`].
#[derive(Deserialize)]
struct RequestVersion {
    version: u32,
}

fn read() -> anyhow::Result<StepRequest> {
    let mut json = Vec::new();
    let read = stdin().lock().take(MAX_BYTES + 1).read_to_end(&mut json);
    let length = read.context("cannot read the intents from stdin")?;
    if length as u64 > MAX_BYTES {
        bail!("cannot read the intents: they are longer than {} MiB: send fewer at once", MAX_BYTES >> 20);
    }
    parse(&json)
}

fn parse(json: &[u8]) -> anyhow::Result<StepRequest> {
    let cannot = |why: &str| {
        UsageError(format!(
            "cannot understand the intents: {}: install the same version of genv-enforcer here and on the machine that \
             sends the intents",
            harmless(why)
        ))
    };
    let version = serde_json::from_slice::<RequestVersion>(json);
    let version = version.map_err(|error| cannot(&error.to_string()))?.version;
    if version != VERSION {
        let why = format!("they are of version {version}, and this program reads {VERSION}");
        return Err(cannot(&why).into());
    }
    let request: StepRequest = serde_json::from_slice(json).map_err(|error| cannot(&error.to_string()))?;
    if !request.now_seconds.is_finite() || request.hostname.is_empty() {
        return Err(cannot("they have no time, or no host").into());
    }
    Ok(request)
}

/// The rules in the request.
fn config(rules: &Rules) -> Result<Config, String> {
    let config = match &rules.written {
        Written::Flags(flags) => Config::from_flags(flags),
        Written::Yaml(text) => {
            let zone = match &rules.timezone {
                None => Ok(TimeZone::UTC),
                Some(text) => zone::received(text),
            };
            let zone = zone.map_err(|error| {
                format!("the time zone of the rules is not known here: {error}: install the package tzdata")
            })?;
            Config::of_machine(&rules.source, text, zone)
                .map_err(|error| format!("the rules cannot be read here: {error}"))?
        }
    };
    if config.hash != rules.hash {
        return Err("the hash of the rules is not the hash in the request".to_owned());
    }
    Ok(config)
}

/// The configuration of this machine, if there is one.
fn own_configuration(config: Option<&Path>) -> anyhow::Result<Option<Config>> {
    let default = Some(Path::new(CONFIGURATION)).filter(|path| path.exists());
    Ok(config.or(default).map(Config::load).transpose()?)
}

/// Both lists of `never`, and the lower limit of both breakers. The machine that sends the request checks the share of users
/// over all hosts; this machine checks the share only if its own configuration has one.
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
