//! The metrics of any snapshot can be parsed, and no series is repeated; its pages are whole.

use std::sync::Arc;

use genv_core::model::*;
use proptest::collection::vec;
use proptest::prelude::*;

use genv_exporter::families::Limits;
use genv_exporter::render::{OwnState, Rendering};
use genv_web::Encoding;

use crate::endpoints::Exporter;
use crate::{exposition, host, publication, rendering, text, unpacked};

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

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![0.0..1.0_f64, -1e300..1e300_f64, Just(f64::NAN), Just(f64::INFINITY)]
}

type Values = (Vec<String>, Vec<DeviceIndex>, Vec<f64>, Vec<u64>, Vec<bool>);

/// The snapshot with everything, in which these values stand one after the other.
fn filled((names, indices, numbers, sizes, facts): Values) -> Snapshot {
    let (mut names, mut indices) = (names.into_iter().cycle(), indices.into_iter().cycle());
    let (mut numbers, mut sizes) = (numbers.into_iter().cycle(), sizes.into_iter().cycle());
    let mut facts = facts.into_iter().cycle();
    let mut name = || names.next().unwrap();
    let mut index = || indices.next().unwrap();
    let mut number = || numbers.next().unwrap();
    let mut size = || sizes.next().unwrap();
    let mut fact = || facts.next().unwrap();
    let mut snapshot = crate::snapshot();
    snapshot.driver_version = fact().then(&mut name);
    snapshot.collectors.retain(|_, status| {
        (status.success, status.current) = (fact(), fact());
        (status.duration_seconds, status.timestamp_seconds) = (Some(number()), fact().then(&mut number));
        status.success || status.current
    });
    for device in &mut snapshot.devices {
        (device.index, device.uuid, device.name) = (index(), name(), fact().then(&mut name));
        (device.up, device.mig_parent, device.processes_measured) = (fact(), fact(), fact());
        (device.use_unexplained, device.contradictory, device.mig_unsplit) = (fact(), fact(), fact());
        device.profile = fact().then(&mut name);
        let values = &mut device.measurements;
        (values.utilization_ratio, values.power_watts) = (Some(number()), Some(number()));
        values.temperature_limits_celsius = Arc::new([(name(), number()), (name(), number())].into());
        values.clocks_hertz = Arc::new([(name(), number()), (name(), number())].into());
        values.throttled = Some(Arc::new([(name(), fact()), (name(), fact())].into()));
        values.memory = fact().then(|| DeviceMemory {
            total_bytes: size(),
            used_bytes: size(),
            free_bytes: size(),
            reserved_bytes: Some(size()),
        });
        values.fan_speed_ratios = [(0, number())].into();
        for attachment in Arc::make_mut(&mut device.attachments) {
            (attachment.eid, attachment.share_ratio) = (name(), number());
            attachment.memory_bytes = fact().then(&mut size);
        }
    }
    for environment in &mut snapshot.environments {
        let environment = Arc::make_mut(environment);
        (environment.eid, environment.username) = (name(), name());
        environment.name = fact().then(&mut name);
        environment.created_timestamp_seconds = fact().then(&mut number);
        for device in &mut environment.devices {
            (device.index, device.attached, device.utilization_ratio) = (index(), fact(), Some(number()).into());
            device.last_active_timestamp_seconds = fact().then(&mut number).into();
            device.memory_used_bytes = Some(size()).into();
            device.memory_capacity_bytes = fact().then(&mut size).into();
        }
    }
    for process in &mut snapshot.processes {
        let process = Arc::make_mut(process);
        (process.username, process.comm) = (fact().then(&mut name), fact().then(&mut name));
        process.pid %= 4;
        process.attribution = match (fact(), fact()) {
            (true, _) => Attribution::Environment { eid: name() },
            (_, true) => Attribution::Outside { reason: name() },
            _ => Attribution::Unknown { reason: name() },
        };
        for device in &mut process.devices {
            (device.index, device.utilization_ratio) = (index(), fact().then(&mut number).into());
            device.memory_used_bytes = fact().then(&mut size).into();
        }
    }
    let Counters { device_energy, device_xid_errors, device_distrusted_readings, user_device_use, user_xid_errors } =
        &mut snapshot.counters;
    device_energy.iter_mut().for_each(|it| (it.index, it.energy_joules) = (index(), number()));
    device_xid_errors.iter_mut().for_each(|it| (it.index, it.xid) = (index(), it.xid % 3));
    device_distrusted_readings.iter_mut().for_each(|it| (it.index, it.reading) = (index(), name()));
    user_xid_errors.iter_mut().for_each(|it| (it.index, it.username) = (index(), name()));
    for usage in user_device_use {
        (usage.username, usage.index, usage.energy_joules) = (name(), index(), fact().then(&mut number));
        usage.utilized_device_seconds = fact().then(&mut number);
    }
    snapshot
}

fn arbitrary_snapshot() -> impl Strategy<Value = Snapshot> {
    let index = (0..3_u32, proptest::option::of(0..2_u8)).prop_map(|(gpu, mig)| DeviceIndex { gpu, mig });
    let values = (vec(name(), 17), vec(index, 13), vec(number(), 19), vec(any::<u64>(), 11), vec(any::<bool>(), 29));
    values.prop_map(filled)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn the_compressed_page_of_many_hosts_has_the_text_of_the_plain_one(
        snapshots in vec(arbitrary_snapshot().prop_map(Arc::new), 3),
        steps in vec((vec((0..40_usize, 0..4_usize), 0..5), 15..40_usize), 2..8),
    ) {
        let pieces = Arc::default();
        // The snapshot of each host by its number; another number is that of a host that is down.
        let mut of_hosts = [0; 40];
        for (changed, length) in steps {
            changed.into_iter().for_each(|(at, number)| of_hosts[at] = number);
            let hosts = of_hosts[..length].iter().enumerate().map(|(at, number)| HostSnapshot {
                hostname: format!("gpu{at}"),
                up: *number < snapshots.len(),
                received_timestamp_seconds: None,
                snapshot: snapshots.get(*number).cloned(),
                ssh: None,
            });
            let (limits, own) = (Limits { processes: Some(3) }, OwnState::default());
            let rendering = Rendering::new(publication(hosts.collect()), limits, own, Arc::clone(&pieces));
            let (gzip, plain) = (rendering.metrics(Encoding::Gzip), rendering.metrics(Encoding::Plain));
            prop_assert_eq!(text(&unpacked(&gzip)), text(&plain));
        }
    }
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
            let families = exposition::parse(&text(&served));
            let empty = families.iter().find(|family| family.samples.is_empty());
            prop_assert!(empty.is_none(), "{empty:?}");
        }
        exposition::parse(&text(&rendering.genv1(Encoding::Plain)));
    }
    #[test]
    fn pages_of_any_publication_are_whole_and_without_control_characters(snapshot in arbitrary_snapshot()) {
        let exporter = Exporter::publishing(vec![host(snapshot)]);
        for path in ["/", "/?host=gpu01", "/?user=a"] {
            let (_, page) = exporter.get(path);
            prop_assert!(page.ends_with("</html>") && !page.contains(char::is_control), "{path}: {page:?}");
        }
    }
}
