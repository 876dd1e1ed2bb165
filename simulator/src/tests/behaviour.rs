//! What hosts do over time.

use super::*;

#[test]
fn no_host_and_no_device_are_allowed() {
    assert_eq!(engine("version: 1").scenario().hosts, []);
    let scenario = engine("version: 1\nhosts: [{name: a}]").scenario();
    let host = scenario.hosts[0].at(at(5.0));
    assert_eq!(host.devices().count() + host.processes().count(), 0);
    assert!(host.environments().is_none());
}

#[test]
fn a_host_without_a_name_is_this_machine() {
    let scenario = engine("version: 1\nhosts: [{}]").scenario();
    let uname = rustix::system::uname();
    assert_eq!(scenario.hosts[0].name, uname.nodename().to_str().unwrap());
    assert!(refused("  - {}\n  - {}").contains("is there twice: give each its own name"));
}

#[test]
fn a_device_does_what_its_processes_add_up_to() {
    let text = "
version: 1
hosts:
  - name: a
    devices: [{memory: 80gi, memory_reserved: 1gi, power: {idle: 100, max: 300}, temperature: {idle: 30, max: 80}}]
    processes:
      - {pid: 1, devices: [{index: 0, memory: 8gi, utilization: 0.25}]}
      - {pid: 2, devices: [{index: 0, memory: 4gi, utilization: 0.5}], during: {from: 100s, until: 200s}}
";
    let scenario = engine(text).scenario();
    let host = &scenario.hosts[0];
    let device = |seconds| host.at(at(seconds)).device(0).unwrap();
    assert_eq!(device(50.0).measured().utilization_ratio, 0.25);
    assert_eq!(device(150.0).measured().utilization_ratio, 0.75);
    assert_eq!(device(150.0).measured().memory.used_bytes, 12 << 30);
    assert_eq!(device(200.0).measured().memory.free_bytes, 71 << 30);
    assert_eq!(device(150.0).measured().power_milliwatts, 250_000);
    // 100 s at 150 W, 100 s at 250 W, 100 s at 150 W.
    assert_eq!(device(300.0).measured().energy_millijoules, 55_000_000);
    assert_eq!(device(99.0).measured().temperature_celsius, 43.0);
    assert_eq!(device(160.0).measured().temperature_celsius, 68.0);
    assert_eq!(device(130.0).measured().temperature_celsius, 55.0);
}

#[test]
fn a_power_limit_is_never_exceeded() {
    let text = "version: 1\nhosts: [{devices: [{power: {idle: 50, max: 400}, power_limit: 250, utilization: 1}]}]";
    let scenario = engine(text).scenario();
    let device = scenario.hosts[0].at(at(10.0)).device(0).unwrap();
    assert_eq!(device.measured().power_milliwatts, 250_000);
    assert_eq!(device.measured().energy_millijoules, 2_500_000);
}

#[test]
fn a_device_at_its_slowdown_temperature_is_throttled_and_one_without_load_idle() {
    let text = "version: 1\nhosts: [{devices: [{temperature: {idle: 30, max: 95}, temperature_limits: {slowdown: 90}, utilization: {steps: [[5m, 0], [5m, 1]]}}]}]";
    let scenario = engine(text).scenario();
    let reasons = |seconds| scenario.hosts[0].at(at(seconds)).device(0).unwrap().measured().throttle_reasons;
    assert_eq!((reasons(290.0), reasons(590.0)), (0x1, 0x20));
}

#[test]
fn a_device_is_throttled_for_every_reason_that_is_named() {
    for reason in ThrottleReason::ALL {
        let text = format!("version: 1\nhosts: [{{devices: [{{throttled: [{}]}}]}}]", reason.name());
        let scenario = engine(&text).scenario();
        let device = scenario.hosts[0].at(at(1.0)).device(0).unwrap();
        assert_eq!(device.measured().throttle_reasons & !ThrottleReason::IDLE_BIT, reason.bit());
    }
}

#[test]
fn faults_hold_for_their_time() {
    let scenario = engine(documented_example()).scenario();
    let host = |minutes: f64| scenario.hosts[0].at(at(minutes * 60.0));
    let lost = |minutes| host(minutes).device(0).unwrap().lost();
    assert_eq!([19.9, 20.0, 24.9, 25.0].map(lost), [false, true, true, false]);
    assert_eq!(host(119.0).init_error(), None);
    assert_eq!(host(121.0).init_error(), Some(NvmlError::DriverNotLoaded));
    assert_eq!(NvmlError::DriverNotLoaded.code(), 9);
    let temperature = "nvmlDeviceGetTemperature";
    assert!(host(50.5).device(0).unwrap().hangs(temperature));
    assert!(!host(50.5).device(0).unwrap().hangs("nvmlDeviceGetName"));
    assert!(!host(50.5).device(1).unwrap().hangs(temperature));
    assert!(host(50.5).sweep_hangs() && !host(50.5).hangs(temperature));
    assert!(host(181.0).device(1).unwrap().hangs("nvmlDeviceGetName"));
    assert_eq!([host(239.0), host(240.0)].map(|h| h.driver_generation()), [0, 1]);
    assert_eq!(host(0.0).more_processes_between_calls(), 3);
}

#[test]
fn xid_errors_happen_once_between_two_looks() {
    let scenario = engine(documented_example()).scenario();
    let events = |after: f64, until: f64| -> Vec<(u64, f64)> {
        let device = scenario.hosts[0].at(at(until)).device(0).unwrap();
        let events = device.xid_events_since(at(after)).into_iter();
        events.map(|(xid, unix)| (xid, unix - 1_767_225_600.0)).collect()
    };
    assert_eq!(events(0.0, 29.0), []);
    assert_eq!(events(29.0, 30.0), [(79, 30.0)]);
    assert_eq!(events(30.0, 60.0), []);
    assert_eq!(events(20.0, 7200.0), [(79, 30.0), (31, 3600.0), (31, 7200.0)]);
    assert_eq!(events(7200.0, 7200.0), []);
}

#[test]
fn processes_and_environments_come_and_go() {
    let scenario = engine(documented_example()).scenario();
    let host = &scenario.hosts[0];
    let present = |hours: f64| {
        let host = host.at(at(hours * 3600.0));
        let eids: Vec<_> = host.environments().unwrap().iter().map(|(e, _)| e.eid.clone()).collect();
        (eids, host.process(301).is_some())
    };
    assert_eq!(present(0.0), (vec!["1".to_owned()], false));
    assert_eq!(present(1.0), (vec!["1".to_owned(), "2".to_owned()], true));
    assert_eq!(present(5.0), (vec!["1".to_owned()], true));
    let now = host.at(at(8.0 * 3600.0));
    let environments = now.environments().unwrap();
    let created: Vec<f64> = environments.iter().map(|(_, created)| created - 1_767_225_600.0).collect();
    assert_eq!(created, [-7200.0, 7.0 * 3600.0]);
    // The shell that was made up for the second one lives as long as it does.
    let shell = now.process(environments[1].0.pids[0]).unwrap();
    assert_eq!(shell.started_timestamp_seconds() - 1_767_225_600.0, 7.0 * 3600.0);
}

#[test]
fn unnamed_devices_have_lasting_and_distinct_names() {
    let text = "version: 1\nhosts: [{name: a, devices: [{count: 1025}]}, {name: b, devices: [{count: 2, mig: [{profile: p, memory: 1gi}]}]}]";
    assert!(Engine::from_text("lab.yaml", text).unwrap_err().to_string().contains("1024"));
    let scenario = engine(&text.replace("1025", "1024")).scenario();
    let mut uuids = std::collections::HashSet::new();
    let mut buses = std::collections::HashSet::new();
    for host in &scenario.hosts {
        buses.clear();
        for device in &host.devices {
            assert!(uuids.insert(device.uuid.clone()) && buses.insert(device.pci_bus_id.clone()));
            assert!(device.mig.iter().all(|mig| uuids.insert(mig.uuid.clone())));
        }
    }
    assert_eq!(scenario.hosts[1].devices[0].uuid, "GPU-ce09520b-059c-7c5d-2082-49c37e1b7517");
}

#[test]
fn a_changed_file_is_read_again_and_a_damaged_one_leaves_the_last_good_scenario() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lab.yaml");
    let devices = |engine: &Engine| engine.refreshed().hosts[0].devices.len();
    std::fs::write(&path, "version: 1\nhosts: [{devices: [{count: 2}]}]").unwrap();
    let engine = Engine::open(&path).unwrap();
    assert_eq!((devices(&engine), engine.error()), (2, None));
    // Of the same length and at once, so that neither the length nor a coarse clock shows the change.
    std::fs::write(&path, "version: 1\nhosts: [{devices: [{count: 3}]}]").unwrap();
    assert_eq!(devices(&engine), 3);
    std::fs::write(&path, "version: 1\nhosts: [{devices: [{count: 12}]}]").unwrap();
    assert_eq!(devices(&engine), 12);
    std::fs::write(&path, "version: 1\nhosts: [{devices: [{cuont: 1}]}]").unwrap();
    assert_eq!(devices(&engine), 12);
    assert!(engine.error().unwrap().contains("lab.yaml:2:21: "));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(devices(&engine), 12);
    assert!(engine.error().unwrap().starts_with("cannot read the scenario"));
    std::fs::write(&path, "version: 1\nhosts: [{devices: [{}]}]").unwrap();
    assert_eq!((devices(&engine), engine.error()), (1, None));
}
