//! Mistakes in scenarios are refused with line, column and a correction.

use super::*;

#[test]
fn an_unknown_key_is_refused_with_its_place() {
    insta::assert_snapshot!(refused("  - {name: a, devices: [{memroy: 80gi}]}"), @r"
        lab.yaml:4:26: unknown field `memroy`, expected one of name, count, uuid, minor, pci_bus_id, memory, memory_reserved, memory_used, utilization, memory_controller, encoder, decoder, temperature, temperature_limits, power, power_limit, clocks, fans, throttled, ecc, pcie_replays, mig, xid, faults
         3 | hosts:
         4 |   - {name: a, devices: [{memroy: 80gi}]}
           |                          ^
        ");
}

/// The place of the mistake and the correction, without the lines of the file.
fn first_line(hosts: &str) -> String {
    refused(hosts).lines().next().unwrap().to_owned()
}

#[test]
fn a_gpu_has_no_more_mig_devices_than_are_believed_of_a_driver() {
    let parts = ["{profile: p, memory: 1gi, gpu_instance: 1}"; 65].join(", ");
    let refused = first_line(&format!("  - devices: [{{mig: [{parts}]}}]"));
    assert!(refused.ends_with(": a GPU has at most 64 MIG devices"), "{refused}");
}

#[test]
fn values_that_are_none_are_refused_with_what_to_write() {
    let all = [
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
        "  - devices: [{mig: [{profile: p, memory: 2gi}, {profile: p, memory: 1gi, gpu_instance: 1}]}]",
        "  - devices: [{mig: [{profile: p, memory: 2gi, gpu_instance: 64}]}]",
        "  - devices: [{mig: [{profile: p, memory: 2gi, gpu_instance: 63}, {profile: p, memory: 2gi}]}]",
        "  - devices: [{throttled: [tired]}]",
        "  - devices: [{xid: [{xid: 79}]}]",
        "  - devices: [{faults: [{}]}]",
        "  - devices: [{faults: [{not_supported: [colour]}]}]",
        "  - cuda_version: 12",
        "  - faults: [{hang: temperature}]",
        "  - faults: [{wrong: all, count: 1, number: 2}]",
        "  - faults: [{init: unknown, reload: 1}]",
        "  - faults: [{init: unknown, during: {from: 2m, until: 1m}}]",
        "  - faults: [{init: unknown, during: {every: 1m, until: 2m}}]",
        "  - {name: a}\n  - {name: a}",
        "  - {name: \"a\\t\"}",
    ]
    .map(first_line);
    insta::assert_snapshot!(all.join("\n"), @r#"
    lab.yaml:4:24: memory amount '80x' has the unknown unit 'x': use b, k, m or g (powers of 1000), or ki, mi or gi (powers of 1024)
    lab.yaml:4:29: 1.5 is not a ratio from 0 to 1
    lab.yaml:4:45: duration '10' lacks a unit: write 10s, 10m, 10h or 10d
    lab.yaml:4:29: low is above high
    lab.yaml:4:29: write either wave or steps, and at least one step
    lab.yaml:4:29: a length of 0 never passes: write 1ms or more
    lab.yaml:4:29: 'busy' is not a number from 0 to 1, {wave: {period, low, high, phase}}, or {steps: [[DURATION, NUMBER], ...]}
    lab.yaml:4:29: idle 50 and max 40 are not a range: idle must be 0 or more, and max not below idle
    lab.yaml:4:23: a device draws at least 1 W when idle
    lab.yaml:4:46: more is reserved than the device has
    lab.yaml:4:64: more is used than the device has left
    lab.yaml:4:32: this is one device's own: write such devices one by one, without count
    lab.yaml:4:37: uuid GPU-1 is there twice
    lab.yaml:4:89: the MIG devices of GPU instance 1 share one memory: write the same
    lab.yaml:4:62: a GPU instance has an id below 64, and this one would be 64
    lab.yaml:4:67: a GPU instance has an id below 64, and this one would be 64
    lab.yaml:4:28: unknown variant `tired`, expected one of applications_clocks_setting, sw_power_cap, hw_slowdown, sync_boost, sw_thermal_slowdown, hw_thermal_slowdown, hw_power_brake_slowdown, display_clock_setting
    lab.yaml:4:22: say when it happens: at, every, or both
    lab.yaml:4:25: a fault of a device is one of lost: true, hang, not_supported and wrong
    lab.yaml:4:42: unknown variant `colour`, expected one of name, minor, utilization, encoder, decoder, memory, memory_reserved, temperature, temperature_limits, power, power_limit, energy, clocks, fans, throttled, ecc, pcie_replays, processes, process_memory, process_utilization, xid_events
    lab.yaml:4:19: '12' is not a CUDA version: write it as "12.4", with quotes
    lab.yaml:4:21: 'temperature' is not an NVML call: write all, or a name such as nvmlDeviceGetTemperature
    lab.yaml:4:14: a wrong answer is one of error, number, count and text
    lab.yaml:4:14: a fault of a host is one of init, hang, reload, insufficient_size and wrong
    lab.yaml:4:38: it ends before it begins: until must be after from
    lab.yaml:4:38: until is beyond every, where the next cycle begins
    lab.yaml:5:12: host a is there twice: give each its own name
    lab.yaml:4:12: the name has a control character: leave it out
    "#);
}

#[test]
fn references_to_what_is_not_there_are_refused() {
    let all = [
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
    .map(first_line);
    insta::assert_snapshot!(all.join("\n"), @r#"
    lab.yaml:4:35: there is no user bob: add it to users, with its uid
    lab.yaml:4:52: there is no device 0: this host has 0
    lab.yaml:4:100: environments attach to whole GPUs
    lab.yaml:4:49: environment 1 is there twice
    lab.yaml:4:71: device 0 is there twice
    lab.yaml:4:32: there is no user bob: add it to users, with its uid
    lab.yaml:4:52: there is no environment 3 on this host
    lab.yaml:4:44: there is no device 1: this host has 0
    lab.yaml:4:60: there is no MIG device 0:1: device 0 has 0
    lab.yaml:4:92: device 0 is split into MIG devices: name one, such as "0:0"
    lab.yaml:4:33: pid 7 is there twice
    lab.yaml:4:23: pid 0 is no process
    lab.yaml:4:32: a process without user is a real one: its facts come from /proc
    lab.yaml:4:44: 'one' is not a device index: expected a number such as 0, or 0:1 for a MIG device
    lab.yaml:4:47: a simulated process descends from simulated ones: name one of them, or 1
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
fn a_file_that_is_not_there_says_what_to_do() {
    let error = Engine::open(std::path::Path::new("/nonexistent/lab.yaml")).unwrap_err();
    insta::assert_snapshot!(error, @"cannot read the scenario /nonexistent/lab.yaml: No such file or directory (os error 2); name a readable file with --gpu.scenario or GENV_SCENARIO");
}

#[test]
fn a_scenario_within_another_file_points_into_that_file() {
    #[derive(Debug, serde::Deserialize)]
    struct Outer {
        scenario: WrittenScenario,
    }
    let engine = |hosts: &str| {
        let text = format!("scenario:\n  version: 1\n  hosts: {hosts}\n");
        let outer: Outer = genv_core::yaml::parse("outer.yaml", &text)?;
        Engine::within("outer.yaml", &text, &outer.scenario)
    };
    assert_eq!(engine("[{name: a}]").unwrap().scenario().hosts[0].name, "a");
    let errors = ["[{nam: a}]", "[{name: a}, {name: a}]"].map(|hosts| engine(hosts).unwrap_err().to_string());
    insta::assert_snapshot!(errors.join("\n"), @r"
    outer.yaml:3:12: unknown field `nam`, expected one of name, driver_version, cuda_version, devices, environments, processes, faults
     2 |   version: 1
     3 |   hosts: [{nam: a}]
       |            ^
    outer.yaml:3:29: host a is there twice: give each its own name
     2 |   version: 1
     3 |   hosts: [{name: a}, {name: a}]
       |                             ^
    ");
}
