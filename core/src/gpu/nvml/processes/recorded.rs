//! The recorded answers of a real driver: see `tests/fixtures/nvml`.

use serde_json::Value;

use nvml_wrapper_sys::bindings::nvmlProcessUtilizationSample_t;

use super::*;

/// All calls at one moment: four processes, of which two work.
const BUSY: &str = include_str!("../../../../../tests/fixtures/nvml/h200-580.159.04-busy.jsonl");

/// Each sample of two processes that work for half a second of four, and means over some of them.
const BURSTS: &str = include_str!("../../../../../tests/fixtures/nvml/h200-580.159.04-bursts.jsonl");

/// When the bursts were recorded, in NVML's microseconds.
const BEGAN: u64 = 1_800_000_000_000_000;

fn lines(recording: &str) -> impl Iterator<Item = Value> {
    recording.lines().map(|it| serde_json::from_str(it).unwrap())
}

/// The recorded values of a call, each with its argument.
fn answers(call: &str) -> Vec<(String, Value)> {
    lines(BUSY)
        .filter(|it| it["call"] == call && it["code"] == 0)
        .map(|it| (it["argument"].to_string(), it["value"].clone()))
        .collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn sample(pid: u64, timestamp: u64, sm: u64) -> nvmlProcessUtilizationSample_t {
    nvmlProcessUtilizationSample_t {
        pid: pid as u32,
        timeStamp: timestamp,
        smUtil: sm as u32,
        memUtil: 0,
        encUtil: 0,
        decUtil: 0,
    }
}

#[test]
fn the_recorded_use_of_each_process_is_read() {
    let recorded = answers("nvmlDeviceGetProcessUtilization");
    assert_eq!(recorded.len(), 3);
    for (asked, value) in recorded {
        let mut samples: Vec<_> = value["samples"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| {
                let timestamp = BEGAN - number(&it["age_microseconds"]);
                sample(number(&it["pid"]), timestamp, number(&it["shares"][0][0]))
            })
            .collect();
        let mut processes = [614, 621, 628, 631].map(|pid| GpuProcess {
            pid,
            process_type: ProcessType::Compute,
            memory_used_bytes: None,
            utilization_ratio: None,
        });
        let mut last_seen = 0;
        set_utilization(&mut processes, Some(&[]), &mut samples, &mut last_seen);
        let read = processes.map(|it| it.utilization_ratio.unwrap());
        if asked.contains("1 s ago") {
            assert_eq!(read, [0.0, 0.0, 0.2, 0.8]);
        } else {
            assert_eq!(read, [0.0, 0.0, 0.11, 0.86]);
        }
        assert_eq!(last_seen, BEGAN - 41_364, "the time of the last sample of 631");
    }
}

fn bursts() -> Vec<nvmlProcessUtilizationSample_t> {
    lines(BURSTS)
        .filter_map(|it| {
            let it = it.get("sample")?;
            Some(sample(number(&it["pid"]), timestamp(&it["at_seconds"]), number(&it["sm"])))
        })
        .collect()
}

fn timestamp(seconds: &Value) -> u64 {
    BEGAN + (seconds.as_f64().unwrap() * 1e6) as u64
}

#[test]
fn sweeps_however_far_apart_count_each_sample_once() {
    let samples = bursts();
    for interval_milliseconds in [1_000, 1_130, 2_000, 3_700, 10_000] {
        let mut counted = vec![0; samples.len()];
        let mut last_seen = BEGAN;
        for n in 1.. {
            let now = BEGAN + n * interval_milliseconds * 1_000;
            let since = SampleWindow::at(now, last_seen).since_microseconds;
            let asked = since + 1..=now;
            for (counted, sample) in counted.iter_mut().zip(&samples) {
                *counted += u32::from(asked.contains(&sample.timeStamp));
            }
            let mut answer = samples.clone();
            answer.retain(|sample| asked.contains(&sample.timeStamp));
            set_utilization(&mut [], Some(&[]), &mut answer, &mut last_seen);
            if now > BEGAN + 18_000_000 {
                break;
            }
        }
        assert_eq!(counted, vec![1; samples.len()], "every {interval_milliseconds} ms");
    }
}
