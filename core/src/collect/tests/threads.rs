//! Sources that hang, fail and die, on their threads.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::moods::{Mood, Moods, host};
use super::*;
use crate::collect::clock::Clocks;
use crate::collect::{CollectOptions, Collection, HostSources, spawn};
use crate::model::{CollectorStatus, Publication};
use crate::patience::PATIENCE;
use crate::proc::{ProcessRequest, ProcessSource};
use crate::stream::SnapshotStream;

/// Collects 20 times a second; values older than 0.3 s are withdrawn.
fn options() -> CollectOptions {
    CollectOptions {
        interval: Duration::from_millis(50),
        max_age: Duration::from_millis(300),
        ..CollectOptions::default()
    }
}

fn start(moods: &Moods) -> SnapshotStream {
    spawn(vec![host("lab", moods)], options()).unwrap()
}

/// Waits, as long as a slow machine may need, for a publication that shows what is expected.
fn until(stream: &mut SnapshotStream, shows: impl Fn(&Snapshot) -> bool) -> Arc<Publication> {
    let given_up = Instant::now() + PATIENCE;
    loop {
        let publication = stream.next_blocking().unwrap();
        if shows(first(&publication)) {
            return publication;
        }
        assert!(Instant::now() < given_up, "never shown: {:#?}", first(&publication));
    }
}

fn first(publication: &Publication) -> &Snapshot {
    publication.hosts[0].snapshot.as_ref().unwrap()
}

fn status<'a>(snapshot: &'a Snapshot, collector: &str) -> &'a CollectorStatus {
    &snapshot.collectors[collector]
}

fn all_well(snapshot: &Snapshot) -> bool {
    snapshot.collectors.values().all(|status| status.success)
        && snapshot.devices.iter().any(|device| device.up)
        && snapshot.environments.len() == 1
        && snapshot.processes.iter().any(|process| process.username.is_some())
}

#[test]
fn a_hung_driver_stops_no_publication_and_its_values_are_withdrawn_and_come_back() {
    let moods = Moods::default();
    let mut stream = start(&moods);
    let before = until(&mut stream, all_well).sequence;
    moods.gpu.hang();
    let withdrawn = until(&mut stream, |snapshot| {
        let others = status(snapshot, "state").success && status(snapshot, "processes").success;
        others && !device(snapshot, 0).up
    });
    let snapshot = first(&withdrawn);
    assert_eq!(snapshot.processes, []);
    assert_eq!(device(snapshot, 0).measurements, DeviceMeasurements::default());
    let gpu = status(snapshot, "gpu");
    assert!(!gpu.success);
    assert!(gpu.error.as_ref().unwrap().starts_with("no answer for "));
    assert!(gpu.timestamp_seconds.unwrap() < snapshot.timestamp_seconds);
    assert!(!gpu.current && status(snapshot, "state").current);
    assert_eq!(snapshot.environments.len(), 1);

    // It is asked once for the whole hang, and the other sources continue.
    let (gpu_calls, state_calls) = (moods.gpu.calls(), moods.state.calls());
    until(&mut stream, |_| moods.state.calls() >= state_calls + 10);
    assert_eq!(moods.gpu.calls(), gpu_calls);

    moods.gpu.recover();
    let after = until(&mut stream, all_well);
    assert!(after.sequence > before);
    assert!(status(first(&after), "gpu").current);
    assert_eq!(moods.gpu.0.threads.lock().unwrap().len(), 1);
}

#[test]
fn a_hung_user_database_leaves_devices_and_their_memory_visible() {
    let moods = Moods::default();
    let mut stream = start(&moods);
    until(&mut stream, all_well);
    moods.processes.hang();
    // A state from before the hang may stay current for a moment.
    let publication = until(&mut stream, |snapshot| {
        let is_current = |collector| status(snapshot, collector).current;
        snapshot.environments.is_empty()
            && status(snapshot, "gpu").success
            && !is_current("processes")
            && !is_current("state")
    });
    let snapshot = first(&publication);
    assert!(device(snapshot, 0).up);
    assert!(!status(snapshot, "processes").success);
    assert_eq!(snapshot.processes[0].attribution.state(), "unknown");
    moods.processes.recover();
    until(&mut stream, all_well);
}

/// A process that was started in an environment which is as old as itself makes a credible claim.
#[test]
fn the_state_is_read_after_the_devices_and_processes_after_both() {
    let moods = Moods::default();
    // The first cycle waits for seconds, and the next is far away.
    let mut stream = spawn(vec![host("lab", &moods)], CollectOptions::default()).unwrap();
    assert!(all_well(first(&stream.next_blocking().unwrap())));
    let last_call = |mood: &Mood| mood.0.last_call.lock().unwrap().unwrap();
    let [gpu, state, processes] = [&moods.gpu, &moods.state, &moods.processes].map(last_call);
    assert!(gpu[1] <= state[0] && state[0] <= processes[0], "{gpu:?}, {state:?}, {processes:?}");
}

/// A source that answers one question for each permit.
struct Permitted(Receiver<()>);

impl ProcessSource for Permitted {
    fn read(&mut self, request: &ProcessRequest) -> ProcessTable {
        let _ = self.0.recv();
        let mut table = ProcessTable::default();
        for pid in &request.members {
            add_process(&mut table, *pid, 1, Claim::Absent);
        }
        table
    }

    fn username(&mut self, uid: u32) -> String {
        format!("user{uid}")
    }
}

#[test]
fn an_answer_about_processes_counts_for_no_state_that_was_read_after_its_question() {
    let moods = Moods::default();
    let (permit, permits) = channel();
    let sources = HostSources { processes: Box::new(Permitted(permits)), ..host("lab", &moods) };
    let mut options = options();
    options.collectors.gpu = false;
    options.max_age = Duration::from_secs(3600);
    let mut collection = Collection::start(vec![sources], &options, &Clocks::of_the_system()).unwrap();
    // The question about processes names no members: the state is not read yet.
    moods.state.hang();
    collection.cycle();
    moods.state.recover();
    let read = |publication: &Publication, collector: &str| {
        let status = status(first(publication), collector);
        status.success || status.timestamp_seconds.is_some()
    };
    while !read(&collection.cycle(), "state") {}
    permit.send(()).unwrap();
    // That answer comes late, and no answer about the members follows.
    let mut publication = collection.cycle();
    while !read(&publication, "processes") {
        publication = collection.cycle();
    }
    let snapshot = first(&publication);
    assert_eq!(snapshot.environments.len(), 0);
    assert!(!status(snapshot, "state").current, "{snapshot:#?}");
    permit.send(()).unwrap();
    while first(&publication).environments.is_empty() {
        assert!(!status(first(&publication), "state").current);
        publication = collection.cycle();
    }
    assert!(status(first(&publication), "state").current);
}

#[test]
fn a_failing_source_reports_the_reason_and_recovers() {
    let moods = Moods::default();
    let mut stream = start(&moods);
    moods.gpu.0.failing.store(true, Ordering::SeqCst);
    moods.state.0.failing.store(true, Ordering::SeqCst);
    let shows_error = |snapshot: &Snapshot, collector: &str, error: &str| {
        let status = status(snapshot, collector);
        !status.success && status.error.as_deref() == Some(error)
    };
    until(&mut stream, |snapshot| {
        shows_error(snapshot, "gpu", "nvmlInit_v2 failed: it fails") && shows_error(snapshot, "state", "it fails")
    });
    moods.gpu.recover();
    moods.state.recover();
    let well = until(&mut stream, all_well);
    // A damaged entry is reported, and ends no environment.
    let error = status(first(&well), "state").error.as_deref();
    assert_eq!(error, Some("an entry is damaged"));
}

#[test]
fn a_source_that_dies_ends_no_other_source() {
    let moods = Moods::default();
    let mut stream = start(&moods);
    until(&mut stream, all_well);
    moods.state.0.dying.store(true, Ordering::SeqCst);
    until(&mut stream, |snapshot| {
        let others = status(snapshot, "gpu").success && status(snapshot, "processes").success;
        others && !status(snapshot, "state").success && snapshot.environments.is_empty()
    });
}

#[test]
fn a_hung_host_hides_no_other() {
    let (hung, well) = (Moods::default(), Moods::default());
    hung.gpu.hang();
    let hosts = vec![host("hung", &hung), host("well", &well)];
    let mut stream = spawn(hosts, options()).unwrap();
    let given_up = Instant::now() + PATIENCE;
    let mut last = 0;
    loop {
        let publication = stream.next_blocking().unwrap();
        assert!(publication.sequence > last);
        last = publication.sequence;
        let [first, second] = &publication.hosts[..] else { panic!("{publication:?}") };
        assert!(first.up && first.hostname == "hung");
        let second = second.snapshot.as_ref().unwrap();
        if publication.sequence > 10 && all_well(second) {
            break;
        }
        assert!(Instant::now() < given_up, "{second:#?}");
    }
    hung.gpu.recover();
}

#[test]
fn a_collector_that_is_off_is_not_asked_and_not_listed() {
    let moods = Moods::default();
    let mut options = options();
    options.collectors.gpu = false;
    options.collectors.processes = false;
    let mut stream = spawn(vec![host("lab", &moods)], options).unwrap();
    let publication = until(&mut stream, |snapshot| !snapshot.environments.is_empty());
    let snapshot = first(&publication);
    let listed: Vec<&String> = snapshot.collectors.keys().collect();
    assert_eq!(listed, ["state"]);
    assert_eq!((snapshot.devices.len(), snapshot.processes.len()), (0, 0));
    assert_eq!(snapshot.environments[0].username, "user1");
    assert_eq!(moods.gpu.calls(), 0);
}

#[test]
fn the_collection_ends_with_its_last_stream() {
    let moods = Moods::default();
    let mut stream = start(&moods);
    until(&mut stream, all_well);
    drop(stream);
    // The sources are dropped with their threads: this test's share of each mood is the last.
    let given_up = Instant::now() + PATIENCE;
    while Arc::strong_count(&moods.gpu.0) > 1 || Arc::strong_count(&moods.state.0) > 1 {
        assert!(Instant::now() < given_up);
        thread::yield_now();
    }
}
