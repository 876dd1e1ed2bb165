use super::format::parse;
use super::*;
use crate::proc::INITIAL_PID_NAMESPACE;
use crate::state::shape::Times;
use jiff::tz::TimeZone;

const BOOT: &str = "0f1e2d3c";

fn times() -> Times {
    Times { zone: TimeZone::UTC, now_seconds: 0 }
}

fn read(content: &[u8], boot_id: &str) -> MembersFile {
    let document = parse(content, boot_id, &TimeZone::UTC).unwrap();
    document.entries.into_iter().next().unwrap()
}

const A: MemberState = member(7, 700, 4_026_532_178, false);
const B: MemberState = member(8, 800, INITIAL_PID_NAMESPACE, true);

const fn member(pid: u32, start_time_ticks: u64, pid_namespace: u64, is_job: bool) -> MemberState {
    MemberState {
        pid,
        started: Started::At(start_time_ticks),
        pid_namespace: Some(pid_namespace),
        is_job,
        is_confirmed: true,
        is_stranger: false,
    }
}

fn environment(eid: &str, created: Option<f64>, member: MemberState) -> EnvironmentState {
    EnvironmentState {
        eid: eid.to_owned(),
        created_timestamp_seconds: created,
        members: vec![member],
        ..EnvironmentState::default()
    }
}

fn written() -> Vec<u8> {
    let environments = [environment("b", Some(60.7), B), environment("a", Some(60.0), A)];
    let queue = vec![ProcessId { pid: 9, start_time_ticks: 900 }];
    OtherRecords { queue, ..OtherRecords::default() }.write(&environments, BOOT, &times())
}

/// The facts of a file from a boot for a member of an environment that lists its pid alone.
fn facts(boot_id: &str, eid: &str, created: Option<f64>, pid: u32) -> MemberState {
    let mut listed = [environment(eid, created, pid.into())];
    read(&written(), boot_id).give_facts(&mut listed, false);
    listed[0].members[0]
}

#[test]
fn records_read_back() {
    for (eid, created, member) in [("a", 60.0, A), ("b", 60.9, B)] {
        // Only a confirmation shows that a member is a job.
        let expected = MemberState { is_confirmed: false, is_job: false, ..member };
        assert_eq!(facts(BOOT, eid, Some(created), member.pid), expected);
    }
    assert_eq!(read(&written(), BOOT).others.queue, [ProcessId { pid: 9, start_time_ticks: 900 }]);
    insta::assert_snapshot!(String::from_utf8(written()).unwrap(), @r#"
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
    for (eid, created, pid) in [("a", Some(61.0), 7), ("a", None, 7), ("b", Some(60.0), 7), ("a", Some(60.0), 8)] {
        assert_eq!(facts(BOOT, eid, created, pid), MemberState::from(pid));
    }
}

#[test]
fn members_of_another_boot_have_ended_and_the_queue_is_empty() {
    assert_eq!(facts("another", "a", Some(60.0), 7).started, Started::BeforeThisBoot);
    assert_eq!(read(&written(), "another").others.queue, []);
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
