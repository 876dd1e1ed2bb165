//! XID errors.

use std::time::{Duration, Instant, SystemTime};

use genv_core::gpu::{GpuSample, GpuSource as _};
use genv_core::model::DeviceIndex;

use crate::nvml_source::stage::{PATIENCE, alone, count, eventually, scenario, source, xids};

#[test]
fn each_xid_error_is_delivered_once() {
    alone(&scenario("", ""), |stage| {
        let mut source = source();
        assert_eq!(source.sample().unwrap().xid_events, []);
        let began = SystemTime::now();
        let mut events = Vec::new();
        let end = Instant::now() + PATIENCE;
        for (errors, number) in [
            // Two at once, of which a caller that waits too late would be told the last one's code twice.
            (&[(31, 2_000), (43, 2_000), (63, 2_300)][..], 3),
            // One more that must be the next, with nothing repeated in between.
            (&[(79, 2_000)], 4),
        ] {
            stage.rewrite(&scenario(&xids(errors, ""), ""));
            while events.len() < number && Instant::now() < end {
                events.extend(source.sample().unwrap().xid_events);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let told: Vec<_> = events.iter().map(|it| (it.index, it.xid)).collect();
        assert_eq!(told, [31, 43, 63, 79].map(|xid| (DeviceIndex::gpu(0), xid)));
        let began = began.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(events.iter().all(|it| it.timestamp_seconds > began));
    });
}

#[test]
fn xid_errors_are_told_after_a_device_was_lost_and_after_a_reload() {
    alone(&scenario("", ""), |stage| {
        let mut source = source();
        source.sample().unwrap();
        stage.rewrite(&scenario("faults: [{lost: true}]", ""));
        eventually(&mut source, |it| it.as_ref().unwrap().devices[0].lost.then_some(()));
        stage.rewrite(&scenario("", ""));
        eventually(&mut source, |it| (!it.as_ref().unwrap().devices[0].lost).then_some(()));
        stage.rewrite(&scenario("", "faults: [{reload: 1}]"));
        eventually(&mut source, |it| it.is_err().then_some(()));
        source.sample().unwrap();
        stage.rewrite(&scenario(&xids(&[(48, 2_000)], ""), "faults: [{reload: 1}]"));
        let xid = eventually(&mut source, |it| Some(it.as_ref().unwrap().xid_events.first()?.xid));
        assert_eq!(xid, 48);
    });
}

#[test]
fn without_xid_events_everything_else_is_read() {
    let faults = "faults: [{not_supported: [xid_events]}]";
    alone(&scenario(faults, ""), |stage| {
        let mut source = source();
        let sample = source.sample().unwrap();
        assert!(sample.devices[0].measurements.power_watts.is_some());
        stage.rewrite(&scenario(&xids(&[(31, 0)], faults), ""));
        // An error of the other GPU, which does support them, shows that waiting goes on.
        let other = scenario(&xids(&[(31, 1_500)], faults), "").replace(
            "name: NVIDIA RTX A4000\n",
            &format!("name: NVIDIA RTX A4000\n        {}\n", xids(&[(62, 2_000)], "")),
        );
        stage.rewrite(&other);
        let event = eventually(&mut source, |it| it.as_ref().unwrap().xid_events.first().copied());
        assert_eq!((event.index, event.xid), (DeviceIndex::gpu(1), 62));
        assert!(withheld(&source.sample().unwrap()).is_empty(), "the device does not have them");
    });
}

/// The devices, absent for the host, whose XID errors a sample withholds, with the call that failed.
fn withheld(sample: &GpuSample) -> Vec<(Option<DeviceIndex>, String)> {
    let errors = sample.withheld.iter().filter(|it| it.value == "XID errors");
    errors.map(|it| (it.device, it.error.split(':').next().unwrap_or_default().to_owned())).collect()
}

#[test]
fn a_device_whose_xid_errors_are_not_seen_is_named_and_watched_later_and_the_others_are_watched() {
    let wrong = |call: &str| format!("faults: [{{wrong: {call}, error: unknown}}]");
    let second = "uuid: GPU-00000000-0000-0000-0000-000000000002\n";
    let third = "uuid: GPU-00000000-0000-0000-0000-000000000003\n";
    let faulty = scenario(&wrong("nvmlDeviceRegisterEvents"), "")
        .replace(second, &format!("{second}        {}\n", wrong("nvmlDeviceGetSupportedEventTypes")));
    alone(&faulty, |stage| {
        let mut source = source();
        let found = eventually(&mut source, |it| Some(withheld(it.as_ref().unwrap())).filter(|it| it.len() > 1));
        let expected = [(1, "nvmlDeviceGetSupportedEventTypes"), (0, "nvmlDeviceRegisterEvents")];
        assert_eq!(found, expected.map(|(gpu, call)| (Some(DeviceIndex::gpu(gpu)), call.to_owned())));
        stage.rewrite(&faulty.replace(third, &format!("{third}        {}\n", xids(&[(62, 2_000)], ""))));
        let event = eventually(&mut source, |it| it.as_ref().unwrap().xid_events.first().copied());
        assert_eq!((event.index, event.xid), (DeviceIndex::gpu(2), 62));

        stage.rewrite(&scenario("", ""));
        eventually(&mut source, |it| withheld(it.as_ref().unwrap()).is_empty().then_some(()));
        stage.rewrite(&scenario(&xids(&[(31, 2_000)], ""), ""));
        let event = eventually(&mut source, |it| it.as_ref().unwrap().xid_events.first().copied());
        assert_eq!((event.index, event.xid), (DeviceIndex::gpu(0), 31));
    });
}

#[test]
fn a_wait_for_xid_errors_that_hangs_holds_up_nothing_and_is_named() {
    let hanging = scenario("", "faults: [{hang: nvmlEventSetWait_v2}]");
    alone(&hanging, |stage| {
        let before = count("task");
        let mut source = source();
        for generation in 1..=3 {
            eventually(&mut source, |it| withheld(it.as_ref().ok()?).iter().any(|it| it.0.is_none()).then_some(()));
            assert_eq!(count("task"), before + 1, "at most one thread hangs");
            let reload = format!("faults: [{{hang: nvmlEventSetWait_v2}}, {{reload: {generation}}}]");
            stage.rewrite(&scenario("", &reload));
            eventually(&mut source, |it| it.is_err().then_some(()));
        }
        eventually(&mut source, |it| it.is_ok().then_some(()));

        // When the wait returns, the thread ends, and errors are waited for again by a new one.
        stage.rewrite(&scenario("", "faults: [{reload: 4}]"));
        eventually(&mut source, |it| it.is_err().then_some(()));
        let end = Instant::now() + PATIENCE;
        while count("task") > before && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        // The thread that is gone took an initialization with it that the reloaded driver never knew.
        eventually(&mut source, |_| (count("task") > before).then_some(()));
        stage.rewrite(&scenario(&xids(&[(31, 2_000)], ""), "faults: [{reload: 4}]"));
        let xid = eventually(&mut source, |it| Some(it.as_ref().ok()?.xid_events.first()?.xid));
        assert_eq!(xid, 31);
    });
}
