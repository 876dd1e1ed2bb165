//! The metrics of any snapshot can be parsed, and no series is repeated.

use std::collections::BTreeMap;
use std::sync::Arc;

use genv_core::model::*;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use genv_web::Encoding;

use crate::{exposition, host, rendering, text};

/// Few different texts, so that they meet; some hostile, some too long.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[ab]".prop_map(String::from),
        1 => Just(String::new()),
        1 => "\\PC{0,3}".prop_map(String::from),
        1 => any::<String>(),
        1 => "[\"\\\\\n\0\u{1b},{}=]{1,4}".prop_map(String::from),
        1 => "[xy]{2}".prop_map(|end| "long".repeat(40) + &end),
    ]
}

fn index() -> impl Strategy<Value = DeviceIndex> {
    (0..3_u32, of(0..2_u32)).prop_map(|(gpu, mig)| DeviceIndex { gpu, mig })
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![0.0..1.0_f64, -1e300..1e300_f64, Just(f64::NAN), Just(f64::INFINITY)]
}

fn device() -> impl Strategy<Value = Device> {
    let memory = (any::<u64>(), any::<u64>(), any::<u64>(), of(any::<u64>()));
    let measurements = (of(number()), of(memory), vec((name(), number()), 0..3), any::<[Option<u32>; 3]>());
    let attachment = (name(), of(any::<u64>()), number());
    let flags = any::<[bool; 3]>();
    (index(), name(), flags, measurements, vec(attachment, 0..3)).prop_map(
        |(index, text, [up, mig_parent, processes_measured], (ratio, memory, map, counts), attachments)| Device {
            index,
            uuid: text.clone(),
            up,
            name: Some(text.clone()),
            minor: counts[0],
            profile: Some(text),
            mig_parent,
            measurements: DeviceMeasurements {
                utilization_ratio: ratio,
                memory: memory.map(|(total_bytes, used_bytes, free_bytes, reserved_bytes)| DeviceMemory {
                    total_bytes,
                    used_bytes,
                    free_bytes,
                    reserved_bytes,
                }),
                power_watts: ratio,
                temperature_limits_celsius: map.iter().cloned().collect(),
                throttled: Some(map.iter().map(|(name, value)| (name.clone(), *value > 0.5)).collect()),
                clocks_hertz: map.into_iter().collect(),
                fan_speed_ratios: BTreeMap::from([(counts[1].unwrap_or(0), ratio.unwrap_or(0.0))]),
                ecc_errors: EccErrors { corrected: counts[1].map(u64::from), uncorrected: counts[2].map(u64::from) },
                ..DeviceMeasurements::default()
            },
            processes_measured,
            use_unexplained: !up,
            attachments: attachments
                .into_iter()
                .map(|(eid, memory_bytes, share_ratio)| Attachment {
                    eid,
                    memory_bytes,
                    share_ratio,
                    attached_timestamp_seconds: None,
                    moved: false,
                })
                .collect(),
        },
    )
}

fn environment() -> impl Strategy<Value = Environment> {
    let device = (index(), any::<bool>(), of(any::<u64>()), of(number()));
    (name(), name(), of(name()), of(number()), vec(device, 0..3)).prop_map(
        |(eid, username, name, created_timestamp_seconds, devices)| Environment {
            eid,
            uid: Some(1),
            username,
            name,
            created_timestamp_seconds,
            gpus: None,
            gpu_memory_bytes: None,
            lease_end_timestamp_seconds: None,
            oldest_member_started_timestamp_seconds: None,
            foreign_members: 0,
            members: Vec::new(),
            confirmed: Vec::new(),
            kernel_ids: Vec::new(),
            devices: devices
                .into_iter()
                .map(|(index, attached, bytes, ratio)| EnvironmentDevice {
                    index,
                    attached,
                    memory_used_bytes: bytes,
                    memory_capacity_bytes: bytes,
                    utilization_ratio: ratio,
                    last_active_timestamp_seconds: ratio,
                })
                .collect(),
        },
    )
}

fn process() -> impl Strategy<Value = Process> {
    let attribution = prop_oneof![
        name().prop_map(|eid| Attribution::Environment { eid }),
        name().prop_map(|reason| Attribution::Outside { reason }),
        name().prop_map(|reason| Attribution::Unknown { reason }),
    ];
    let process_type = prop_oneof![Just(ProcessType::Compute), Just(ProcessType::Graphics)];
    let device = (index(), process_type, of(any::<u64>()), of(number()));
    (0..4_u32, of(name()), of(name()), attribution, vec(device, 1..3)).prop_map(
        |(pid, username, comm, attribution, devices)| Process {
            pid,
            start_time_ticks: None,
            uid: None,
            username,
            comm,
            container_id: None,
            attribution,
            devices: devices
                .into_iter()
                .map(|(index, process_type, memory_used_bytes, utilization_ratio)| ProcessDevice {
                    index,
                    process_type,
                    memory_used_bytes,
                    utilization_ratio,
                })
                .collect(),
        },
    )
}

fn counters() -> impl Strategy<Value = Counters> {
    let usage = (name(), index(), of(number()), number());
    let xid = (name(), index(), 0..3_u64, of(number()));
    (vec(usage, 0..4), vec(xid, 0..4)).prop_map(|(usage, xid)| Counters {
        device_energy: usage
            .iter()
            .map(|(_, index, _, energy)| DeviceEnergy { index: *index, energy_joules: *energy })
            .collect(),
        device_xid_errors: xid
            .iter()
            .map(|(_, index, xid, at)| DeviceXid {
                index: *index,
                xid: *xid,
                errors: *xid,
                last_timestamp_seconds: *at,
            })
            .collect(),
        device_distrusted_readings: xid
            .iter()
            .map(|(reading, index, readings, _)| DeviceDistrusted {
                index: *index,
                reading: reading.clone(),
                readings: *readings,
            })
            .collect(),
        user_device_use: usage
            .into_iter()
            .map(|(username, index, seconds, energy_joules)| UserDeviceUse {
                username,
                index,
                device_seconds: seconds.map(|busy| DeviceSeconds { busy, ..DeviceSeconds::default() }),
                utilized_device_seconds: seconds,
                energy_joules: Some(energy_joules),
            })
            .collect(),
        user_xid_errors: xid
            .into_iter()
            .map(|(username, index, xid, _)| UserXid { username, index, xid, errors: xid })
            .collect(),
    })
}

fn arbitrary_snapshot() -> impl Strategy<Value = Snapshot> {
    let status = (any::<[bool; 2]>(), of(number()), of(number()), of(name()));
    let collectors =
        proptest::collection::btree_map(prop_oneof![Just("gpu"), Just("processes"), Just("state")], status, 0..4);
    let parts = (vec(device(), 0..5), vec(environment(), 0..4), vec(process(), 0..6), counters());
    (collectors, of(name()), parts).prop_map(
        |(collectors, driver_version, (devices, environments, processes, counters))| Snapshot {
            queue: Vec::new(),
            refused_requests: None,
            version: SNAPSHOT_VERSION,
            hostname: "inner".to_owned(),
            timestamp_seconds: 1.0,
            interval_seconds: 1.0,
            installed: true,
            simulated: true,
            driver_version,
            collectors: collectors
                .into_iter()
                .map(|(name, ([success, current], duration_seconds, timestamp_seconds, error))| {
                    let status = CollectorStatus { success, current, duration_seconds, timestamp_seconds, error };
                    (name.to_owned(), status)
                })
                .collect(),
            devices,
            environments: environments.into_iter().map(Arc::new).collect(),
            processes: processes.into_iter().map(Arc::new).collect(),
            counters,
        },
    )
}

proptest! {
    #[test]
    fn metrics_of_any_publication_are_parsed_without_repeated_series(
        snapshots in vec(arbitrary_snapshot(), 0..3),
        processes in 0..4_usize,
    ) {
        let hosts = snapshots.into_iter().enumerate().map(|(number, snapshot)| {
            let mut host = host(snapshot);
            host.hostname = format!("gpu\"0{number}\\\n");
            host
        });
        let rendering = rendering(hosts.collect(), processes);
        let mut texts = vec![rendering.metrics(Encoding::Plain)];
        for hostname in rendering.hostnames() {
            texts.push(rendering.host_metrics(hostname, Encoding::Plain).unwrap());
        }
        for served in texts {
            let families = exposition::parse(&text(&served)).map_err(TestCaseError::fail)?;
            let empty = families.iter().find(|family| family.samples.is_empty());
            prop_assert!(empty.is_none(), "{empty:?}");
        }
        exposition::parse(&text(&rendering.genv1(Encoding::Plain))).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn processes_with_series_of_their_own_stay_within_the_limit(
        snapshot in arbitrary_snapshot(),
        limit in 0..4_usize,
    ) {
        let rendering = rendering(vec![host(snapshot)], limit);
        let families = exposition::parse(&text(&rendering.metrics(Encoding::Plain))).unwrap();
        let samples = families
            .iter()
            .filter(|family| family.name == "genv_process_memory_used_bytes")
            .flat_map(|family| &family.samples);
        let own = samples.filter(|(labels, _)| labels["pid"] != "other").count();
        // Each process uses at most two devices here.
        prop_assert!(own <= 2 * limit, "{own} series for {limit} processes");
    }
}
