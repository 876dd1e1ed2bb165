//! `genv-enforcer explain`: why a process is, or is not, safe, rule by rule.
//!
//! Whoever asks sees what they may see: without root, environs of other users' processes cannot be read, nor what the
//! enforcer remembers. What it publishes of itself anybody may read, and stands in then.

mod answer;

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use genv_core::enforcement::Enforcement;
use genv_core::model::{HostSnapshot, Snapshot};
use genv_core::proc::{ProcReader, ProcessFacts, ProcessRead, ProcessRequest, ProcessSource as _};
use genv_core::state::directory_path;
use genv_simulator::SourceOptions;

use crate::blind::{SourceStates, unknown_devices};
use crate::config::{Config, Waiver};
use crate::flags::ExplainFlags;
use crate::groups::users;
use crate::groups::{self, Groups, UserGroups};
use crate::history_file::HISTORY_FILE;
use crate::output::{now_seconds, print, print_json};
use crate::plan::{History, Input, Unconfirmed, explain as explained};
use crate::records::{Here, Records, Witness};
use crate::{UsageError, execute, host};
use answer::{ProcessAnswer, Verdict};

/// How long sources may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The command.
pub(crate) fn explain(flags: ExplainFlags) -> anyhow::Result<()> {
    let directory = flags.directory.path();
    let mut notes = Vec::new();
    let status = Enforcement::read(&directory).unwrap_or_else(|error| {
        notes.push(error);
        None
    });
    let config = rules(flags.config.as_deref(), status.as_ref(), &directory, &mut notes)?;
    if status.as_ref().is_some_and(|it| it.is_abandoned(now_seconds())) {
        notes.push(
            "the enforcer has told nothing new for a while: it has ended or hangs, and does nothing until it runs again"
                .to_owned(),
        );
    }
    let sources = SourceOptions::from(flags.sources).or_from_environment()?;
    let hostname = sources.own_hostname();
    let state_directory = sources.state_directory.clone();
    let state_directory = state_directory.unwrap_or_else(|| directory_path(None));
    let publication = host::collect(sources.open()?, host::collect_options(PATIENCE))?
        .next_blocking()
        .context("cannot see who uses the GPUs: a defect of this program; start it again")?;
    let mut here = Here::new(state_directory);
    let mut records = Records::peek(&directory);
    let witness = (hostname.as_str(), &mut here as &mut dyn Witness);
    let counting = records.count(&publication.hosts, Some(witness), now_seconds());
    let hosts = &counting.hosts[..];
    let here = SourceStates::default().update(hosts, |_| false, now_seconds());
    let elsewhere = status.iter().flat_map(|it| it.blind.clone());
    notes.extend(here.into_iter().chain(elsewhere).map(|it| {
        let why = genv_core::text::harmless(&it.why);
        format!("the enforcer is blind: {}: {why}", it.place())
    }));
    let own = hosts.iter().find(|host| host.hostname == hostname);
    let own =
        own.or_else(|| hosts.first()).context("cannot explain anything: there is no host. Name one in the scenario")?;
    let pid = flags.pid.get();
    let counted = (hosts, &counting.unconfirmed);
    let mut answer = answer(pid, own, counted, &config, status, &directory, notes)?;
    answer.notes.dedup();
    if flags.json {
        return print_json(&answer);
    }
    print(&answer.text(now_seconds(), &config.timezone))
}

fn answer(
    pid: u32,
    own: &HostSnapshot,
    (hosts, unconfirmed): (&[HostSnapshot], &Unconfirmed),
    config: &Config,
    status: Option<Enforcement>,
    directory: &Path,
    mut notes: Vec<String>,
) -> anyhow::Result<ProcessAnswer> {
    let snapshot = own.snapshot.as_deref();
    let shown = snapshot.is_some_and(|it| it.processes.iter().any(|it| it.pid == pid));
    let facts = facts(pid);
    if !shown {
        let verdict = without_device(pid, own, facts.as_ref())?;
        return Ok(ProcessAnswer::new(pid, own, verdict, status.as_ref(), notes));
    }
    let history = history(directory, &mut notes);
    let now = now_seconds();
    let mut waivers: Vec<Waiver> = status.iter().flat_map(given).collect();
    let known = if groups::are_needed(config) { ask_groups(&users(hosts))? } else { UserGroups::default() };
    waivers.extend(groups::waiver_of_unknown_groups(known.unknown, config, now));
    let input = Input {
        hosts,
        config,
        groups: &known.groups,
        waivers: &waivers,
        unconfirmed: Some(unconfirmed),
        paused_until_seconds: status.as_ref().and_then(|it| it.paused_until_seconds),
        now_seconds: now,
    };
    let mut remembered = history.clone().unwrap_or_default();
    if let (None, Some(status), Some(snapshot)) = (&history, &status, snapshot) {
        remembered.take_left_behind(&status.left_behind, &own.hostname, snapshot, now);
    }
    let mut found = explained(&input, &remembered, &own.hostname, pid)
        .context("cannot explain the process: the driver names it, and its facts are missing or too old. Try again")?;
    if found.out_of_reach.is_none() {
        let enforcer = status.as_ref().filter(|it| it.pid == pid);
        found.out_of_reach = enforcer
            .map(|_| "it is the enforcer".to_owned())
            .or_else(|| execute::ProtectedPrograms::of(&config.never).exemption(pid));
    }
    let verdict = Verdict::of(&found);
    let mut answer = ProcessAnswer::new(pid, own, verdict, status.as_ref(), notes);
    // What this program sees for the first time, the daemon may have seen long ago.
    let published = match (&history, &status) {
        (None, Some(status)) => &status.violations[..],
        _ => &[],
    };
    answer.take(found, snapshot, facts.as_ref(), published);
    Ok(answer)
}

/// The rules: those named, else those that the daemon follows.
fn rules(
    named: Option<&Path>,
    status: Option<&Enforcement>,
    directory: &Path,
    notes: &mut Vec<String>,
) -> anyhow::Result<Config> {
    if let Some(path) = named {
        return Ok(Config::load(path)?);
    }
    let Some(status) = status else {
        let directory = directory.display();
        return Err(UsageError(format!(
            "cannot explain: no enforcer has written to {directory}, so that its rules are not known. Name a configuration with --config, or its directory with --state-directory"
        ))
        .into());
    };
    let path = Path::new(&status.config.source);
    if !path.is_file() {
        return Err(UsageError(format!(
            "cannot explain: the rules of the enforcer come from {}, which is no file here. Name a configuration with --config",
            crate::plan::words::name(&status.config.source)
        ))
        .into());
    }
    let config = Config::load(path)?;
    if config.hash != status.config.hash {
        let path = path.display();
        notes.push(format!("{path} is not what the enforcer follows now: this is what the file says"));
    }
    Ok(config)
}

/// What the daemon remembers; nothing if it may not be read, or is not there.
fn history(directory: &Path, notes: &mut Vec<String>) -> Option<History> {
    let path = directory.join(HISTORY_FILE);
    let cannot = |why: String| {
        let path = path.display();
        format!("cannot read {path} ({why}): how far a violation is comes from what the enforcer publishes")
    };
    match fs::read_to_string(&path) {
        Ok(text) => match History::parse(&text) {
            Ok(history) => Some(history),
            Err(error) => {
                notes.push(cannot(error.to_string()));
                None
            }
        },
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            notes.push(cannot(error.to_string()));
            None
        }
    }
}

/// Exemptions as the daemon publishes them, those that were given while it runs among them.
fn given(status: &Enforcement) -> impl Iterator<Item = Waiver> {
    status.waivers.iter().map(|waiver| Waiver {
        users: waiver.users.iter().cloned().collect(),
        rules: waiver.rules.iter().cloned().collect(),
        until_seconds: waiver.until_seconds,
        reason: waiver.reason.clone(),
    })
}

fn ask_groups(users: &BTreeSet<String>) -> anyhow::Result<UserGroups> {
    let mut groups = Groups::start().map_err(|error| {
        anyhow!("cannot start the thread that asks for groups: {error}. Allow more processes (ulimit -u)")
    })?;
    Ok(groups.of(users))
}

/// What the kernel says of it.
fn facts(pid: u32) -> Option<ProcessRead> {
    let request = ProcessRequest { processes: vec![pid], members: Vec::new() };
    ProcReader::new().read(&request).processes.remove(&pid)
}

/// Of a process that the driver does not name.
fn without_device(pid: u32, own: &HostSnapshot, facts: Option<&ProcessRead>) -> anyhow::Result<Verdict> {
    match facts {
        Some(ProcessRead::Present(_)) => {}
        Some(ProcessRead::Unreadable) => {
            return Err(anyhow!("cannot explain process {pid}: this user may not see it. Ask as root"));
        }
        Some(ProcessRead::Vanished) | None => {
            return Err(anyhow!(
                "cannot explain process {pid}: there is none on this host. Name one that 'genv devices ps' or 'nvidia-smi' shows"
            ));
        }
    }
    let snapshot = own.snapshot.as_deref();
    let gpu = snapshot.and_then(|it| it.collectors.get("gpu"));
    Ok(match gpu {
        Some(gpu) if gpu.success && gpu.current => {
            snapshot.and_then(unused_is_unknown).map_or_else(Verdict::no_device, |why| Verdict::unseen(Some(&why)))
        }
        gpu => Verdict::unseen(gpu.and_then(|gpu| gpu.error.as_deref())),
    })
}

/// Why a process that is on no device of a snapshot may be on one all the same.
fn unused_is_unknown(snapshot: &Snapshot) -> Option<String> {
    let mut whole = snapshot.devices.iter().filter(|it| it.index.mig.is_none());
    unknown_devices(snapshot).or_else(|| {
        let silent = whole.find(|it| !it.up)?;
        Some(format!("device {} does not answer", silent.index))
    })
}

/// The process's facts, if they are those of the snapshot's process.
fn same_process(read: Option<&ProcessRead>, start_time_ticks: Option<u64>) -> Option<&ProcessFacts> {
    match read {
        Some(ProcessRead::Present(facts)) if Some(facts.start_time_ticks) == start_time_ticks => Some(facts),
        _ => None,
    }
}
