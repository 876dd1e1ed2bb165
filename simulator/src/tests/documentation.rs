//! The documentation is whole and true.

use super::*;

#[test]
fn the_documented_example_is_a_scenario() {
    let scenario = engine(documented_example()).scenario();
    let host = &scenario.hosts[0];
    assert_eq!(host.devices.len(), 4);
    assert_eq!(host.devices[1].mig.len(), 2);
    assert_eq!(host.environments.as_ref().unwrap().len(), 2);
}

#[test]
fn every_key_of_the_format_is_documented_and_in_the_example() {
    let format = include_str!("../format/mod.rs");
    let example = documented_example();
    let mut keys = 0;
    for line in format.lines() {
        let field = line.trim().strip_prefix("pub(super) ");
        let Some((key, _)) = field.and_then(|field| field.split_once(": ")) else {
            continue;
        };
        let key = match key {
            "process_type" => "type",
            // Of `during`, whose keys are explained together.
            "from" | "until" => "during",
            key => key,
        };
        keys += 1;
        assert!(
            example.contains(&format!("{key}: ")) || example.contains(&format!("{key}:\n")),
            "the example lacks {key}"
        );
        assert!(
            DOCUMENTATION.contains(&format!("`{key}`")) || DOCUMENTATION.contains(&format!("`{key}:")),
            "no table tells of {key}"
        );
    }
    assert!(keys > 60, "{keys}");
}

#[test]
fn every_measurement_and_reason_is_documented_and_accepted() {
    for measurement in Measurement::ALL {
        let name = serde_json::to_value(measurement).unwrap();
        let name = name.as_str().unwrap();
        assert!(DOCUMENTATION.contains(&format!("`{name}`")), "{name}");
        let text = format!("version: 1\nhosts: [{{devices: [{{fans: [1], faults: [{{not_supported: [{name}]}}]}}]}}]");
        let scenario = engine(&text).scenario();
        let device = scenario.hosts[0].at(at(1.0)).device(0).unwrap();
        for other in Measurement::ALL {
            let reserved = measurement == Measurement::Memory && other == Measurement::MemoryReserved;
            assert_eq!(device.supports(other, false), other != measurement && !reserved, "{name}");
        }
    }
    for reason in ThrottleReason::ALL {
        assert!(DOCUMENTATION.contains(&format!("`{}`", reason.name())));
        let text = format!("version: 1\nhosts: [{{devices: [{{throttled: [{}]}}]}}]", reason.name());
        let scenario = engine(&text).scenario();
        let device = scenario.hosts[0].at(at(1.0)).device(0).unwrap();
        assert_eq!(device.measured().throttle_reasons & !ThrottleReason::IDLE_BIT, reason.bit());
    }
}
