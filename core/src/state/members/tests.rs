use super::format::parse;
use super::*;
use crate::proc::INITIAL_PID_NAMESPACE;
use crate::state::shape::Times;
use jiff::tz::TimeZone;

const BOOT: &str = "0f1e2d3c";

fn times() -> Times {
    Times { zone: TimeZone::UTC, now_seconds: 0 }
}

fn read(content: &[u8], boot_id: &str) -> RecordedMembers {
    let document = parse(content, boot_id, &TimeZone::UTC).unwrap();
    document.entries.into_iter().next().unwrap()
}

fn recorded() -> RecordedMembers {
    let mut recorded = RecordedMembers::default();
    let process = |pid, start_time_ticks| ProcessId { pid, start_time_ticks };
    recorded.record("b", Some(60.7), process(8, 800), INITIAL_PID_NAMESPACE, true);
    recorded.record("a", Some(60.0), process(7, 700), 4_026_532_178, false);
    recorded.queue = vec![process(9, 900)];
    recorded
}

#[test]
fn records_read_back() {
    let written = recorded().write(BOOT, &times());
    assert_eq!(read(&written, BOOT), recorded().unconfirmed(true));
    insta::assert_snapshot!(String::from_utf8(written).unwrap(), @r#"
    {
      "version": 1,
      "boot_id": "0f1e2d3c",
      "members": [
        {
          "eid": "a",
          "creation": "01/01/1970 00:01:00",
          "pid": 7,
          "start_time_ticks": 700,
          "pid_namespace": 4026532178
        },
        {
          "eid": "b",
          "creation": "01/01/1970 00:01:00",
          "pid": 8,
          "start_time_ticks": 800,
          "job": true
        }
      ],
      "queue": [
        {
          "pid": 9,
          "start_time_ticks": 900
        }
      ]
    }
    "#);
}

#[test]
fn a_record_belongs_to_one_environment_and_not_to_another_with_the_same_id() {
    let recorded = recorded();
    assert_eq!(recorded.of("a", Some(60.9), 7), Recorded::Started(700));
    for (eid, created, pid) in [("a", Some(61.0), 7), ("a", None, 7), ("b", Some(60.0), 7), ("a", Some(60.0), 8)] {
        assert_eq!(recorded.of(eid, created, pid), Recorded::Unknown);
    }
}

#[test]
fn members_of_another_boot_have_ended_and_the_queue_is_empty() {
    let read = read(&recorded().write(BOOT, &times()), "another");
    assert_eq!(read.of("a", Some(60.0), 7), Recorded::BeforeThisBoot);
    assert_eq!(read.queue, []);
}

#[test]
fn an_invalid_file_has_no_records() {
    let error = |content: &str| parse(content.as_bytes(), BOOT, &TimeZone::UTC).unwrap_err().to_string();
    assert_eq!(error(""), "it is empty");
    assert!(error("[").starts_with("it is not understood: "));
    assert!(error("{}").contains("missing field"));
    let newer = error(r#"{"version": 2, "boot_id": "", "members": []}"#);
    assert_eq!(newer, "it is not understood: version 2 is not known");
    assert!(parse(br#"{"version": 1, "boot_id": "", "members": [], "later": 1}"#, "", &TimeZone::UTC).is_ok());
}
