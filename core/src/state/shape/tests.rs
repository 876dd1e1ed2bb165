use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::state::MemberState;
use crate::state::genv1;

fn utc() -> Times {
    Times { zone: TimeZone::UTC, now_seconds: 1_795_174_860 }
}

fn environments(environments: &[EnvironmentState], times: &Times) -> Vec<u8> {
    json(&EnvironmentsDocument::new(environments, times))
}

fn devices(devices: &[DeviceState], times: &Times) -> Vec<u8> {
    json(&DevicesDocument::new(devices, times))
}

fn rewritten_environments(content: &[u8], times: &Times) -> Vec<u8> {
    let read = genv1::environments(&genv1::parse(content).unwrap(), &times.zone).unwrap();
    assert_eq!(read.warnings, Vec::<String>::new());
    environments(&read.records, times)
}

fn rewritten_devices(content: &[u8], times: &Times) -> Vec<u8> {
    let read = genv1::devices(&genv1::parse(content).unwrap(), &times.zone).unwrap();
    assert_eq!(read.warnings, Vec::<String>::new());
    devices(&read.records, times)
}

fn fixture(version: &str, file: &str) -> Vec<u8> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/genv-state");
    std::fs::read(format!("{root}/{version}/{file}")).unwrap()
}

#[test]
fn files_of_genv_are_written_again_byte_for_byte() {
    for version in ["1.0.0", "1.4.3"] {
        let envs = fixture(version, "envs.json");
        assert_eq!(rewritten_environments(&envs, &utc()), envs, "{version}");
    }
    for version in ["0.9.0", "1.0.0", "1.4.3"] {
        let devs = fixture(version, "devices.json");
        assert_eq!(rewritten_devices(&devs, &utc()), devs, "{version}");
    }
}

#[test]
fn older_shapes_are_written_in_the_newest() {
    let devs = rewritten_devices(br#"{"devices": {"0": {"eids": ["7"]}}}"#, &utc());
    insta::assert_snapshot!(String::from_utf8(devs).unwrap(), @r#"
    {
      "devices": [
        {
          "index": 0,
          "total_memory": null,
          "attachments": [
            {
              "eid": "7",
              "gpu_memory": null,
              "time": "20/11/2026 11:41:00"
            }
          ]
        }
      ]
    }
    "#);
    assert_eq!(environments(&[], &utc()), b"{\n  \"envs\": []\n}");
    assert_eq!(devices(&[], &utc()), b"{\n  \"devices\": []\n}");
}

#[test]
fn texts_are_escaped_as_in_python() {
    let text = "a/\"\\\n\r\t\u{8}\u{c}\u{0}\u{1b}\u{7f}\u{e9}\u{2028}\u{1f600}~";
    let written = String::from_utf8(json(&text)).unwrap();
    assert_eq!(written, r#""a/\"\\\n\r\t\b\f\u0000\u001b\u007f\u00e9\u2028\ud83d\ude00~""#);
}

#[test]
fn a_time_that_cannot_be_written_becomes_the_present_time() {
    for seconds in [None, Some(f64::MAX), Some(-1e12)] {
        assert_eq!(utc().text(seconds), "20/11/2026 11:41:00", "{seconds:?}");
    }
}

fn any_amount() -> impl Strategy<Value = MemoryAmount> {
    "[1-9][0-9]{0,8}(b|k|m|g|ki|mi|gi)?".prop_map(|text| MemoryAmount::from_file(&text).unwrap())
}

fn any_time() -> impl Strategy<Value = Option<f64>> {
    (0..4_000_000_000_u32).prop_map(|seconds| Some(f64::from(seconds)))
}

prop_compose! {
    fn any_environment()(
        eid in any::<String>(),
        uid in any::<u32>(),
        username in option::of(any::<String>()),
        created_timestamp_seconds in any_time(),
        name in option::of(any::<String>()),
        gpus in option::of(any::<u32>()),
        gpu_memory in option::of(any_amount()),
        pids in proptest::collection::btree_set(1..4_194_304_u32, 0..3),
        kernel_ids in proptest::collection::btree_set("[0-9a-f-]{1,36}", 0..2),
    ) -> EnvironmentState {
        EnvironmentState {
            eid: format!("e{eid}"),
            uid,
            username,
            created_timestamp_seconds,
            name,
            gpus,
            gpu_memory,
            members: pids.into_iter().map(MemberState::from).collect(),
            kernel_ids: kernel_ids.into_iter().collect(),
            context_seconds: None,
        }
    }
}

proptest! {
    #[test]
    fn an_untouched_file_is_written_byte_for_byte(
        mut list in proptest::collection::vec(any_environment(), 0..4),
        attached in proptest::collection::vec(option::of((option::of(any_amount()), any_time())), 0..4),
        total in option::of(any_amount()),
    ) {
        // Clocks that are set forward and back in spring and autumn.
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let times = Times { zone, now_seconds: 0 };
        list.sort_by(|a, b| a.eid.cmp(&b.eid));
        list.dedup_by(|a, b| a.eid == b.eid);
        let written = environments(&list, &times);
        prop_assert!(written.is_ascii());
        prop_assert_eq!(&rewritten_environments(&written, &times), &written);
        let read = genv1::environments(&genv1::parse(&written).unwrap(), &times.zone).unwrap().records;
        for (read, environment) in read.iter().zip(&list) {
            prop_assert_eq!(&read.eid, &environment.eid);
            prop_assert_eq!(&read.name, &environment.name);
            prop_assert_eq!(read.gpu_memory, environment.gpu_memory);
        }

        let list: Vec<DeviceState> = (0..).zip(attached).map(|(index, attached)| {
            let attachment = |(gpu_memory, attached_timestamp_seconds)| {
                AttachmentState { eid: "7".to_owned(), gpu_memory, attached_timestamp_seconds }
            };
            let attachments = attached.into_iter().map(attachment).collect();
            DeviceState { index, total_memory: total, attachments }
        }).collect();
        let written = devices(&list, &times);
        prop_assert_eq!(&rewritten_devices(&written, &times), &written);
    }
}
