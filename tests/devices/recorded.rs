//! The simulated library answers as a real driver did: `fixtures/nvml` holds what that said, of the device of these scenarios.

use std::path::Path;

use genv_tests::nvml_answers::Answer;
use genv_tests::nvml_sim::Simulation;
use genv_tests::tools::build_folder;
use serde_json::{Value, json};

const DEVICE: &str = "version: 1
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
    temperature_limits: {shutdown: 95, slowdown: 89, memory_max: 95, gpu_max: 87}
    power_limit: 700
";

const IDLE: &str = "    temperature: 39
    power: 78.905
    clocks: {graphics: 345, sm: 345, memory: 3201, video: 765}
";

/// The driver counts 26 MB more than its processes hold.
const BUSY: &str = "    memory_used: 21740716032b
    memory_controller: 0.23
    temperature: 62
    power: 688.879
    clocks: {graphics: 1545, sm: 1545, memory: 3201, video: 1545}
    throttled: [sw_power_cap]
  processes:
  - {pid: 614, user: carol, devices: [{index: 0, memory: 3720mi}]}
  - {pid: 621, user: carol, devices: [{index: 0, memory: 2696mi}]}
  - {pid: 628, user: bob, devices: [{index: 0, memory: 5098mi, utilization: 0.2}]}
  - {pid: 631, user: alice, devices: [{index: 0, memory: 9194mi, utilization: 0.8}]}
";

fn told(scenario: &str) -> Vec<Answer> {
    let simulation = Simulation::new(scenario);
    let output =
        simulation.command(&build_folder().join("nvml-answers")).output().expect("cargo has built nvml-answers");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    answers(&output.stdout)
}

fn recorded(name: &str) -> Vec<Answer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/nvml");
    let lines = std::fs::read(folder.join(name)).expect("the recording is there");
    answers(&lines)
}

fn answers(lines: &[u8]) -> Vec<Answer> {
    serde_json::Deserializer::from_slice(lines).into_iter().collect::<Result<_, _>>().expect("each line is an answer")
}

fn list<'a>(value: &'a mut Value, name: &str) -> Option<&'a mut Vec<Value>> {
    value.get_mut(name)?.as_array_mut()
}

/// Each number by its kind.
fn shape(value: &Value) -> Value {
    match value {
        Value::Number(_) => json!("a number"),
        Value::Array(items) => items.iter().map(shape).collect(),
        other => other.clone(),
    }
}

/// Leaves only the shape of what differs by design, and sorts lists of processes, which come in no order.
fn comparable(call: &str, mut value: Value) -> Value {
    for name in ["entries", "samples"] {
        if let Some(items) = list(&mut value, name) {
            items.sort_by_key(|item| item["pid"].as_u64());
        }
    }
    match call {
        // A counter since the driver was loaded; a scenario's begins with its epoch.
        "nvmlDeviceGetTotalEnergyConsumption"
        // The recorded machine was a virtual one.
        | "nvmlDeviceGetVirtualizationMode"
        // Of all events the library has XID errors alone.
        | "nvmlDeviceGetSupportedEventTypes"
        // The library has nothing mapped.
        | "nvmlDeviceGetBAR1MemoryInfo" => shape(&value),
        // The driver gives each process the time of its own newest sample, and the means over the samples asked for; the
        // library gives the shares of this moment, without memory.
        "nvmlDeviceGetProcessUtilization" => {
            for sample in list(&mut value, "samples").into_iter().flatten() {
                for key in ["age_microseconds", "shares"] {
                    sample[key] = shape(&sample[key]);
                }
            }
            value
        }
        _ => value,
    }
}

#[test]
fn each_call_is_answered_as_a_driver_did_idle_and_busy() {
    for (recording, shown) in [("h200-580.159.04-idle.jsonl", IDLE), ("h200-580.159.04-busy.jsonl", BUSY)] {
        let (told, recorded) = (told(&format!("{DEVICE}{shown}")), recorded(recording));
        let question = |answer: &Answer| (answer.call.clone(), answer.argument.clone());
        assert_eq!(told.iter().map(question).collect::<Vec<_>>(), recorded.iter().map(question).collect::<Vec<_>>());
        // The library has the calls that genv and nvidia-smi make.
        let absent = told.iter().filter(|answer| answer.code == "absent").count();
        assert_eq!(absent, 12, "calls that the library does not have");
        for (told, recorded) in told.into_iter().zip(recorded) {
            let question = format!("{}({})", told.call, told.argument);
            if told.code != "absent" {
                assert_eq!(told.code, recorded.code, "code of {question}");
                let [told, recorded] = [told, recorded].map(|answer| comparable(&answer.call, answer.value));
                assert_eq!(told, recorded, "value of {question}");
            }
        }
    }
}
