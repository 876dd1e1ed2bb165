//! The library answers as a real driver did: `fixtures/nvml` holds what that said, of the device of these scenarios.

use std::collections::BTreeSet;
use std::path::Path;

use genv_tests::nvml_answers::Answer;
use genv_tests::nvml_sim::Simulation;
use genv_tests::tools::build_folder;
use serde_json::{Value, json};

const IDLE: &str = "version: 1
hosts:
- driver_version: 580.159.04
  cuda_version: \"13.0\"
  environments: []
  devices:
  - name: NVIDIA H200
    uuid: GPU-12345678-1234-1234-1234-1234567890ab
    memory: 150754820096b
    memory_reserved: 644939776b
    temperature: 39
    temperature_limits: {shutdown: 95, slowdown: 89, memory_max: 95, gpu_max: 87}
    power: 78.905
    power_limit: 700
    clocks: {graphics: 345, sm: 345, memory: 3201, video: 765}
";

/// The driver counts 26 MB more than its processes hold.
const BUSY: &str = "version: 1
users: {alice: 1001, bob: 1002, carol: 1003}
hosts:
- driver_version: 580.159.04
  cuda_version: \"13.0\"
  environments: []
  devices:
  - name: NVIDIA H200
    uuid: GPU-12345678-1234-1234-1234-1234567890ab
    memory: 150754820096b
    memory_reserved: 644939776b
    memory_used: 21740716032b
    memory_controller: 0.23
    temperature: 62
    temperature_limits: {shutdown: 95, slowdown: 89, memory_max: 95, gpu_max: 87}
    power: 688.879
    power_limit: 700
    clocks: {graphics: 1545, sm: 1545, memory: 3201, video: 1545}
    throttled: [sw_power_cap]
  processes:
  - {pid: 614, user: carol, devices: [{index: 0, memory: 3720mi}]}
  - {pid: 621, user: carol, devices: [{index: 0, memory: 2696mi}]}
  - {pid: 628, user: bob, devices: [{index: 0, memory: 5098mi, utilization: 0.2}]}
  - {pid: 631, user: alice, devices: [{index: 0, memory: 9194mi, utilization: 0.8}]}
";

/// Calls that the library does not have: nothing that is tested with it makes them.
const ABSENT: &[&str] = &[
    "nvmlDeviceGetAccountingMode",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetMemoryBusWidth",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
];

/// A value, or the key of one within an answer, of which only the shape is the same.
struct Difference {
    call: &'static str,
    key: Option<&'static str>,
    why: &'static str,
}

const DIFFERENT: &[Difference] = &[
    Difference {
        call: "nvmlDeviceGetTotalEnergyConsumption",
        key: None,
        why: "a counter since the driver was loaded; a scenario's begins with its epoch",
    },
    Difference {
        call: "nvmlDeviceGetVirtualizationMode",
        key: None,
        why: "the machine that was recorded was a virtual one",
    },
    Difference {
        call: "nvmlDeviceGetSupportedEventTypes",
        key: None,
        why: "of all events the library has XID errors alone",
    },
    Difference { call: "nvmlDeviceGetBAR1MemoryInfo", key: None, why: "the library has nothing mapped" },
    Difference {
        call: "nvmlDeviceGetProcessUtilization",
        key: Some("age_microseconds"),
        why: "time goes on; the driver gives each process the time of its own newest sample",
    },
    Difference {
        call: "nvmlDeviceGetProcessUtilization",
        key: Some("shares"),
        why: "the driver's are means over the samples asked for, the library's are those of this moment, without memory",
    },
];

/// What the simulated library answers when it plays `scenario`.
fn told(scenario: &str) -> Vec<Answer> {
    let simulation = Simulation::new(scenario);
    let output =
        simulation.command(&build_folder().join("nvml-answers")).output().expect("cargo has built nvml-answers");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    answers(&output.stdout)
}

fn recorded(name: &str) -> Vec<Answer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/nvml");
    let lines = std::fs::read(folder.join(name)).expect("the recording is there");
    answers(&lines)
}

fn answers(lines: &[u8]) -> Vec<Answer> {
    serde_json::Deserializer::from_slice(lines).into_iter().collect::<Result<_, _>>().expect("each line is an answer")
}

/// Each number and text by its kind.
fn shape(value: &Value) -> Value {
    match value {
        Value::Number(_) => json!("a number"),
        Value::String(_) => json!("a text"),
        Value::Array(items) => items.iter().map(shape).collect(),
        other => other.clone(),
    }
}

/// Leaves of `key`, wherever it is in `value`, only the shape.
fn blank(value: &mut Value, key: &str) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if name == key {
                    *field = shape(field);
                } else {
                    blank(field, key);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| blank(item, key)),
        _ => {}
    }
}

/// Lists of processes come in no order.
fn sort(value: &mut Value) {
    for list in ["entries", "samples"] {
        if let Some(Value::Array(items)) = value.get_mut(list) {
            items.sort_by_key(|item| item["pid"].as_u64());
        }
    }
}

/// Compares all answers; which of the differences, by position, were found.
fn differences(told: Vec<Answer>, recorded: Vec<Answer>) -> BTreeSet<usize> {
    let question = |it: &Answer| (it.call.clone(), it.argument.clone());
    assert_eq!(told.iter().map(question).collect::<Vec<_>>(), recorded.iter().map(question).collect::<Vec<_>>());
    let mut found = BTreeSet::new();
    for (mut told, mut recorded) in told.into_iter().zip(recorded) {
        let question = format!("{}({})", told.call, told.argument);
        assert_eq!(told.code == "absent", ABSENT.contains(&told.call.as_str()), "{question} is absent");
        if told.code == "absent" {
            continue;
        }
        assert_eq!(told.code, recorded.code, "code of {question}");
        sort(&mut told.value);
        sort(&mut recorded.value);
        for (at, difference) in DIFFERENT.iter().enumerate() {
            if difference.call != told.call {
                continue;
            }
            let before = (told.value.clone(), recorded.value.clone());
            for value in [&mut told.value, &mut recorded.value] {
                match difference.key {
                    Some(key) => blank(value, key),
                    None => *value = shape(value),
                }
            }
            if before.0 != before.1 && before != (told.value.clone(), recorded.value.clone()) {
                found.insert(at);
            }
        }
        assert_eq!(told.value, recorded.value, "value of {question}");
    }
    found
}

#[test]
fn each_call_is_answered_as_a_driver_did_idle_and_busy() {
    let mut found = BTreeSet::new();
    for (recording, scenario) in [("h200-580.159.04-idle.jsonl", IDLE), ("h200-580.159.04-busy.jsonl", BUSY)] {
        found.extend(differences(told(scenario), recorded(recording)));
    }
    for (at, Difference { call, why, .. }) in DIFFERENT.iter().enumerate() {
        assert!(found.contains(&at), "{call} differs no more, though it should: {why}");
    }
}
