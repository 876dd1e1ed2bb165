use std::fs::File;
use std::os::fd::AsFd as _;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::state::AttachmentState;

fn parse(text: &str) -> Result<Records, NoRecords> {
    let folder = TempDir::new().unwrap();
    Records::parse(text.as_bytes(), "b", File::open(folder.path()).unwrap().as_fd())
}

fn written(records: &mut Records) -> Result<String, String> {
    let folder = TempDir::new().unwrap();
    let text = records.write("b", File::open(folder.path()).unwrap().as_fd());
    text.map(|text| String::from_utf8(text).unwrap())
}

const WHOLE: &str = r#"{"version":1,"boot_id":"b","simulated":true,"environments":[{"eid":"7","uid":1000,"username":"é","created_timestamp_seconds":1795174860,"name":"x","gpus":2,"gpu_memory":"4gi","members":[{"pid":7,"start_time_ticks":5,"pid_namespace":4026531999},{"pid":8}],"kernel_ids":["k"],"context_seconds":1795174861}],"devices":[{"index":0,"total_memory":"80gi","attachments":[{"eid":"7","gpu_memory":"4gi","attached_timestamp_seconds":1795174860}]},{"index":1}],"queue":[{"pid":9,"start_time_ticks":6}]}
"#;

#[test]
fn what_is_written_is_read_again() {
    let mut records = parse(WHOLE).unwrap();
    assert_eq!(written(&mut records), Ok(WHOLE.to_owned()));
    assert_eq!((records.queue.len(), records.devices[0].attachments.len()), (1, 1));
    let Records { environments, .. } = records;
    assert_eq!(environments[0].members[0].started, Started::At(5));
    // Times are written in whole seconds.
    let exact = EnvironmentState { created_timestamp_seconds: Some(1_795_174_860.9), ..environments[0].clone() };
    let text = written(&mut Records { environments: vec![exact], ..Records::default() }).unwrap();
    assert!(text.contains("\"created_timestamp_seconds\":1795174860,"));
}

#[test]
fn a_wrong_value_damages_the_whole() {
    for (whole, damaged, why) in [
        (r#""eid":"7","uid""#, r#""eid":"","uid""#, "has no id"),
        (r#""uid":1000"#, r#""uid":-1"#, "invalid value"),
        (r#""pid":8"#, r#""pid":0"#, "no process"),
        (r#""pid":8"#, r#""pid":7"#, "or that it has before"),
        (r#""pid":8"#, r#""pid":4294967295"#, "no process"),
        (r#""index":1"#, r#""index":0"#, "it has device 0, or one of its attachments, before"),
        (r#""gpu_memory":"4gi","members""#, r#""gpu_memory":"much","members""#, "much"),
        ("1795174861", "1e300", "a time that no clock shows"),
        ("1795174860}]", "-1}]", "a time that no clock shows"),
        (r#""version":1"#, r#""version":"1""#, "invalid type"),
        (r#""queue":[{"pid":9"#, r#""queue":[{"pid":"9""#, "invalid type"),
    ] {
        assert!(WHOLE.contains(whole), "{whole}");
        let error = parse(&WHOLE.replace(whole, damaged)).unwrap_err();
        assert!(matches!(&error, NoRecords::Damaged(text) if text.contains(why)), "{damaged}: {error}");
    }
    let long = "x".repeat(1000);
    let many: Vec<String> = (0..4_000).map(|number| format!(r#"{{"eid":"{long}{number}"}}"#)).collect();
    let error =
        parse(&WHOLE.replace(r#"{"index":1}"#, &format!(r#"{{"index":1,"attachments":[{}]}}"#, many.join(","))));
    assert_eq!(error, Err(NoRecords::Damaged("its devices have more than 3145728 bytes".to_owned())));
}

#[test]
fn what_no_reader_would_take_is_not_written() {
    let whole = parse(WHOLE).unwrap();
    let mut future = whole.clone();
    future.environments[0].created_timestamp_seconds = Some(1e300);
    assert_eq!(written(&mut future).unwrap_err(), "the environment \"7\" has a time that no clock shows");
    let mut long = whole.clone();
    let eid = "x".repeat(4 << 20);
    long.devices[1].attachments.push(AttachmentState { eid, gpu_memory: None, attached_timestamp_seconds: None });
    assert_eq!(written(&mut long).unwrap_err(), "its devices have more than 3145728 bytes");
    // Records beyond the limits are left out before.
    let many = (0..20_000).map(|number| EnvironmentState { eid: number.to_string(), ..whole.environments[0].clone() });
    let mut many = Records { environments: many.collect(), ..whole };
    assert_eq!(parse(&written(&mut many).unwrap()).unwrap().environments.len(), many.environments.len());
    assert!((8_192, 1) == (many.environments.len(), many.warnings.len()), "{:?}", many.warnings);
}

proptest! {
    #[test]
    fn a_part_is_damaged_and_no_bytes_end_the_program(cut in 0_usize..400, content in any::<Vec<u8>>()) {
        let cut = (0..=cut).rev().find(|at| WHOLE.is_char_boundary(*at)).unwrap();
        prop_assert!(parse(&WHOLE[..cut]).is_err());
        let _ = parse(&String::from_utf8_lossy(&content));
    }
}
