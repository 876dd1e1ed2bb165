use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use schemars::{JsonSchema, schema_for};
use serde::de::DeserializeOwned;
use serde_json::{Value, from_str, from_value, json, to_string, to_value};

use super::*;
use crate::model::{Attribution, CollectorStatus, DeviceSeconds, QueuedProcess};

/// The snapshot after a round trip through JSON, which may lose the last digit of a number.
fn sent(snapshot: &Snapshot) -> Snapshot {
    from_str(&to_string(snapshot).unwrap()).unwrap()
}

/// The snapshot that these changes, as JSON, make of one.
fn changed(before: &Snapshot, changes: &str) -> serde_json::Result<Snapshot> {
    from_str::<SentChanges>(changes)?.apply(before)
}

fn process(pid: u32, share: f64) -> Arc<Process> {
    Arc::new(Process {
        pid,
        start_time_ticks: (!pid.is_multiple_of(4)).then_some(u64::from(pid % 3)),
        uid: Some(1000),
        username: Some("ada".to_owned()),
        comm: None,
        container_id: None,
        attribution: Attribution::Environment { eid: (pid / 6).to_string() },
        devices: devices(pid, share),
    })
}

/// Uses of a few devices, in an order and with values that depend on the share.
fn devices<T: DeserializeOwned>(number: u32, share: f64) -> Vec<T> {
    let mut uses: Vec<T> = (number % 2..3)
        .map(|gpu| {
            let ratio = (gpu > 0).then_some(share);
            from_value(
                json!({"index": gpu.to_string(), "attached": true, "type": "compute", "utilization_ratio": ratio}),
            )
        })
        .collect::<Result<_, _>>()
        .unwrap();
    if share > 0.2 {
        uses.reverse();
    }
    uses
}

/// None, one or three of this item, depending on the share.
fn repeated(item: Value, share: f64) -> Vec<Value> {
    vec![item; (share * 10.0) as usize]
}

fn environment(eid: u32, share: f64) -> Arc<Environment> {
    let environment: Environment = from_value(json!({
        "eid": eid.to_string(), "username": "ada", "created_timestamp_seconds": share,
        "members": repeated(json!({"pid": eid, "start_time_ticks": 7}), share),
        "kernel_ids": repeated(json!("k1"), share),
        "confirmed": repeated(json!({"eid": eid.to_string(), "at_seconds": 1.5, "change": "ended"}), share),
    }))
    .unwrap();
    Arc::new(Environment { devices: devices(eid, share), ..environment })
}

fn device(number: u32, share: f64) -> Device {
    from_value(json!({
        "index": format!("{}:{}", number / 4, number % 4), "uuid": "GPU-1", "up": true,
        "measurements": {"utilization_ratio": share},
        "attachments": repeated(json!({"eid": "1", "share_ratio": share}), share),
    }))
    .unwrap()
}

fn queued(pid: u32, since: f64) -> QueuedProcess {
    from_value(json!({"pid": pid, "username": "ada", "since_timestamp_seconds": since})).unwrap()
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
        queue in some(queued),
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
            queue,
            counters,
            ..Snapshot::default()
        }
    }
}

proptest! {
    #[test]
    fn changes_turn_each_snapshot_into_the_next(sequence in vec(snapshots(), 2..5)) {
        let mut read = sent(&sequence[0]);
        for pair in sequence.windows(2) {
            let changes = to_string(&Changes::between(&pair[0], &pair[1])).unwrap();
            read = changed(&read, &changes).unwrap();
            prop_assert_eq!(&read, &sent(&pair[1]));
        }
    }

    #[test]
    fn an_equal_snapshot_has_no_changes(snapshot in snapshots()) {
        prop_assert_eq!(to_string(&Changes::between(&snapshot, &snapshot)).unwrap(), "{}");
    }

    #[test]
    fn any_pieces_take_each_item_once_or_are_an_error(
        before in snapshots(),
        runs in vec((0..20_usize, prop_oneof![0..20_usize, Just(usize::MAX)]), 0..9),
    ) {
        let length = before.processes.len();
        if let Ok(snapshot) = changed(&before, &json!({"processes": runs}).to_string()) {
            prop_assert!(snapshot.processes.len() <= length);
            let expected = runs.iter().flat_map(|(first, count)| &before.processes[*first..first + count]);
            prop_assert!(snapshot.processes.iter().eq(expected));
        }
    }
}

#[test]
fn only_new_items_and_changed_fields_are_sent() {
    let before = Snapshot { processes: (0..200).map(|pid| process(pid, 0.1)).collect(), ..Snapshot::default() };
    let mut now = before.clone();
    now.processes.remove(30);
    let changed = Arc::make_mut(&mut now.processes[80]);
    changed.comm = Some("python".to_owned());
    changed.devices[1].utilization_ratio = None.into();
    now.processes.insert(100, process(500, 0.1));
    now.processes.push(process(501, 0.1));
    let last = now.processes.remove(150);
    now.processes.insert(0, last);
    let changes = to_value(Changes::between(&before, &now)).unwrap();
    let pieces = changes["processes"].as_array().unwrap().iter();
    let pieces: Vec<Value> = pieces.map(|it| it.get("pid").unwrap_or(it).clone()).collect();
    let fields = json!({"comm": "python", "devices": [[0, 1], [1, {"utilization_ratio": null}]]});
    assert_eq!(
        Value::from(pieces),
        json!([[150, 1], [0, 30], [31, 50], [81, fields], [82, 19], 500, [101, 49], [151, 49], 501])
    );
    assert_eq!(changes.as_object().unwrap().len(), 1);
}

#[test]
fn changes_that_do_not_belong_to_the_snapshot_or_repeat_a_part_are_an_error() {
    let before = Snapshot { processes: (0..10).map(|pid| process(pid, 0.1)).collect(), ..Snapshot::default() };
    for (processes, expected) in [
        ("[[0,11]]", "processes: 11 items from number 0 on, of 10"),
        ("[[18446744073709551615,2]]", "2 items from number 18446744073709551615 on, of 10"),
        ("[[9,1],[10,1]]", "1 items from number 10 on, of 10"),
        ("[[10,{}]]", "1 items from number 10 on, of 10"),
        ("[[0,10],[3,1]]", "1 items from number 3 on, not all of them for the first time"),
        ("[[3,{}],[0,10]]", "10 items from number 0 on, not all of them for the first time"),
        ("[[3,{}],[3,{}]]", "1 items from number 3 on, not all of them for the first time"),
        ("[[0,{\"devices\":[[0,9]]}]]", "processes: devices: 9 items from number 0 on, of 3"),
        ("[[0,{\"pid\":1,\"pid\":1}]]", "processes: duplicate field `pid`"),
        ("[[0,{\"devices\":[],\"devices\":[]}]]", "processes: duplicate field `devices`"),
        ("[],\"counters\":{\"device_energy\":[],\"device_energy\":[]}", "counters: duplicate field `device_energy`"),
        ("[],\"processes\":[]", "duplicate field `processes`"),
        ("[[0,{\"pid\":null}]]", "processes: pid: invalid type: null"),
        ("[[]]", "invalid length 0"),
        ("[[1]]", "invalid length 1"),
        ("[[1,2,3]]", "trailing characters"),
        ("[[-1,2]]", "integer `-1`"),
        ("[[0.5,2]]", "floating point `0.5`"),
        ("[[1,-2]]", "integer `-2`"),
        ("[7]", "expected a run [first, count], a changed item"),
        ("[{\"pid\":1}]", "missing field"),
        ("{}", "expected pieces of a list"),
    ] {
        let error = changed(&before, &format!("{{\"processes\":{processes}}}")).unwrap_err();
        assert!(error.to_string().contains(expected), "{processes}: {error}");
    }
}

#[test]
fn a_field_that_is_not_known_is_ignored() {
    let before = Snapshot { processes: vec![process(1, 0.1)], ..Snapshot::default() };
    // The JSON of a name may have escapes.
    let changes = r#"{"new\n":[1],"host\u006eame":"b","processes":[[0,{"new":{},"comm":"x"}]]}"#;
    let read = changed(&before, changes).unwrap();
    assert_eq!((read.hostname.as_str(), read.processes[0].comm.as_deref()), ("b", Some("x")));
}

#[test]
fn an_item_without_changed_fields_stays_shared() {
    let before = Snapshot { processes: (0..3).map(|pid| process(pid, 0.1)).collect(), ..Snapshot::default() };
    let read = changed(&before, r#"{"processes":[[0,{}],[1,{"new":1}],[2,1]]}"#).unwrap();
    assert_eq!(read, before);
    assert!(read.processes.iter().zip(&before.processes).all(|(read, before)| Arc::ptr_eq(read, before)));
}

#[test]
fn the_attachments_of_a_changed_device_stay_shared() {
    let before = Snapshot { devices: vec![device(1, 0.1)], ..Snapshot::default() };
    let read = changed(&before, r#"{"devices":[[0,{"measurements":{"utilization_ratio":0.5}}]]}"#).unwrap();
    assert_ne!(read, before);
    assert!(Arc::ptr_eq(&read.devices[0].attachments, &before.devices[0].attachments));
}

/// A value of this schema with all its fields. Values with two numbers from 1 on differ in each field.
fn example(schema: &Value, definitions: &Value, number: u64) -> Value {
    let part = |schema: &Value| example(schema, definitions, number);
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
        return part(&definitions[name]);
    }
    // The second of `anyOf` is null.
    if let Some(value) = schema.get("anyOf") {
        return part(&value[0]);
    }
    if let Some(variants) = schema["oneOf"].as_array() {
        return part(&variants[number as usize % variants.len()]);
    }
    if let Some(value) = schema.get("const") {
        return value.clone();
    }
    // The second of several types is null.
    let kinds = &schema["type"];
    match kinds.as_str().or(kinds[0].as_str()).unwrap() {
        "boolean" => json!(number == 1),
        "string" => json!(number.to_string()),
        "array" => json!([part(&schema["items"])]),
        "object" => match schema["properties"].as_object() {
            Some(properties) => properties.iter().map(|(name, schema)| (name.as_str(), part(schema))).collect(),
            None => match schema["patternProperties"].as_object() {
                Some(patterns) => patterns.values().map(|schema| ("0", part(schema))).collect(),
                None => json!({"0": part(&schema["additionalProperties"])}),
            },
        },
        _ => json!(number),
    }
}

/// The fields of a struct that are written as their difference. All others of the schema are written whole.
fn parts<T: Differ + PartialEq + fmt::Debug + JsonSchema + Serialize + DeserializeOwned>() -> Vec<String> {
    let schema = to_value(schema_for!(T)).unwrap();
    let numbered = |number| example(&schema, &schema["$defs"], number);
    let mut least = numbered(2);
    let required = schema["required"].as_array();
    least.as_object_mut().unwrap().retain(|name, _| required.is_some_and(|names| names.contains(&json!(name))));
    let [all, others, least]: [T; 3] = [numbered(1), numbered(2), least].map(|value| from_value(value).unwrap());

    // Fields also return to their defaults.
    for (before, now) in [(&others, &all), (&all, &least), (&least, &all)] {
        let difference = to_value(Difference { before, now }).unwrap();
        assert_eq!(Before(before).deserialize(difference).unwrap(), *now);
    }
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let written = names(&to_value(Difference { before: &others, now: &all }).unwrap());
    assert_eq!(written, names(&to_value(&all).unwrap()));
    assert_eq!(written, names(&schema["properties"]));

    // These differences change nothing. As whole values they differ from all examples.
    let is_part = |name: &String| {
        [json!({}), json!([[0, 1]])].into_iter().any(|nothing| {
            let read = Before(&all).deserialize(json!({ name.as_str(): nothing }));
            read.is_ok_and(|read| read == all)
        })
    };
    written.into_iter().filter(is_part).collect()
}

#[test]
fn each_field_is_sent_by_its_name_in_the_schema() {
    assert_eq!(parts::<Snapshot>(), ["counters", "devices", "environments", "processes"]);
    assert_eq!(parts::<Device>(), ["measurements"]);
    assert_eq!(parts::<Environment>(), ["devices"]);
    assert_eq!(parts::<Process>(), ["devices"]);
    let counters =
        ["device_distrusted_readings", "device_energy", "device_xid_errors", "user_device_use", "user_xid_errors"];
    assert_eq!(parts::<Counters>(), counters);
    for none in [
        parts::<DeviceMeasurements>(),
        parts::<EnvironmentDevice>(),
        parts::<ProcessDevice>(),
        parts::<DeviceEnergy>(),
        parts::<DeviceXid>(),
        parts::<DeviceDistrusted>(),
        parts::<UserDeviceUse>(),
        parts::<UserXid>(),
    ] {
        assert_eq!(none, [""; 0]);
    }
}

#[test]
fn confirmed_changes_which_the_schema_lacks_are_sent_whole() {
    let [before, now] = [0.0, 0.1].map(|share| (*environment(1, share)).clone());
    let difference = to_value(Difference { before: &before, now: &now }).unwrap();
    assert_eq!(difference["confirmed"], to_value(&now).unwrap()["confirmed"]);
    assert_eq!(difference["confirmed"][0]["change"], "ended");
    assert_eq!(to_value(Difference { before: &now, now: &before }).unwrap()["confirmed"], json!([]));
}
