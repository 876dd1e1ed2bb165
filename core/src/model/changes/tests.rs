use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, from_value, json, to_value};

use super::*;
use crate::model::{Attribution, CollectorStatus, DeviceIndex, DeviceSeconds};

/// The value after a round trip through JSON, which may lose the last digit of a number.
fn sent<T: Serialize + for<'de> Deserialize<'de>>(value: &T) -> T {
    serde_json::from_slice(&serde_json::to_vec(value).unwrap()).unwrap()
}

fn process(pid: u32, share: f64) -> Arc<Process> {
    Arc::new(Process {
        pid,
        start_time_ticks: (!pid.is_multiple_of(4)).then_some(u64::from(pid % 3)),
        uid: Some(1000),
        username: Some("ada".to_owned()),
        comm: None,
        container_id: None,
        attribution: Attribution::Environment { eid: share.to_string() },
        devices: Vec::new(),
    })
}

fn environment(eid: u32, share: f64) -> Arc<Environment> {
    from_value(json!({
        "eid": eid.to_string(), "username": "ada", "created_timestamp_seconds": share,
        "devices": [{"index": "0", "attached": true, "utilization_ratio": share}],
    }))
    .unwrap()
}

fn device(number: u32, share: f64) -> Device {
    from_value(json!({
        "index": format!("{}:{}", number / 4, number % 4), "uuid": "GPU-1", "up": true,
        "measurements": {"utilization_ratio": share},
    }))
    .unwrap()
}

/// A list with items of a few identities, some of them twice, and of few values: much of it is in another list too.
fn some<T: fmt::Debug>(item: fn(u32, f64) -> T) -> impl Strategy<Value = Vec<T>> {
    vec((0..12_u32, prop::sample::select(vec![0.0, 0.1, 1.0 / 3.0])), 0..16)
        .prop_map(move |items| items.into_iter().map(|(id, value)| item(id, value)).collect())
}

fn counters() -> impl Strategy<Value = Counters> {
    fn index(number: u32) -> DeviceIndex {
        DeviceIndex::gpu(number % 4)
    }
    fn username(number: u32) -> String {
        format!("user{}", number / 4)
    }
    let energy = some(|number, energy_joules| DeviceEnergy { index: index(number), energy_joules });
    let device_xids = some(|number, seconds| DeviceXid {
        index: index(number),
        xid: u64::from(number / 4),
        errors: 1,
        last_timestamp_seconds: Some(seconds),
    });
    let distrusted = some(|number, readings: f64| DeviceDistrusted {
        index: index(number),
        reading: format!("reading{}", number / 4),
        readings: readings.to_bits(),
    });
    let uses = some(|number, busy| UserDeviceUse {
        username: username(number),
        index: index(number),
        device_seconds: Some(DeviceSeconds { busy, ..DeviceSeconds::default() }),
        utilized_device_seconds: None,
        energy_joules: Some(busy),
    });
    let user_xids = some(|number, errors| UserXid {
        username: username(number),
        index: index(number),
        xid: 31,
        errors: errors.to_bits(),
    });
    (energy, device_xids, distrusted, uses, user_xids).prop_map(|lists| Counters {
        device_energy: lists.0,
        device_xid_errors: lists.1,
        device_distrusted_readings: lists.2,
        user_device_use: lists.3,
        user_xid_errors: lists.4,
    })
}

prop_compose! {
    fn snapshots()(
        timestamp_seconds in 0.0..1e9,
        names in ("[a-c]", "[a-c]"),
        flags in any::<(bool, bool)>(),
        devices in some(device),
        environments in some(environment),
        processes in some(process),
        counters in counters(),
    ) -> Snapshot {
        Snapshot {
            hostname: names.0.clone(),
            timestamp_seconds,
            interval_seconds: timestamp_seconds / 7.0,
            installed: flags.0,
            simulated: flags.1,
            driver_version: flags.0.then_some(names.1.clone()),
            collectors: [(names.1, CollectorStatus::default())].into(),
            devices,
            environments,
            processes,
            counters,
            ..Snapshot::default()
        }
    }
}

proptest! {
    #[test]
    fn changes_between_two_snapshots_turn_one_into_the_other(before in snapshots(), now in snapshots()) {
        let changes: Changes = sent(&Changes::between(&before, &now));
        prop_assert_eq!(changes.apply(&sent(&before)).unwrap(), sent(&now));
    }

    #[test]
    fn an_unchanged_list_is_sent_as_one_run(snapshot in snapshots()) {
        let mut snapshot = snapshot;
        // The second of two items with one identity is not found.
        snapshot.processes.sort_by_key(|it| it.pid);
        snapshot.processes.dedup_by_key(|it| it.pid);
        let changes = Changes::between(&snapshot, &snapshot);
        prop_assert!(changes.processes.iter().all(|it| matches!(it, Piece::Run(0, _))));
        prop_assert!(changes.processes.len() <= 1);
    }

    #[test]
    fn any_changes_make_a_snapshot_or_an_error(
        before in snapshots(),
        runs in vec((0..20_usize, prop_oneof![0..20_usize, Just(usize::MAX)]), 0..9),
    ) {
        let length = before.processes.len();
        let mut changes = Changes::between(&before, &before);
        changes.processes = runs.iter().map(|(first, count)| Piece::Run(*first, *count)).collect();
        if let Ok(snapshot) = changes.apply(&before) {
            prop_assert!(snapshot.processes.len() <= length);
            let expected = runs.iter().flat_map(|(first, count)| &before.processes[*first..first + count]);
            prop_assert!(snapshot.processes.iter().eq(expected));
        }
    }
}

#[test]
fn only_new_and_changed_items_are_sent() {
    let before = Snapshot { processes: (0..200).map(|pid| process(pid, 0.1)).collect(), ..Snapshot::default() };
    let mut now = before.clone();
    now.processes.remove(30);
    now.processes[80] = process(81, 0.7);
    now.processes.insert(100, process(500, 0.1));
    now.processes.push(process(501, 0.1));
    let last = now.processes.remove(150);
    now.processes.insert(0, last);
    let changes = to_value(Changes::between(&before, &now)).unwrap();
    let pieces = changes["processes"].as_array().unwrap().iter();
    let pieces: Vec<Value> = pieces.map(|it| it.get("pid").unwrap_or(it).clone()).collect();
    assert_eq!(Value::from(pieces), json!([[150, 1], [0, 30], [31, 50], 81, [82, 19], 500, [101, 49], [151, 49], 501]));
}

#[test]
fn changes_of_another_snapshot_are_an_error() {
    let before = Snapshot { processes: (0..10).map(|pid| process(pid, 0.1)).collect(), ..Snapshot::default() };
    let mut changes = to_value(Changes::between(&before, &before)).unwrap();
    for (pieces, expected) in [
        (json!([[0, 11]]), "11 processes from number 0 on, of 10"),
        (json!([[u64::MAX, 2]]), "2 processes from number 18446744073709551615 on, of 10"),
        (json!([[9, 1], [10, 1]]), "1 processes from number 10 on, of 10"),
        (json!([[0, 10], [3, 1]]), "more than all 10 processes of the snapshot before"),
    ] {
        changes["processes"] = pieces;
        let changes: Changes = from_value(changes.clone()).unwrap();
        assert_eq!(changes.apply(&before).unwrap_err().to_string(), expected);
    }
    for (pieces, expected) in [
        (json!([[1]]), "invalid length 1"),
        (json!([[1, 2, 3]]), "invalid length 3"),
        (json!([[-1, 2]]), "integer `-1`"),
        (json!([[0.5, 2]]), "floating point `0.5`"),
        (json!([7]), "expected a run [first, count] or an item"),
        (json!([{"pid": 1}]), "missing field"),
        (json!({}), "expected a sequence"),
    ] {
        changes["processes"] = pieces;
        let error = from_value::<Changes>(changes.clone()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        let text = changes.to_string();
        assert!(serde_json::from_str::<Changes>(&text).is_err(), "{text}");
    }
}
