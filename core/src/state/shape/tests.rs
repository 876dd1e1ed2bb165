use super::*;
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
