//! What scenarios mean, and how damaged ones are refused.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::*;

const DOCUMENTATION: &str = include_str!("../../../docs/scenario.md");

fn documented_example() -> &'static str {
    let (_, rest) = DOCUMENTATION.split_once("```yaml\n").unwrap();
    rest.split_once("```").unwrap().0
}

fn engine(text: &str) -> Engine {
    Engine::from_text("lab.yaml", text).unwrap_or_else(|error| panic!("{error}"))
}

/// A moment of scenario time.
fn at(seconds: f64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600) + Duration::from_secs_f64(seconds)
}

fn refused(hosts: &str) -> String {
    let text = format!("version: 1\nusers: {{alice: 2001}}\nhosts:\n{hosts}\n");
    Engine::from_text("lab.yaml", &text)
        .unwrap_err()
        .to_string()
}

#[test]
fn the_documented_example_is_a_scenario() {
    let scenario = engine(documented_example()).scenario();
    let host = &scenario.hosts[0];
    assert_eq!(host.devices.len(), 4);
    assert_eq!(host.devices[1].mig.len(), 2);
    assert_eq!(host.environments.as_ref().unwrap().len(), 2);
}

#[test]
fn every_key_of_the_format_is_documented_and_in_the_example() {
    let format = include_str!("format.rs");
    let example = documented_example();
    let mut keys = 0;
    for line in format.lines() {
        let field = line.trim().strip_prefix("pub(super) ");
        let Some((key, _)) = field.and_then(|field| field.split_once(": ")) else {
            continue;
        };
        let key = match key {
            "process_type" => "type",
            // Of `during`, whose keys are explained together.
            "from" | "until" => "during",
            key => key,
        };
        keys += 1;
        assert!(
            example.contains(&format!("{key}: ")) || example.contains(&format!("{key}:\n")),
            "the example lacks {key}"
        );
        assert!(
            DOCUMENTATION.contains(&format!("`{key}`"))
                || DOCUMENTATION.contains(&format!("`{key}:")),
            "no table tells of {key}"
        );
    }
    assert!(keys > 60, "{keys}");
}

#[test]
fn every_measurement_and_reason_is_documented_and_accepted() {
    for measurement in Measurement::ALL {
        let name = serde_json::to_value(format!("{measurement:?}")).unwrap();
        let name = snake_case(name.as_str().unwrap());
        assert!(DOCUMENTATION.contains(&format!("`{name}`")), "{name}");
        let text = format!(
            "version: 1\nhosts: [{{devices: [{{fans: [1], faults: [{{not_supported: [{name}]}}]}}]}}]"
        );
        let scenario = engine(&text).scenario();
        let device = scenario.hosts[0].at(at(1.0)).device(0).unwrap();
        for other in Measurement::ALL {
            let reserved =
                measurement == Measurement::Memory && other == Measurement::MemoryReserved;
            assert_eq!(
                device.supports(other, false),
                other != measurement && !reserved,
                "{name}"
            );
        }
    }
    for reason in ThrottleReason::ALL {
        assert!(DOCUMENTATION.contains(&format!("`{}`", reason.name())));
        let text = format!(
            "version: 1\nhosts: [{{devices: [{{throttled: [{}]}}]}}]",
            reason.name()
        );
        let scenario = engine(&text).scenario();
        let device = scenario.hosts[0].at(at(1.0)).device(0).unwrap();
        assert_eq!(device.throttle_reasons(), reason.bit());
    }
}

fn snake_case(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

#[test]
fn an_unknown_key_is_refused_with_its_place() {
    insta::assert_snapshot!(refused("  - {name: a, devices: [{memroy: 80gi}]}"), @r"
        lab.yaml:4:26: unknown field `memroy`, expected one of name, count, uuid, minor, pci_bus_id, memory, memory_reserved, memory_used, utilization, memory_controller, encoder, decoder, temperature, temperature_limits, power, power_limit, clocks, fans, throttled, ecc, pcie_replays, mig, xid, faults
         3 | hosts:
         4 |   - {name: a, devices: [{memroy: 80gi}]}
           |                          ^
        ");
}

#[test]
fn values_that_are_none_are_refused_with_what_to_write() {
    let all: Vec<String> = [
        "  - devices: [{memory: 80x}]",
        "  - devices: [{utilization: 1.5}]",
        "  - devices: [{utilization: {wave: {period: 10, low: 0, high: 1}}}]",
        "  - devices: [{utilization: {wave: {period: 10s, low: 1, high: 0}}}]",
        "  - devices: [{utilization: {steps: []}}]",
        "  - devices: [{utilization: {steps: [[0s, 1]]}}]",
        "  - devices: [{utilization: busy}]",
        "  - devices: [{temperature: {idle: 50, max: 40}}]",
        "  - devices: [{power: 0}]",
        "  - devices: [{memory: 8gi, memory_reserved: 9gi}]",
        "  - devices: [{memory: 8gi, memory_reserved: 1gi, memory_used: 8gi}]",
        "  - devices: [{count: 2, uuid: GPU-1}]",
        "  - devices: [{uuid: GPU-1}, {uuid: GPU-1}]",
        "  - devices: [{throttled: [tired]}]",
        "  - devices: [{xid: [{xid: 79}]}]",
        "  - devices: [{faults: [{}]}]",
        "  - devices: [{faults: [{not_supported: [colour]}]}]",
        "  - cuda_version: 12",
        "  - faults: [{hang: temperature}]",
        "  - faults: [{init: unknown, reload: 1}]",
        "  - faults: [{init: unknown, during: {from: 2m, until: 1m}}]",
        "  - faults: [{init: unknown, during: {every: 1m, until: 2m}}]",
        "  - {name: a}\n  - {name: a}",
    ]
    .into_iter()
    .map(|hosts| refused(hosts).replace("\n", "\n    "))
    .collect();
    insta::assert_snapshot!(all.join("\n"), @r#"
        lab.yaml:4:24: memory amount '80x' has the unknown unit 'x': use b, k, m or g (powers of 1000), or ki, mi or gi (powers of 1024)
             3 | hosts:
             4 |   - devices: [{memory: 80x}]
               |                        ^
        lab.yaml:4:29: 1.5 is not a ratio from 0 to 1
             3 | hosts:
             4 |   - devices: [{utilization: 1.5}]
               |                             ^
        lab.yaml:4:45: duration '10' lacks a unit: write 10s for seconds, or use ms, m, h, d or w
             3 | hosts:
             4 |   - devices: [{utilization: {wave: {period: 10, low: 0, high: 1}}}]
               |                                             ^
        lab.yaml:4:29: low is above high
             3 | hosts:
             4 |   - devices: [{utilization: {wave: {period: 10s, low: 1, high: 0}}}]
               |                             ^
        lab.yaml:4:29: write either wave or steps, and at least one step
             3 | hosts:
             4 |   - devices: [{utilization: {steps: []}}]
               |                             ^
        lab.yaml:4:29: a length of 0 never passes: write 1ms or more
             3 | hosts:
             4 |   - devices: [{utilization: {steps: [[0s, 1]]}}]
               |                             ^
        lab.yaml:4:29: 'busy' is not a number from 0 to 1, {wave: {period, low, high, phase}}, or {steps: [[DURATION, NUMBER], ...]}
             3 | hosts:
             4 |   - devices: [{utilization: busy}]
               |                             ^
        lab.yaml:4:29: idle 50 and max 40 are not a range: idle must be 0 or more, and max not below idle
             3 | hosts:
             4 |   - devices: [{temperature: {idle: 50, max: 40}}]
               |                             ^
        lab.yaml:4:23: a device draws at least 1 W when idle
             3 | hosts:
             4 |   - devices: [{power: 0}]
               |                       ^
        lab.yaml:4:46: more is reserved than the device has
             3 | hosts:
             4 |   - devices: [{memory: 8gi, memory_reserved: 9gi}]
               |                                              ^
        lab.yaml:4:64: more is used than the device has left
             3 | hosts:
             4 |   - devices: [{memory: 8gi, memory_reserved: 1gi, memory_used: 8gi}]
               |                                                                ^
        lab.yaml:4:32: this is one device's own: write such devices one by one, without count
             3 | hosts:
             4 |   - devices: [{count: 2, uuid: GPU-1}]
               |                                ^
        lab.yaml:4:37: uuid GPU-1 is there twice
             3 | hosts:
             4 |   - devices: [{uuid: GPU-1}, {uuid: GPU-1}]
               |                                     ^
        lab.yaml:4:28: unknown variant `tired`, expected one of applications_clocks_setting, sw_power_cap, hw_slowdown, sync_boost, sw_thermal_slowdown, hw_thermal_slowdown, hw_power_brake_slowdown, display_clock_setting
             3 | hosts:
             4 |   - devices: [{throttled: [tired]}]
               |                            ^
        lab.yaml:4:22: say when it happens: at, every, or both
             3 | hosts:
             4 |   - devices: [{xid: [{xid: 79}]}]
               |                      ^
        lab.yaml:4:25: a fault of a device is one of lost: true, hang and not_supported
             3 | hosts:
             4 |   - devices: [{faults: [{}]}]
               |                         ^
        lab.yaml:4:42: unknown variant `colour`, expected one of name, minor, utilization, encoder, decoder, memory, memory_reserved, temperature, temperature_limits, power, power_limit, energy, clocks, fans, throttled, ecc, pcie_replays, processes, process_memory, process_utilization, xid_events
             3 | hosts:
             4 |   - devices: [{faults: [{not_supported: [colour]}]}]
               |                                          ^
        lab.yaml:4:19: '12' is not a CUDA version: write it as "12.4", with quotes
             3 | hosts:
             4 |   - cuda_version: 12
               |                   ^
        lab.yaml:4:21: 'temperature' is not an NVML call: write all, or a name such as nvmlDeviceGetTemperature
             3 | hosts:
             4 |   - faults: [{hang: temperature}]
               |                     ^
        lab.yaml:4:14: a fault of a host is one of init, hang, reload and insufficient_size
             3 | hosts:
             4 |   - faults: [{init: unknown, reload: 1}]
               |              ^
        lab.yaml:4:38: it ends before it begins: until must be after from
             3 | hosts:
             4 |   - faults: [{init: unknown, during: {from: 2m, until: 1m}}]
               |                                      ^
        lab.yaml:4:38: until is beyond every, where the next cycle begins
             3 | hosts:
             4 |   - faults: [{init: unknown, during: {every: 1m, until: 2m}}]
               |                                      ^
        lab.yaml:5:12: host a is there twice: give each its own name
             4 |   - {name: a}
             5 |   - {name: a}
               |            ^
        "#);
}

#[test]
fn references_to_what_is_not_there_are_refused() {
    let all: Vec<String> = [
        "  - environments: [{eid: 1, user: bob}]",
        "  - environments: [{eid: 1, user: alice, devices: [0]}]",
        "  - {devices: [{mig: [{profile: p, memory: 1gi}]}], environments: [{eid: 1, user: alice, devices: [\"0:0\"]}]}",
        "  - environments: [{eid: 1, user: alice}, {eid: 1, user: alice}]",
        "  - {devices: [{}], environments: [{eid: 1, user: alice, devices: [0, 0]}]}",
        "  - processes: [{pid: 7, user: bob}]",
        "  - processes: [{pid: 7, user: alice, environment: 3}]",
        "  - processes: [{pid: 7, devices: [{index: 1}]}]",
        "  - {devices: [{}], processes: [{pid: 7, devices: [{index: 0:1}]}]}",
        "  - {devices: [{mig: [{profile: p, memory: 1gi}]}], processes: [{pid: 7, devices: [{index: 0}]}]}",
        "  - processes: [{pid: 7}, {pid: 7}]",
        "  - processes: [{pid: 0}]",
        "  - processes: [{pid: 7, comm: bash}]",
        "  - processes: [{pid: 7, devices: [{index: one}]}]",
        "  - processes: [{pid: 7, user: alice, parent: 8}, {pid: 8}]",
    ]
    .into_iter()
    .map(|hosts| refused(hosts).replace("\n", "\n    "))
    .collect();
    insta::assert_snapshot!(all.join("\n"), @r#"
        lab.yaml:4:35: there is no user bob: add it to users, with its uid
             3 | hosts:
             4 |   - environments: [{eid: 1, user: bob}]
               |                                   ^
        lab.yaml:4:52: there is no device 0: this host has 0
             3 | hosts:
             4 |   - environments: [{eid: 1, user: alice, devices: [0]}]
               |                                                    ^
        lab.yaml:4:100: environments attach to whole GPUs
             3 | hosts:
             4 |   - {devices: [{mig: [{profile: p, memory: 1gi}]}], environments: [{eid: 1, user: alice, devices: ["0:0"]}]}
               |                                                                                                    ^
        lab.yaml:4:49: environment 1 is there twice
             3 | hosts:
             4 |   - environments: [{eid: 1, user: alice}, {eid: 1, user: alice}]
               |                                                 ^
        lab.yaml:4:71: device 0 is there twice
             3 | hosts:
             4 |   - {devices: [{}], environments: [{eid: 1, user: alice, devices: [0, 0]}]}
               |                                                                       ^
        lab.yaml:4:32: there is no user bob: add it to users, with its uid
             3 | hosts:
             4 |   - processes: [{pid: 7, user: bob}]
               |                                ^
        lab.yaml:4:52: there is no environment 3 on this host
             3 | hosts:
             4 |   - processes: [{pid: 7, user: alice, environment: 3}]
               |                                                    ^
        lab.yaml:4:44: there is no device 1: this host has 0
             3 | hosts:
             4 |   - processes: [{pid: 7, devices: [{index: 1}]}]
               |                                            ^
        lab.yaml:4:60: there is no MIG device 0:1: device 0 has 0
             3 | hosts:
             4 |   - {devices: [{}], processes: [{pid: 7, devices: [{index: 0:1}]}]}
               |                                                            ^
        lab.yaml:4:92: device 0 is split into MIG devices: name one, such as "0:0"
             3 | hosts:
             4 |   - {devices: [{mig: [{profile: p, memory: 1gi}]}], processes: [{pid: 7, devices: [{index: 0}]}]}
               |                                                                                            ^
        lab.yaml:4:33: pid 7 is there twice
             3 | hosts:
             4 |   - processes: [{pid: 7}, {pid: 7}]
               |                                 ^
        lab.yaml:4:23: pid 0 is no process
             3 | hosts:
             4 |   - processes: [{pid: 0}]
               |                       ^
        lab.yaml:4:32: a process without user is a real one: its facts come from /proc
             3 | hosts:
             4 |   - processes: [{pid: 7, comm: bash}]
               |                                ^
        lab.yaml:4:44: 'one' is not a device index: expected a number such as 0, or 0:1 for a MIG device
             3 | hosts:
             4 |   - processes: [{pid: 7, devices: [{index: one}]}]
               |                                            ^
        lab.yaml:4:47: a simulated process descends from simulated ones: name one of them, or 1
             3 | hosts:
             4 |   - processes: [{pid: 7, user: alice, parent: 8}, {pid: 8}]
               |                                               ^
        "#);
}

#[test]
fn another_version_is_refused() {
    let error = Engine::from_text("lab.yaml", "version: 2\n").unwrap_err();
    insta::assert_snapshot!(error, @r"
        lab.yaml:1:10: version 2 is not known: this program reads version 1
         1 | version: 2
           |          ^
        ");
}

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
    assert_eq!(device(50.0).utilization_ratio(), 0.25);
    assert_eq!(device(150.0).utilization_ratio(), 0.75);
    assert_eq!(device(150.0).memory().used_bytes, 12 << 30);
    assert_eq!(device(200.0).memory().free_bytes, 71 << 30);
    assert_eq!(device(150.0).power_milliwatts(), 250_000);
    // 100 s at 150 W, 100 s at 250 W, 100 s at 150 W.
    assert_eq!(device(300.0).energy_millijoules(), 55_000_000);
    assert_eq!(device(99.0).temperature_celsius(), 43.0);
    assert_eq!(device(160.0).temperature_celsius(), 68.0);
    assert_eq!(device(130.0).temperature_celsius(), 55.0);
}

#[test]
fn a_power_limit_is_never_exceeded() {
    let text = "version: 1\nhosts: [{devices: [{power: {idle: 50, max: 400}, power_limit: 250, utilization: 1}]}]";
    let scenario = engine(text).scenario();
    let device = scenario.hosts[0].at(at(10.0)).device(0).unwrap();
    assert_eq!(device.power_milliwatts(), 250_000);
    assert_eq!(device.energy_millijoules(), 2_500_000);
}

#[test]
fn a_device_at_its_slowdown_temperature_is_throttled() {
    let text = "version: 1\nhosts: [{devices: [{temperature: {idle: 30, max: 95}, temperature_limits: {slowdown: 90}, utilization: {steps: [[5m, 0], [5m, 1]]}}]}]";
    let scenario = engine(text).scenario();
    let reasons = |seconds| {
        scenario.hosts[0]
            .at(at(seconds))
            .device(0)
            .unwrap()
            .throttle_reasons()
    };
    assert_eq!((reasons(290.0), reasons(590.0)), (0, 0x20));
}

#[test]
fn faults_hold_for_their_time() {
    let scenario = engine(documented_example()).scenario();
    let host = |minutes: f64| scenario.hosts[0].at(at(minutes * 60.0));
    let lost = |minutes| host(minutes).device(0).unwrap().lost();
    assert_eq!(
        [19.9, 20.0, 24.9, 25.0].map(lost),
        [false, true, true, false]
    );
    assert_eq!(host(119.0).init_error(), None);
    assert_eq!(host(121.0).init_error(), Some(NvmlError::DriverNotLoaded));
    assert_eq!(NvmlError::DriverNotLoaded.code(), 9);
    let temperature = "nvmlDeviceGetTemperature";
    assert!(host(50.5).device(0).unwrap().hangs(temperature));
    assert!(!host(50.5).device(0).unwrap().hangs("nvmlDeviceGetName"));
    assert!(!host(50.5).device(1).unwrap().hangs(temperature));
    assert!(host(50.5).sweep_hangs() && !host(50.5).hangs(temperature));
    assert!(host(181.0).device(1).unwrap().hangs("nvmlDeviceGetName"));
    assert_eq!(
        [host(239.0), host(240.0)].map(|h| h.driver_generation()),
        [0, 1]
    );
    assert_eq!(host(0.0).more_processes_between_calls(), 3);
}

#[test]
fn xid_errors_happen_once_between_two_looks() {
    let scenario = engine(documented_example()).scenario();
    let events = |after: f64, until: f64| -> Vec<(u64, f64)> {
        let device = scenario.hosts[0].at(at(until)).device(0).unwrap();
        let events = device.xid_events_since(at(after)).into_iter();
        events
            .map(|(xid, unix)| (xid, unix - 1_767_225_600.0))
            .collect()
    };
    assert_eq!(events(0.0, 29.0), []);
    assert_eq!(events(29.0, 30.0), [(79, 30.0)]);
    assert_eq!(events(30.0, 60.0), []);
    assert_eq!(
        events(20.0, 7200.0),
        [(79, 30.0), (31, 3600.0), (31, 7200.0)]
    );
    assert_eq!(events(7200.0, 7200.0), []);
}

#[test]
fn processes_and_environments_come_and_go() {
    let scenario = engine(documented_example()).scenario();
    let host = &scenario.hosts[0];
    let present = |hours: f64| {
        let host = host.at(at(hours * 3600.0));
        let eids: Vec<_> = host
            .environments()
            .unwrap()
            .iter()
            .map(|(e, _)| e.eid.clone())
            .collect();
        (eids, host.process(301).is_some())
    };
    assert_eq!(present(0.0), (vec!["1".to_owned()], false));
    assert_eq!(present(1.0), (vec!["1".to_owned(), "2".to_owned()], true));
    assert_eq!(present(5.0), (vec!["1".to_owned()], true));
    let now = host.at(at(8.0 * 3600.0));
    let environments = now.environments().unwrap();
    let created: Vec<f64> = environments
        .iter()
        .map(|(_, created)| created - 1_767_225_600.0)
        .collect();
    assert_eq!(created, [-7200.0, 7.0 * 3600.0]);
    // The shell that was made up for the second one lives as long as it does.
    let shell = now.process(environments[1].0.pids[0]).unwrap();
    assert_eq!(
        shell.started_timestamp_seconds() - 1_767_225_600.0,
        7.0 * 3600.0
    );
}

#[test]
fn unnamed_devices_have_lasting_and_distinct_names() {
    let text = "version: 1\nhosts: [{name: a, devices: [{count: 1025}]}, {name: b, devices: [{count: 2, mig: [{profile: p, memory: 1gi}]}]}]";
    assert!(
        Engine::from_text("lab.yaml", text)
            .unwrap_err()
            .to_string()
            .contains("1024")
    );
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
    assert_eq!(
        scenario.hosts[1].devices[0].uuid,
        "GPU-ce09520b-059c-7c5d-2082-49c37e1b7517"
    );
}

fn pattern() -> impl Strategy<Value = String> {
    prop_oneof![
        (0..=100_u32).prop_map(|percent| format!("{}", f64::from(percent) / 100.0)),
        (1..5000_u32, 0..50_u32, 50..=100_u32, 0..100_u32).prop_map(
            |(period, low, high, phase)| {
                let (low, high) = (f64::from(low) / 100.0, f64::from(high) / 100.0);
                format!(
                    "{{wave: {{period: {period}s, low: {low}, high: {high}, phase: {phase}s}}}}"
                )
            }
        ),
        (1..500_u32, 1..500_u32, 0..=100_u32).prop_map(|(first, second, percent)| {
            format!(
                "{{steps: [[{first}s, {}], [{second}ms, 0]]}}",
                f64::from(percent) / 100.0
            )
        }),
    ]
}

fn during() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        (0..500_u32, 1..500_u32).prop_map(|(from, length)| format!(
            ", during: {{from: {from}s, until: {}s}}",
            from + length
        )),
        (100..200_u32, 0..50_u32, 51..100_u32).prop_map(|(every, from, until)| format!(
            ", during: {{every: {every}s, from: {from}s, until: {until}s}}"
        )),
    ]
}

fn host() -> impl Strategy<Value = String> {
    prop::collection::vec((0..2_u32, pattern(), during()), 0..6).prop_map(|processes| {
        let mut text = "version: 1\nhosts:\n- name: a\n  devices: [{count: 2, power: {idle: 1, max: 700}}]\n  processes:\n".to_owned();
        for (at, (device, pattern, during)) in processes.iter().enumerate() {
            text += &format!(
                "  - {{pid: {}, devices: [{{index: {device}, utilization: {pattern}}}]{during}}}\n",
                at + 1
            );
        }
        text.replace("processes:\n", if processes.is_empty() { "processes: []\n" } else { "processes:\n" })
    })
}

proptest! {
    #[test]
    fn energy_rises_and_is_what_power_adds_up_to(
        text in host(), start in 0..100_000_000_u64, milliseconds in 1..10_000_u64,
    ) {
        let scenario = engine(&text).scenario();
        for index in 0..2 {
            let device = |milliseconds: u64| {
                let now = at(0.0) + Duration::from_millis(milliseconds);
                scenario.hosts[0].at(now).device(index).unwrap()
            };
            let energy = |milliseconds| device(milliseconds).energy_millijoules();
            prop_assert!(energy(start + 1) >= energy(start));
            let gained = energy(start + milliseconds) - energy(start);
            prop_assert!(gained >= milliseconds.saturating_sub(1), "less than idle: {gained}");
            prop_assert!(gained <= 700 * milliseconds + 1, "more than full: {gained}");
        }
    }

    #[test]
    fn no_device_is_ever_more_than_busy(text in host(), seconds in 0.0..100_000.0_f64) {
        let scenario = engine(&text).scenario();
        for device in scenario.hosts[0].at(at(seconds)).devices() {
            let sum: f64 = device.processes().map(|process| process.utilization_ratio).sum();
            prop_assert!(sum <= 1.0 + 1e-9, "{sum}");
            prop_assert!((device.utilization_ratio() - sum).abs() < 1e-9);
        }
    }

    #[test]
    fn two_engines_agree_at_every_moment(text in host(), seconds in 0.0..1e8_f64) {
        let (one, other) = (engine(&text).scenario(), engine(&text).scenario());
        for (a, b) in one.hosts[0].at(at(seconds)).devices().zip(other.hosts[0].at(at(seconds)).devices()) {
            prop_assert_eq!(a.energy_millijoules(), b.energy_millijoules());
            prop_assert_eq!(a.power_milliwatts(), b.power_milliwatts());
            prop_assert_eq!(a.temperature_celsius(), b.temperature_celsius());
            prop_assert!(a.processes().eq(b.processes()));
        }
    }

    #[test]
    fn any_text_is_a_scenario_or_an_error(text in "\\PC{0,80}") {
        if let Err(error) = Engine::from_text("lab.yaml", &text) {
            prop_assert!(error.to_string().starts_with("lab.yaml:"));
        }
    }
}

#[test]
fn a_changed_file_is_read_again_and_a_damaged_one_leaves_the_last_good_scenario() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lab.yaml");
    let devices = |engine: &Engine| engine.refreshed().hosts[0].devices.len();
    std::fs::write(&path, "version: 1\nhosts: [{devices: [{count: 2}]}]").unwrap();
    let engine = Engine::open(&path).unwrap();
    assert_eq!((devices(&engine), engine.error()), (2, None));
    // As long as before and at once, so that neither the length nor a coarse clock tells.
    std::fs::write(&path, "version: 1\nhosts: [{devices: [{count: 3}]}]").unwrap();
    assert_eq!(devices(&engine), 3);
    std::fs::write(&path, "version: 1\nhosts: [{devices: [{count: 12}]}]").unwrap();
    assert_eq!(devices(&engine), 12);
    std::fs::write(&path, "version: 1\nhosts: [{devices: [{cuont: 1}]}]").unwrap();
    assert_eq!(devices(&engine), 12);
    assert!(engine.error().unwrap().contains("lab.yaml:2:21: "));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(devices(&engine), 12);
    assert!(
        engine
            .error()
            .unwrap()
            .starts_with("cannot read the scenario")
    );
    std::fs::write(&path, "version: 1\nhosts: [{devices: [{}]}]").unwrap();
    assert_eq!((devices(&engine), engine.error()), (1, None));
}

#[test]
fn a_file_that_is_not_there_says_what_to_do() {
    let error = Engine::open(std::path::Path::new("/nonexistent/lab.yaml")).unwrap_err();
    insta::assert_snapshot!(error, @"cannot read the scenario /nonexistent/lab.yaml: No such file or directory (os error 2); name a readable file with --gpu.scenario or GENV_SCENARIO");
}
