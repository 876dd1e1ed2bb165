//! GPUs whose calls hang, end the process or answer wrongly, read by processes of `genv-exporter`.
//!
//! Most tests run in a process of their own, since readers inherit its variables, and restarts are counted by process.

mod faulty_driver;
mod watched;

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use faulty_driver::{DEVICES, FaultyDriver, OF_EACH_SAMPLE, ONCE, SCENARIO, WHOLE, all_calls, gpu_of};
use genv_core::gpu::reader::{Pace, restarts};
use genv_core::gpu::{GpuSample, GpuSource as _};
use genv_tests::enforcer::ends;
use genv_tests::footprint::Footprint;
use genv_tests::metrics::Scrape;
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience::until;
use genv_tests::process::{children, signal};
use rustix::process::Signal;
use watched::{Watched, is_named};

use crate::nvml_source::stage::alone;

const TEMPERATURE: &str = "nvmlDeviceGetTemperature";

/// A GPU is tried again later than a test takes its fault away, since a trial that hangs takes long.
const PACE: Pace = Pace {
    look: Duration::from_millis(25),
    shortest_pause: Duration::from_millis(100),
    longest_pause: Duration::from_millis(100),
};

#[test]
fn a_call_that_crashes_costs_its_gpu_alone_until_it_works() {
    alone(SCENARIO, |stage| {
        Watched::new(stage, PACE).unwrap().loses_the_gpu_of(all_calls(), "crash", "SIGSEGV").unwrap();
    });
}

#[test]
fn a_call_that_aborts_costs_its_gpu_alone_until_it_works() {
    alone(SCENARIO, |stage| {
        Watched::new(stage, PACE).unwrap().loses_the_gpu_of(all_calls(), "abort", "SIGABRT").unwrap();
    });
}

#[test]
fn a_call_that_exits_costs_its_gpu_alone_until_it_works() {
    alone(SCENARIO, |stage| {
        Watched::new(stage, PACE).unwrap().loses_the_gpu_of(all_calls(), "exit", "ended with status 3").unwrap();
    });
}

#[test]
fn a_call_of_each_sample_that_hangs_costs_its_gpu_alone_until_it_works() {
    alone(SCENARIO, |stage| {
        let calls = OF_EACH_SAMPLE.split(' ');
        Watched::new(stage, PACE).unwrap().loses_the_gpu_of(calls, "hang", "does not answer").unwrap();
    });
}

#[test]
fn a_call_of_a_new_reader_that_hangs_costs_its_gpu_alone_until_it_works() {
    alone(SCENARIO, |stage| {
        let calls = ONCE.split(' ');
        Watched::new(stage, PACE).unwrap().loses_the_gpu_of(calls, "hang", "does not answer").unwrap();
    });
}

#[test]
fn a_wrong_answer_costs_no_other_gpu_and_a_failed_call_is_named() {
    alone(SCENARIO, |stage| {
        let mut watched = Watched::new(stage, PACE).unwrap();
        for call in all_calls() {
            for kind in ["error", "garbage", "count"] {
                watched.fails(call, kind);
                let mut seen = watched.until(gpu_of(call), "a failed call is named", |sample| {
                    kind != "error" || sample.withheld.iter().any(|it| is_named(it, call))
                });
                for _ in 0..2 {
                    seen = seen.and_then(|()| watched.until(gpu_of(call), "there is another sample", |_| true));
                }
                let seen = seen.and_then(|()| watched.until_healthy(gpu_of(call)));
                seen.with_context(|| format!("{call} {kind}")).unwrap();
            }
        }
    });
}

#[test]
fn a_call_without_a_gpu_fails_samples_until_it_works_and_restarts_are_counted_by_reason() {
    alone(SCENARIO, |stage| {
        let mut watched = Watched::new(stage, PACE).unwrap();
        for (kind, reason) in [("crash", "signal"), ("exit", "exit"), ("hang", "hang")] {
            // The wrapper of NVML asks for the version while it initializes NVML.
            for (call, named) in [
                ("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount_v2"),
                ("nvmlInit_v2", "nvmlInit_v2"),
                ("nvmlSystemGetDriverVersion", "nvmlInit_v2"),
            ] {
                let before = restarts();
                watched.driver.fails_as_a_whole(call, kind);
                if named == "nvmlInit_v2" {
                    watched.start_again();
                }
                let error = watched.source.sample().unwrap_err().to_string();
                assert!(error.contains(named), "{call} {kind}: {error}");
                watched.driver.works();
                until("samples come again", || Ok(watched.source.sample().is_ok())).unwrap();
                watched.until_healthy(WHOLE).unwrap();
                for ((name, before), (_, after)) in before.into_iter().zip(restarts()) {
                    assert_eq!(after > before, name == reason, "{call} {kind}: {name} was {before}, and is {after}");
                }
            }
        }
    });
}

#[test]
fn a_reader_in_state_d_is_left_to_end_by_itself_and_none_is_started_beside_two() {
    alone(SCENARIO, |stage| {
        let mut watched = Watched::new(stage, PACE).unwrap();
        let readers = || children(std::process::id());
        let first = readers();
        watched.driver.fails(TEMPERATURE, WHOLE, "stuck");
        watched.until(WHOLE, "the GPU is lost", |sample| sample.devices.iter().any(|it| it.lost)).unwrap();
        // Others are read, and the first reader lives.
        assert_eq!(readers().len(), 2);
        assert!(first.iter().all(|pid| readers().contains(pid)), "{first:?}, then {:?}", readers());

        // The first fault ends with its file: it is replaced by one that all readers meet.
        watched.driver.fails_as_a_whole("nvmlDeviceGetCount_v2", "stuck");
        let mut error = String::new();
        until("none is started", || {
            error = watched.source.sample().err().map(|error| error.to_string()).unwrap_or_default();
            Ok(error.contains("do not end"))
        })
        .unwrap();
        assert!(error.contains("nvmlDeviceGetCount_v2"), "{error}");
        let left = readers();
        for _ in 0..3 {
            assert!(watched.source.sample().is_err());
            assert_eq!(readers(), left);
        }
        watched.driver.works();
        until("samples come again", || Ok(watched.source.sample().is_ok())).unwrap();
        watched.until_healthy(WHOLE).unwrap();
    });
}

#[test]
fn an_xid_error_that_the_last_sample_of_a_reader_lacks_is_in_the_next_one() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    let scenario =
        SCENARIO.replace("power: 412.5", &format!("power: 412.5\n        xid: [{{xid: 79, at: {}ms}}]", now + 2000));
    alone(&scenario, |stage| {
        // The hang lasts for three seconds.
        let mut watched = Watched::new(stage, Pace { look: Duration::from_millis(150), ..PACE }).unwrap();
        watched.driver.fails(TEMPERATURE, WHOLE, "hang");
        let mut events = Vec::new();
        until("each of three GPUs has its XID error", || {
            events.extend(watched.sample()?.xid_events);
            Ok(events.len() >= 3)
        })
        .unwrap();
        assert_eq!(events.len(), 3, "{events:?}");
        assert!(events.iter().all(|event| event.xid == 79), "{events:?}");
    });
}

#[test]
fn a_reader_that_is_killed_from_outside_costs_no_gpu_and_no_sample() {
    alone(SCENARIO, |stage| {
        let mut watched = Watched::new(stage, PACE).unwrap();
        for reader in children(std::process::id()) {
            signal(reader, Signal::KILL).unwrap();
            ends(reader).unwrap();
        }
        let lost = |sample: &GpuSample| sample.devices.iter().any(|it| it.lost);
        assert!(!lost(&watched.sample().unwrap()));
    });
}

/// Readers end within a call, so many times.
fn crash(watched: &mut Watched, times: usize) -> Result<()> {
    let total = || restarts().iter().map(|(_, number)| number).sum::<u64>();
    for (_, kind) in (0..times).zip(["crash", "abort", "exit"].into_iter().cycle()) {
        let before = total();
        watched.fails(TEMPERATURE, kind);
        watched.until(WHOLE, "another reader has ended", |_| total() > before)?;
    }
    watched.until_healthy(WHOLE)
}

#[test]
fn a_thousand_crashes_leave_nothing_behind() {
    alone(SCENARIO, |stage| {
        let pause = Duration::from_millis(1);
        let mut watched = Watched::new(stage, Pace { shortest_pause: pause, longest_pause: pause, ..PACE }).unwrap();
        let held = || {
            let own = std::process::id();
            let held = Footprint::of(own).unwrap();
            (held.anonymous_bytes, [held.descriptors, held.threads, children(own).len()])
        };
        // One reader works, and none is tried beside it.
        let rests = |watched: &mut Watched| {
            until("one reader is left", || {
                watched.sample()?;
                Ok(children(std::process::id()).len() == 1)
            })
        };
        crash(&mut watched, 10).unwrap();
        rests(&mut watched).unwrap();
        let (bytes_before, before) = held();
        crash(&mut watched, 1_000).unwrap();
        rests(&mut watched).unwrap();
        let (bytes, after) = held();
        assert_eq!(after, before, "descriptors, threads and children");
        assert!(bytes < bytes_before + (2 << 20), "it grew from {bytes_before} to {bytes} bytes");
    });
}

/// Whether all devices but GPU 2 work, and whether GPU 2 works.
fn works(scrape: &Scrape) -> (bool, bool) {
    let up = |is_wanted: fn(&str) -> bool| {
        let devices = scrape.all("genv_device_up", &[]).into_iter().filter(|(labels, _)| is_wanted(&labels["index"]));
        devices.map(|(_, up)| up).collect::<Vec<_>>()
    };
    (up(|index| index != "2") == [1.0; DEVICES - 1], up(|index| index == "2") == [1.0])
}

#[test]
fn a_reader_ends_with_its_exporter_also_within_a_call() -> Result<()> {
    let simulation = Simulation::new(SCENARIO);
    let driver = FaultyDriver::beside(&simulation.scenario());
    for (end, hangs) in [(Signal::KILL, false), (Signal::KILL, true), (Signal::TERM, false), (Signal::TERM, true)] {
        driver.works();
        let exporter = driver.exporter(&simulation)?;
        exporter.wait_for("GPUs", |scrape| works(scrape) == (true, true))?;
        if hangs {
            driver.fails(TEMPERATURE, WHOLE, "hang");
        }
        let mut readers = Vec::new();
        until("there is a reader", || {
            readers = children(exporter.pid());
            let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            Ok(readers.iter().any(|pid| !hangs || name(pid).trim() == "hangs"))
        })?;
        signal(exporter.pid(), end)?;
        for reader in readers {
            ends(reader).with_context(|| format!("{end:?}, hangs: {hangs}"))?;
        }
    }
    Ok(())
}

#[test]
fn an_exporter_shows_the_other_gpus_when_a_call_ends_its_reader() -> Result<()> {
    let simulation = Simulation::new(SCENARIO);
    let driver = FaultyDriver::beside(&simulation.scenario());
    let exporter = driver.exporter(&simulation)?;
    exporter.wait_for("GPUs", |scrape| works(scrape) == (true, true))?;
    driver.fails(TEMPERATURE, WHOLE, "crash");
    let scrape = exporter.wait_for("a lost GPU", |scrape| works(scrape) == (true, false))?;
    ensure!(scrape.value("genv_reader_restarts_total", &[("reason", "signal")])? >= 1.0);
    for _ in 0..3 {
        ensure!(works(&exporter.next_collection("gpu")?) == (true, false), "{}", exporter.log());
    }
    driver.works();
    exporter.wait_for("all GPUs", |scrape| works(scrape) == (true, true))?;
    Ok(())
}
