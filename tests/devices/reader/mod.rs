//! GPUs whose calls hang, end the process or answer wrongly, read by processes of `genv-exporter`.
//!
//! Most tests run in a process of their own, since readers inherit its variables, and restarts are counted by process.

mod faulty_driver;
mod parents;
mod watched;

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use faulty_driver::{DEVICES, OF_EACH_SAMPLE, ONCE, SCENARIO, WHOLE, all_calls, gpu_of};
use genv_core::gpu::reader::{Pace, ReaderSource, restarts};
use genv_core::gpu::{GpuSample, GpuSource as _};
use genv_tests::enforcer::ends;
use genv_tests::footprint::Footprint;
use genv_tests::nvml_sim;
use genv_tests::patience::until;
use genv_tests::process::{children, program, signal, write_script};
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

        // The call holds a lock that all calls need.
        watched.until_healthy(WHOLE).unwrap();
        watched.until_one_reader().unwrap();
        watched.driver.fails(TEMPERATURE, WHOLE, "lock");
        let mut error = String::new();
        until("none is started", || {
            error = watched.source.sample().err().map(|error| error.to_string()).unwrap_or_default();
            Ok(error.contains("do not end"))
        })
        .unwrap();
        let of_gpu = format!("GPU {WHOLE}: {TEMPERATURE} does not answer");
        assert!(error.contains("the driver hangs") && error.contains(&of_gpu) && error.contains("nvmlInit"), "{error}");
        let left = readers();
        assert_eq!(left.len(), 2);
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
fn no_gpu_is_tried_while_a_reader_waits_in_state_d() {
    alone(SCENARIO, |stage| {
        let mut watched = Watched::new(stage, PACE).unwrap();
        let lost = |sample: &GpuSample| sample.devices.iter().filter(|device| device.lost).count();
        watched.driver.fails_for(TEMPERATURE, &[(0, "crash"), (WHOLE, "stuck")]);
        until("two GPUs are lost", || Ok(lost(&watched.sample()?) == 2)).unwrap();
        let before = restarts();
        let began = Instant::now();
        // A trial would crash.
        while began.elapsed() < 5 * PACE.longest_pause {
            watched.sample().unwrap();
            assert_eq!((restarts(), children(std::process::id()).len()), (before, 2));
        }
        watched.driver.works();
        until("both are back", || Ok(lost(&watched.sample()?) == 0)).unwrap();
    });
}

#[test]
fn an_xid_error_that_the_last_sample_of_a_reader_lacks_is_in_the_next_one() {
    alone(SCENARIO, |stage| {
        // The hang lasts for three seconds.
        let mut watched = Watched::new(stage, Pace { look: Duration::from_millis(150), ..PACE }).unwrap();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
        let xid = format!("power: 412.5\n        xid: [{{xid: 79, at: {}ms}}]", now + 2000);
        stage.rewrite(&SCENARIO.replace("power: 412.5", &xid));
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

#[test]
fn one_answer_that_cannot_be_read_fails_no_sample_and_two_do() {
    alone(SCENARIO, |stage| {
        let reader = stage.0.with_file_name("reader");
        let garbage = ["1", "2"].map(|number| reader.with_extension(number));
        // Each start that finds one of these files removes it, and writes garbage to the socket, its standard input.
        let exporter = program("genv-exporter").unwrap();
        let script = format!(
            "#!/bin/sh\nrm \"$0.1\" || rm \"$0.2\" || exec {} \"$@\"\nprintf '\\377\\377\\377\\377' >&0\nexec cat\n",
            exporter.display()
        );
        write_script(&reader, &script).unwrap();
        let mut source = ReaderSource::with(reader, Some(nvml_sim::library()), PACE);
        std::fs::write(&garbage[0], "").unwrap();
        assert_eq!(source.sample().unwrap().devices.len(), DEVICES);
        assert_eq!(restarts(), [("answer", 1), ("exit", 0), ("hang", 0), ("signal", 0)]);

        let mut source = ReaderSource::with(stage.0.with_file_name("reader"), Some(nvml_sim::library()), PACE);
        garbage.iter().for_each(|file| std::fs::write(file, "").unwrap());
        let error = source.sample().unwrap_err().to_string();
        assert!(error.contains("cannot be understood"), "{error}");
        assert_eq!(restarts(), [("answer", 3), ("exit", 0), ("hang", 0), ("signal", 0)]);
        until("samples come again", || Ok(source.sample().is_ok())).unwrap();
    });
}

/// Readers fail within a call, so many times; each fiftieth hangs.
fn fail(watched: &mut Watched, times: usize) -> Result<()> {
    let kinds = [("crash", "signal"), ("abort", "signal"), ("exit", "exit")];
    for (number, ordinary) in (1..=times).zip(kinds.into_iter().cycle()) {
        let (kind, reason) = if number % 50 == 0 { ("hang", "hang") } else { ordinary };
        let counted =
            || restarts().into_iter().filter(|(name, _)| *name == reason).map(|(_, number)| number).sum::<u64>();
        let before = counted();
        watched.fails(TEMPERATURE, kind);
        watched.until(WHOLE, "another reader has failed", |_| counted() > before)?;
    }
    watched.until_healthy(WHOLE)
}

#[test]
fn a_thousand_faults_leave_nothing_behind() {
    alone(SCENARIO, |stage| {
        let pause = Duration::from_millis(1);
        let mut watched = Watched::new(stage, Pace { shortest_pause: pause, longest_pause: pause, ..PACE }).unwrap();
        let held = || {
            let own = std::process::id();
            let held = Footprint::of(own).unwrap();
            (held.anonymous_bytes, [held.descriptors, held.threads, children(own).len()])
        };
        fail(&mut watched, 10).unwrap();
        watched.until_one_reader().unwrap();
        let (bytes_before, before) = held();
        fail(&mut watched, 1_000).unwrap();
        watched.until_one_reader().unwrap();
        let (bytes, after) = held();
        assert_eq!(after, before, "descriptors, threads and children");
        assert!(bytes < bytes_before + (2 << 20), "it grew from {bytes_before} to {bytes} bytes");
    });
}
