//! The parts of a cycle of the enforcer, and of an action.

use anyhow::{Result, ensure};
use genv_core::enforcement::{ENFORCEMENT_FILE, Enforcement};
use genv_core::model::{HostSnapshot, Snapshot};
use genv_core::proc::ProcReader;
use genv_core::state::StateDirectory;
use genv_enforcer::config::Config;
use genv_enforcer::directory::{Audience, RuntimeDirectory};
use genv_enforcer::execute::{EvidenceSources, Executor, ExecutorHost, GpuUse, Policy};
use genv_enforcer::history_file;
use genv_enforcer::metrics::{self, Counters, Measured};
use genv_enforcer::plan::{History, Input, Outcome, plan};
use genv_enforcer::status::held;
use genv_tests::enforcer;
use genv_tests::process::Sleeper;

use super::{CYCLES, CYCLES_BEFORE, INTERVAL, RULES};
use crate::enforcer::published;
use crate::table::{median, thread_cpu_seconds};

const DEEDS: usize = 15;

/// CPU in seconds of each part of a cycle.
pub(super) fn of_a_cycle(snapshot: &Snapshot) -> Result<Vec<(&'static str, f64)>> {
    const NAMES: [&str; 5] =
        ["the plan", "noting what was seen", "history.json", "status.json", "rendering the metrics"];
    let config = Config::parse("rules.yaml", RULES)?;
    let folder = tempfile::tempdir()?;
    let directory = RuntimeDirectory::open(folder.path())?;
    let mut snapshot = snapshot.clone();
    let noon = snapshot.timestamp_seconds;
    let mut history = History::default();
    let mut counters = Counters::default();
    let mut times: [Vec<f64>; 5] = Default::default();
    for cycle in 0..CYCLES_BEFORE + CYCLES as usize {
        let now_seconds = noon + (INTERVAL * cycle as u32).as_secs_f64();
        let hosts: [HostSnapshot; 1] = [published(&mut snapshot, now_seconds)];
        let input = Input {
            hosts: &hosts,
            config: &config,
            groups: &Default::default(),
            waivers: &[],
            unconfirmed: None,
            paused_until_seconds: None,
            now_seconds,
        };
        let mut at = vec![thread_cpu_seconds()];
        let mut done = || at.push(thread_cpu_seconds());
        drop(plan(&input, &history));
        done();
        let plan = history.plan(&input);
        done();
        for step in &plan.steps {
            history.settle(step, &Outcome::Would, now_seconds);
        }
        let mut done = || at.push(thread_cpu_seconds());
        history_file::save(&directory, &history)?;
        done();
        let status = Enforcement { violations: plan.violations.iter().map(held).collect(), ..Enforcement::default() };
        let status = serde_json::to_vec(&status)?;
        directory.replace(ENFORCEMENT_FILE, &status, Audience::Everybody)?;
        done();
        let hostnames = || hosts.iter().map(|host| host.hostname.as_str());
        counters.begin(&config.rules, hostnames(), &plan, config.mode);
        let measured = Measured {
            violations: metrics::violations(&plan, &config.rules, hostnames()),
            stages: metrics::stages(&plan),
            unknown_processes: metrics::unknown_processes(&plan, hostnames()),
            counters: counters.clone(),
            ..Measured::default()
        };
        ensure!(!metrics::render(&measured).is_empty(), "no metrics");
        done();
        if cycle >= CYCLES_BEFORE {
            let mut parts: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
            // The measured time of noting includes another plan.
            parts[1] -= parts[0];
            for (times, part) in times.iter_mut().zip(parts) {
                times.push(part);
            }
        }
    }
    Ok(NAMES.into_iter().zip(times.map(median)).collect())
}

/// CPU in seconds of ending a process, with all that belongs to it.
pub(super) fn of_a_deed() -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let victims = (0..DEEDS).map(|_| enforcer::sleeper(&[("HOME", "/")]));
    let victims = victims.collect::<Result<Vec<_>>>()?;
    let pids: Vec<u32> = victims.iter().map(Sleeper::pid).collect();
    let genv_directory = folder.path().join("genv");
    let gpu_use: GpuUse = pids.iter().map(|pid| (*pid, [0].into())).collect();
    let evidence = EvidenceSources {
        gpu_use: Box::new(move || Ok(gpu_use.clone())),
        gpu_uuid: Box::new(|_| None),
        processes: Box::new(ProcReader::new()),
        state: Box::new(StateDirectory::new(&genv_directory)),
    };
    let place =
        ExecutorHost { hostname: "here".to_owned(), genv_directory, state_directory: folder.path().join("enforcer") };
    let config = Config::parse(
        "rules.yaml",
        "version: 1\nmode: enforce\nbreaker: {signals_per_minute: 1000, share_of_users: 1}\nrules: []\n",
    )?;
    let mut executor = Executor::open(place, Policy::from(&config), evidence)?;
    let mut times = Vec::new();
    for pid in pids {
        let step = enforcer::terminate(&enforcer::target("here", pid)?);
        let began = thread_cpu_seconds();
        let outcome = executor.execute(&step, "a process uses device 0 outside any environment");
        times.push(thread_cpu_seconds() - began);
        ensure!(outcome == Outcome::Done, "not done: {outcome:?}");
    }
    Ok(median(times))
}
