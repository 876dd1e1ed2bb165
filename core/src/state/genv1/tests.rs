use proptest::prelude::*;
use serde_json::json;

use super::*;

fn fixture(version: &str, file: &str) -> Vec<u8> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/genv-state");
    std::fs::read(format!("{root}/{version}/{file}")).unwrap()
}

fn envs(root: &Value) -> Listed<EnvironmentState> {
    environments(root, &TimeZone::UTC).unwrap()
}

fn devs(root: &Value) -> Listed<DeviceState> {
    devices(root, &TimeZone::UTC).unwrap()
}

fn environment(eid: &str, created: i64) -> EnvironmentState {
    EnvironmentState {
        eid: eid.to_owned(),
        uid: 0,
        username: Some("root".to_owned()),
        created_timestamp_seconds: Some(created as f64),
        gpus: Some(1),
        members: vec![MemberState::from(eid.parse::<u32>().unwrap())],
        ..EnvironmentState::default()
    }
}

fn attached(eid: &str, gpu_memory: Option<MemoryAmount>, seconds: i64) -> AttachmentState {
    AttachmentState { eid: eid.to_owned(), gpu_memory, attached_timestamp_seconds: Some(seconds as f64) }
}

fn device(index: u32, attachments: Vec<AttachmentState>) -> DeviceState {
    DeviceState { index, total_memory: Some(MemoryAmount::mebibytes(15_258)), attachments }
}

#[test]
fn every_shape_that_was_recorded_from_genv_is_read() {
    let at = |hms: &str| parse_local_time(&format!("20/11/2026 {hms}"), &TimeZone::UTC).unwrap();
    let four = MemoryAmount::from_file("4g").ok();
    for (version, first, created, second, created_second, attached_at, attached_second) in [
        ("0.6.0", "24652", "11:55:09", "25088", "11:55:12", "11:55:11", "11:55:13"),
        ("0.9.0", "27752", "11:55:28", "28777", "11:55:34", "11:55:32", "11:55:37"),
        ("1.0.0", "31485", "11:55:57", "31909", "11:56:00", "11:55:59", "11:56:00"),
    ] {
        let read = envs(&parse(&fixture(version, "envs.json")).unwrap());
        let mut one = environment(first, at(created));
        one.name = Some("x".to_owned());
        one.gpu_memory = four;
        let mut two = environment(second, at(created_second));
        if version != "1.0.0" {
            two.kernel_ids = vec!["0123-abcd".to_owned()];
        }
        assert_eq!(read.records, [one, two], "{version}");
        assert_eq!(read.warnings, Vec::<String>::new());

        let read = devs(&parse(&fixture(version, "devices.json")).unwrap());
        let expected = [
            device(0, vec![attached(first, four, at(attached_at))]),
            device(1, vec![attached(second, None, at(attached_second))]),
        ];
        assert_eq!(read.records, expected, "{version}");
        assert_eq!(read.warnings, Vec::<String>::new());
    }
}

#[test]
fn older_attachments_are_bare_eids_without_times_or_one_in_the_device() {
    let bare = |eid: &str| AttachmentState { eid: eid.to_owned(), gpu_memory: None, attached_timestamp_seconds: None };
    let read = devs(&json!({"devices": {
        "10": {"eids": ["7", 8]},
        "2": {"eids": {"7": {}, "8": null, "9": {"eid": "9"}}},
        "1": {"eid": "7", "attached": "20/11/2026 11:41:00"},
        "0": {"eid": null},
        "3": {},
        "4": {"eids": []},
    }}));
    let attachments = |index: u32| {
        let device = read.records.iter().find(|device| device.index == index);
        device.unwrap().attachments.clone()
    };
    assert_eq!(attachments(10), [bare("7"), bare("8")]);
    assert_eq!(attachments(2), [bare("7"), bare("8"), bare("9")]);
    assert_eq!(attachments(1), [attached("7", None, 1_795_174_860)]);
    for none in [0, 3, 4] {
        assert_eq!(attachments(none), []);
    }
    let order: Vec<u32> = read.records.iter().map(|device| device.index).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 10]);
    assert_eq!(read.warnings, Vec::<String>::new());
}

#[test]
fn an_environment_needs_only_an_eid_and_a_user() {
    let read = envs(&json!({"envs": {"7": {"uid": 1000, "new_key": [1]}}, "version": 9}));
    let expected = EnvironmentState { eid: "7".to_owned(), uid: 1000, ..EnvironmentState::default() };
    assert_eq!(read.records, [expected]);
    assert_eq!((read.left_out, read.warnings), (None, Vec::new()));
}

#[test]
fn numbers_may_be_texts_and_amounts_may_be_numbers() {
    let read = envs(&json!({"envs": [
        {"eid": 7, "uid": "1000", "config": {"gpus": "2", "gpu_memory": 4096}, "pids": ["7", 7]},
    ]}));
    let environment = &read.records[0];
    assert_eq!((environment.eid.as_str(), environment.uid), ("7", 1000));
    assert_eq!(environment.gpus, Some(2));
    assert_eq!(environment.gpu_memory, Some(MemoryAmount::from_bytes(4096)));
    assert!(environment.pids().eq([7]));
    assert_eq!(read.warnings, Vec::<String>::new());
}

#[test]
fn only_a_damaged_environment_itself_is_left_out() {
    let read = envs(&json!({"envs": [
        {"eid": "good", "uid": 1},
        "nonsense",
        {"uid": 1},
        {"eid": "", "uid": 1},
        {"eid": ["x"], "uid": 1},
        {"eid": "negative", "uid": -1},
        {"eid": "homeless"},
        {"eid": "good", "uid": 2},
        {"eid": "partly", "uid": 1, "username": 5, "creation": "yesterday", "pids": [1, 0, -1, 99_999_999_999_u64, "x", 2.5, 2],
         "kernel_ids": "k", "config": {"name": ["x"], "gpus": -1, "gpu_memory": "abc"}},
        {"eid": "odd", "uid": 1, "config": "\u{1b}[2J and much more than anybody wants to read of it", "pids": null},
    ]}));
    let eids: Vec<&str> = read.records.iter().map(|entry| entry.eid.as_str()).collect();
    assert_eq!(eids, ["good", "partly", "odd"]);
    assert_eq!(read.records[0].uid, 1);
    assert!(read.records[1].pids().eq([1, 2]));
    assert_eq!(read.left_out.as_ref(), Some(&read.warnings[0]));
    insta::assert_snapshot!(read.warnings.join("\n"), @r#"
    entry 2 of 'envs': it is "nonsense", and it is left out
    entry 3 of 'envs': it has no eid, and it is left out
    entry 4 of 'envs': it has no eid, and it is left out
    entry 5 of 'envs': it has no eid, and it is left out
    environment "negative": its uid is -1, and it is left out
    environment "homeless": its uid is missing, and it is left out
    environment "good": it is there twice: the first is taken
    environment "partly": its username is 5, and is left out
    environment "partly": its creation is "yesterday", and is left out
    environment "partly": its name is ["x"], and is left out
    environment "partly": its gpus is -1, and is left out
    environment "partly": its gpu_memory is "abc", and is left out
    environment "partly": 0 among its pids is left out
    environment "partly": -1 among its pids is left out
    environment "partly": 99999999999 among its pids is left out
    environment "partly": "x" among its pids is left out
    environment "partly": 2.5 among its pids is left out
    environment "partly": its kernel_ids are "k", and are left out
    environment "odd": its config is "\u001b[2J and much more than anybody wa…, and is left out
    "#);
}

#[test]
fn only_a_damaged_device_itself_is_left_out() {
    let read = devs(&json!({"devices": [
        {"index": 0, "total_memory": "lots", "attachments": [
            {"eid": "7", "gpu_memory": "abc", "time": 5}, {"gpu_memory": "4g"}, "8", null, {"eid": "7"},
        ]},
        {"index": "x"},
        {"index": 0},
        {"index": -1},
        7,
        {"index": 1, "attachments": "7"},
        {"attachments": []},
    ]}));
    let indices: Vec<u32> = read.records.iter().map(|device| device.index).collect();
    assert_eq!(indices, [0, 1, 6]);
    let eids: Vec<&str> = read.records[0].attachments.iter().map(|entry| entry.eid.as_str()).collect();
    assert_eq!(eids, ["7", "8"]);
    assert_eq!(read.records[0].attachments[0].gpu_memory, None);
    assert_eq!(read.left_out.as_ref(), Some(&read.warnings[3]));
    insta::assert_snapshot!(read.warnings.join("\n"), @r#"
    device 0: its total_memory is "lots", and is left out
    device 0: its gpu_memory is "abc", and is left out
    device 0: its time is 5, and is left out
    device 0: its attachment {"gpu_memory":"4g"} has no eid, and is left out
    device 0: its attachment null has no eid, and is left out
    device 0: environment "7" is attached twice: the first is taken
    entry 2 of 'devices': its index is not a number of a device, and it is left out
    device 0: it is there twice: the first is taken
    entry 4 of 'devices': its index is not a number of a device, and it is left out
    entry 5 of 'devices': it is 7, and it is left out
    device 1: its attachments are "7", and are left out
    "#);
}

#[test]
fn warnings_do_not_pile_up() {
    let entries: Vec<Value> = (0..1000).map(|_| json!({"uid": 1})).collect();
    let in_one = envs(&json!({"envs": [{"eid": "7", "uid": 1, "username": 5, "pids": vec![0; 30]}]}));
    assert_eq!(in_one.warnings.last().unwrap(), "11 damaged values of 'envs' beside these");
    assert_eq!(in_one.left_out.unwrap(), "environment \"7\": 0 among its pids is left out");
    let read = envs(&json!({"envs": entries}));
    assert_eq!(read.warnings.len(), MOST_WARNINGS + 1);
    assert_eq!(read.warnings.last().unwrap(), "980 damaged values of 'envs' beside these");
}

#[test]
fn a_text_that_is_not_the_file_is_an_error() {
    let error =
        |content: &str| parse(content.as_bytes()).and_then(|root| environments(&root, &TimeZone::UTC)).unwrap_err();
    assert_eq!(error(" \n"), "it is empty");
    for other in ["{}", "[]", r#"{"envs": null}"#, r#"{"envs": 7}"#] {
        assert_eq!(error(other), "it has no 'envs'");
    }
    assert!(error(r#"{"envs": ["#).starts_with("it is not JSON: EOF"));
    assert!(error(r#"{"envs": [], "x": NaN}"#).starts_with("it is not JSON: expected value"));
    assert_eq!(devices(&json!({"envs": []}), &TimeZone::UTC).unwrap_err(), "it has no 'devices'");
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    assert!(error(&format!(r#"{{"envs": {deep}}}"#)).starts_with("it is not JSON: recursion limit"));
}

#[test]
fn names_that_were_not_utf8_do_not_cost_the_file() {
    let content =
        br#"{"envs": [{"eid": "7", "uid": 1, "username": "a\udcff\\udcff", "config": {"name": "\ud83d\ude00\ud83d"}}]}"#;
    let read = envs(&parse(content).unwrap());
    assert_eq!(read.records[0].username.as_deref(), Some("a\u{fffd}\\udcff"));
    assert_eq!(read.records[0].name.as_deref(), Some("\u{1f600}\u{fffd}"));

    let content = b"{\"envs\": [{\"eid\": \"7\", \"uid\": 1, \"username\": \"\xff\"}]}";
    assert_eq!(envs(&parse(content).unwrap()).records[0].username.as_deref(), Some("\u{fffd}"));
}

#[test]
fn an_eid_that_was_not_utf8_may_be_that_of_another_environment() {
    let content = br#"{"envs": {"a\udcff": {"uid": 1}, "b": {"eid": "a\udcfe", "uid": 2}}}"#;
    let read = envs(&parse(content).unwrap());
    assert_eq!(read.records.len(), 1);
    let expected =
        "environment \"a\u{fffd}\": its eid is not UTF-8, and may be that of another environment, and it is left out";
    assert_eq!(read.left_out.as_deref(), Some(expected));
}

proptest! {
    #[test]
    fn no_bytes_end_the_program(
        content in proptest::collection::vec(any::<u8>(), 0..100),
        text in any::<String>(),
        escapes in r"(\\|\\u|d83d|de00|dcff|é|x){0,12}",
    ) {
        let _ = parse(&content);
        let _ = without_lone_surrogates(&text);
        let replaced = without_lone_surrogates(&escapes);
        prop_assert_eq!(without_lone_surrogates(&replaced), replaced.clone());
        let _ = environments(&json!({"envs": [{"eid": text, "uid": text, "creation": text}]}), &TimeZone::UTC);
        let devs = json!({"devices": [{"index": text, "eids": text}, {"attachments": {(text.clone()): text}}]});
        let _ = devices(&devs, &TimeZone::UTC);
    }

    #[test]
    fn escapes_that_name_characters_stay(text in any::<String>()) {
        let ascii: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        prop_assert_eq!(without_lone_surrogates(&ascii), ascii);
    }
}
