//! The metrics of a snapshot.

use std::sync::Arc;

use genv_core::model::Attribution;
use genv_web::Encoding;

use crate::exposition::{self, ParsedFamily};
use crate::{dead_host, host, rendering, snapshot, text};

fn metrics(hosts: Vec<genv_core::model::HostSnapshot>, processes: usize) -> String {
    let rendering = rendering(hosts, processes);
    let text = text(&rendering.metrics(Encoding::Plain));
    text.lines().filter(|line| !line.contains("genv_exporter_build_info")).map(|line| format!("{line}\n")).collect()
}

fn families(hosts: Vec<genv_core::model::HostSnapshot>) -> Vec<ParsedFamily> {
    exposition::parse(&metrics(hosts, 64))
}

/// Brings the lost device back, so that the processes of its holders are known.
fn measure_all_processes(snapshot: &mut genv_core::model::Snapshot) {
    for device in &mut snapshot.devices {
        (device.up, device.processes_measured) = (true, true);
    }
}

/// The value of the only sample of the family whose labels include these.
fn value(families: &[ParsedFamily], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let family = families.iter().find(|family| family.name == name)?;
    let mut samples = family
        .samples
        .iter()
        .filter(|(sample, _)| labels.iter().all(|(name, value)| sample.get(*name).is_some_and(|known| known == value)));
    let value = samples.next()?.1;
    assert!(samples.next().is_none(), "{name} {labels:?} is several series");
    Some(value)
}

#[test]
fn all_facts_of_hosts_are_shown() {
    insta::assert_snapshot!(metrics(vec![host(snapshot()), dead_host("gpu02")], 64));
}

#[test]
fn the_families_of_genv_1_keep_their_names_labels_and_units() {
    let one = rendering(vec![host(snapshot())], 0);
    let one = text(&one.genv1(Encoding::Plain));
    insta::assert_snapshot!(one);
    exposition::parse(&one);
    let mut other = snapshot();
    other.hostname = "gpu02".to_owned();
    let two = rendering(vec![host(snapshot()), host(other)], 0);
    for family in exposition::parse(&text(&two.genv1(Encoding::Plain))) {
        for (labels, _) in family.samples {
            assert!(labels.contains_key("hostname"), "{} {labels:?}", family.name);
        }
    }
}

#[test]
fn every_family_of_genv_1_is_announced_even_without_samples() {
    let families = |hosts| exposition::parse(&text(&rendering(hosts, 0).genv1(Encoding::Plain)));
    let full = families(vec![host(snapshot())]);
    assert!(full.iter().all(|family| !family.samples.is_empty()));
    let names = |families: Vec<ParsedFamily>| families.into_iter().map(|family| family.name).collect::<Vec<_>>();
    let mut idle = snapshot();
    idle.processes.clear();
    assert_eq!(names(families(vec![host(idle)])), names(full));
}

#[test]
fn processes_beyond_the_limit_are_summed_by_device() {
    let shown: String = metrics(vec![host(snapshot())], 2)
        .lines()
        .filter(|line| line.starts_with("genv_process_"))
        .map(|line| format!("{line}\n"))
        .collect();
    insta::assert_snapshot!(shown, @r#"
    genv_process_memory_used_bytes{hostname="gpu01",index="0",pid="100",eid="e1",username="alice",comm="python3"} 12884901888
    genv_process_memory_used_bytes{hostname="gpu01",index="1:0",pid="100",eid="e1",username="alice",comm="python3"} 1073741824
    genv_process_memory_used_bytes{hostname="gpu01",index="0",pid="200",eid="",username="bob",comm="train"} 3221225472
    genv_process_memory_used_bytes{hostname="gpu01",index="0",pid="other",eid="",username="",comm=""} 2097153
    genv_process_utilization_ratio{hostname="gpu01",index="0",pid="100",eid="e1",username="alice",comm="python3"} 0.6
    genv_process_utilization_ratio{hostname="gpu01",index="0",pid="200",eid="",username="bob",comm="train"} 0.3
    genv_process_utilization_ratio{hostname="gpu01",index="0",pid="other",eid="",username="",comm=""} 0.01
    "#);
    let all = families(vec![host(snapshot())]);
    assert_eq!(value(&all, "genv_process_memory_used_bytes", &[("pid", "other")]), None);
    let none = exposition::parse(&metrics(vec![host(snapshot())], 0));
    let sum = 12_884_901_888.0 + 3_221_225_472.0 + 1_048_576.0 + 1_048_577.0;
    let other = [("pid", "other"), ("index", "0")];
    assert_eq!(value(&none, "genv_process_memory_used_bytes", &other), Some(sum));
}

#[test]
fn values_without_a_collector_are_absent() {
    let of_state = [
        "genv_environment",
        "genv_attached_",
        "genv_host_installed",
        "genv_user_devices",
        "genv_user_environments",
        "genv_device_attachments",
        "genv_device_memory_unattached",
    ];
    let of_owners = ["genv_environment_processes", "genv_user_processes", "genv_user_memory"];
    let of_processes = ["genv_process", "genv_device_processes"];
    let all_processes = [&of_owners[..], &of_processes[..]].concat();
    for (collector, on, gone) in [
        ("state", true, &of_state[..]),
        ("state", false, &of_state[..]),
        ("processes", true, &of_owners[..]),
        ("processes", false, &all_processes[..]),
        ("gpu", true, &all_processes[..]),
        ("gpu", false, &all_processes[..]),
    ] {
        let mut snapshot = snapshot();
        if on {
            snapshot.collectors.get_mut(collector).unwrap().current = false;
        } else {
            snapshot.collectors.remove(collector);
        }
        let shown = families(vec![host(snapshot)]);
        for gone in gone {
            let family = shown.iter().find(|family| family.name.starts_with(gone));
            assert!(family.is_none(), "{collector} {on}: {family:?}");
        }
        // The number of users is absent if one of its sources fails, and present if that source is turned off.
        let users = value(&shown, "genv_users", &[]);
        assert_eq!(users, (!on).then_some(2.0), "{collector} {on}");
        let available = value(&shown, "genv_device_available", &[("index", "4")]);
        let known = (collector, on) == ("processes", true);
        assert_eq!(available, known.then_some(1.0), "{collector} {on}");
    }
}

#[test]
fn a_device_is_available_only_if_it_is_known_to_be_unused() {
    let available = |change: &dyn Fn(&mut genv_core::model::Snapshot)| {
        let mut snapshot = snapshot();
        change(&mut snapshot);
        let shown = families(vec![host(snapshot)]);
        ["0", "1", "2", "3", "4"].map(|index| value(&shown, "genv_device_available", &[("index", index)]))
    };
    // Attached and used; split, one part used; lost; processes not told; free.
    assert_eq!(available(&|_| {}), [Some(0.0), Some(0.0), Some(0.0), None, Some(1.0)]);
    let split_and_idle = available(&|snapshot| snapshot.processes.clear());
    assert_eq!(split_and_idle[1], Some(1.0));
    let part_not_told = available(&|snapshot| {
        snapshot.processes.clear();
        snapshot.devices[2].processes_measured = false;
    });
    assert_eq!(part_not_told[1], None);
    let used_without_process = available(&|snapshot| {
        snapshot.processes.clear();
        for device in &mut snapshot.devices {
            device.use_unexplained = true;
        }
    });
    assert_eq!((used_without_process[1], used_without_process[4]), (None, None));
    let in_mig_mode_without_parts = available(&|snapshot| {
        for device in &mut snapshot.devices {
            device.mig_unsplit = device.index.gpu == 4;
        }
    });
    assert_eq!(in_mig_mode_without_parts[4], Some(0.0));
    let attached_is_enough = available(&|snapshot| {
        snapshot.collectors.remove("processes");
    });
    assert_eq!(attached_is_enough, [Some(0.0), None, Some(0.0), None, None]);
}

#[test]
fn no_process_is_counted_for_the_holder_of_a_lost_device_nor_while_all_are_lost() {
    // GPU 2, which alice's environment e1 holds, is lost.
    let mut lost = snapshot();
    let shown = families(vec![host(lost.clone())]);
    assert_eq!(value(&shown, "genv_environment_processes", &[("eid", "e1")]), None);
    assert_eq!(value(&shown, "genv_environment_processes", &[("eid", "e2")]), Some(0.0));
    assert_eq!(value(&shown, "genv_user_processes", &[("username", "alice")]), None);
    for device in &mut lost.devices {
        (device.up, device.processes_measured) = (false, false);
    }
    let shown = families(vec![host(lost)]);
    for name in ["genv_processes", "genv_users", "genv_user_processes", "genv_environment_processes"] {
        assert!(shown.iter().all(|family| family.name != name), "{name}");
    }
}

#[test]
fn a_name_that_two_uids_share_is_one_user() {
    let mut snapshot = snapshot();
    measure_all_processes(&mut snapshot);
    for environment in &mut snapshot.environments {
        Arc::make_mut(environment).username = "twin".to_owned();
    }
    for process in &mut snapshot.processes {
        let process = Arc::make_mut(process);
        process.username = Some("twin".to_owned());
        process.attribution = Attribution::Unknown { reason: "vanished".to_owned() };
    }
    let shown = families(vec![host(snapshot)]);
    assert_eq!(value(&shown, "genv_users", &[]), Some(1.0));
    assert_eq!(value(&shown, "genv_user_environments", &[("username", "twin")]), Some(2.0));
    // Both environments hold device 0.
    assert_eq!(value(&shown, "genv_user_devices", &[("username", "twin")]), Some(2.0));
    assert_eq!(value(&shown, "genv_user_processes", &[("username", "twin")]), Some(5.0));
    let twin_on = |index| value(&shown, "genv_user_memory_used_bytes", &[("username", "twin"), ("index", index)]);
    assert_eq!(twin_on("0"), Some(12_884_901_888.0 + 3_221_225_472.0 + 1_048_576.0 + 1_048_577.0));
    assert_eq!(twin_on("1:0"), None, "a process there could not be measured");
}

#[test]
fn a_process_in_an_environment_belongs_to_the_environments_user() {
    let mut snapshot = snapshot();
    measure_all_processes(&mut snapshot);
    // A container of alice's environment, where she is root.
    let process = Arc::make_mut(&mut snapshot.processes[0]);
    process.uid = Some(0);
    process.username = Some("root".to_owned());
    let shown = metrics(vec![host(snapshot)], 64);
    assert!(!shown.contains("root"), "{shown}");
    assert!(shown.contains(r#"genv_user_processes{hostname="gpu01",username="alice"} 1"#), "{shown}");
    assert!(shown.contains(r#"pid="100",eid="e1",username="alice""#), "{shown}");
}

#[test]
fn the_memory_of_a_gpu_instance_is_shown_once() {
    let mut snapshot = snapshot();
    let (instance, memory) = (snapshot.devices[2].gpu_instance, snapshot.devices[2].measurements.memory);
    let second = &mut snapshot.devices[3];
    (second.gpu_instance, second.measurements.memory) = (instance, memory);
    for name in ["genv_device_memory_total_bytes", "genv_device_memory_used_bytes", "genv_device_memory_free_bytes"] {
        let shown = families(vec![host(snapshot.clone())]);
        assert!(value(&shown, name, &[("index", "1:0")]).is_some(), "{name}");
        assert_eq!(value(&shown, name, &[("index", "1:1")]), None);
    }
    // A compute instance that is gone hides nothing.
    snapshot.devices[2].measurements.memory = None;
    let shown = families(vec![host(snapshot)]);
    assert!(value(&shown, "genv_device_memory_used_bytes", &[("index", "1:1")]).is_some());
}

#[test]
fn invented_environments_do_not_displace_those_that_hold_devices() {
    let shown = families(vec![host(crowded())]);
    assert_eq!(value(&shown, "genv_environments", &[]), Some(5002.0));
    assert_eq!(series(&shown, "genv_environment_info"), 1000);
    assert_eq!(value(&shown, "genv_environment_devices", &[("eid", "e1")]), Some(2.0));
    // uid:1001 is among those that were invented.
    assert_eq!(value(&shown, "genv_users", &[]), Some(5002.0));
    assert_eq!(series(&shown, "genv_user_environments"), 1000);
    assert_eq!(value(&shown, "genv_user_processes", &[("username", "bob")]), Some(2.0));
    // Totals of genv 1.x include environments without series.
    let rendering = rendering(vec![host(crowded())], 0);
    let shown = exposition::parse(&text(&rendering.genv1(Encoding::Plain)));
    assert_eq!(value(&shown, "genv_environments_total", &[]), Some(5002.0));
    // Bob has no environment.
    assert_eq!(value(&shown, "genv_users_total", &[]), Some(5001.0));
    assert_eq!(series(&shown, "genv_environment_attached_devices_total"), 1000);
    assert!(series(&shown, "genv_user_environments_total") <= 1000);
    let alice = [("username", "alice")];
    assert_eq!(value(&shown, "genv_user_attached_devices_total", &alice), Some(2.0));
}

/// A host with thousands of invented environments and users in its state.
fn crowded() -> genv_core::model::Snapshot {
    let mut snapshot = snapshot();
    for number in 0..5000 {
        let mut environment = Arc::clone(&snapshot.environments[1]);
        let invented = Arc::make_mut(&mut environment);
        invented.eid = format!("a{number}");
        invented.username = format!("uid:{number}");
        invented.devices.clear();
        snapshot.environments.push(environment);
    }
    snapshot.environments.sort_by(|a, b| a.eid.cmp(&b.eid));
    snapshot
}

fn series(families: &[ParsedFamily], name: &str) -> usize {
    let family = families.iter().find(|family| family.name == name).unwrap();
    family.samples.len()
}

#[test]
fn series_end_with_their_subject() {
    let mut after = snapshot();
    after.environments.clear();
    after.processes.clear();
    after.devices.truncate(1);
    Arc::make_mut(&mut after.devices[0].attachments).clear();
    after.counters = genv_core::model::Counters::default();
    let shown = metrics(vec![host(after)], 64);
    for gone in ["alice", "bob", "eid=", "pid=", "GPU-1", "\"1:0\"", "xid="] {
        assert!(!shown.contains(gone), "{gone} in {shown}");
    }
}
