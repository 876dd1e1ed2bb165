//! The calls that tell of processes.

use std::time::SystemTime;

use serde_json::json;

use super::{Asked, Device, SUCCESS};

/// Process lists, with the bytes of an entry.
const PROCESS_LISTS: &[(&str, usize)] = &[
    ("nvmlDeviceGetComputeRunningProcesses", 16),
    ("nvmlDeviceGetComputeRunningProcesses_v2", 24),
    ("nvmlDeviceGetComputeRunningProcesses_v3", 24),
    ("nvmlDeviceGetGraphicsRunningProcesses_v3", 24),
    ("nvmlDeviceGetMPSComputeRunningProcesses_v3", 24),
];

impl Asked {
    pub(super) fn processes(&mut self, device: Device) {
        for &(name, entry_bytes) in PROCESS_LISTS {
            // No room to ask for the number, too little, and enough.
            for capacity in [0_u32, 1, 64] {
                self.call(name, capacity, |call: extern "C" fn(Device, *mut u32, *mut u64) -> u32| {
                    let mut words = [0_u64; 64 * 4];
                    let mut count = capacity;
                    let buffer = match capacity {
                        0 => std::ptr::null_mut(),
                        _ => words.as_mut_ptr(),
                    };
                    let code = call(device, &raw mut count, buffer);
                    let written = if code == SUCCESS { count.min(capacity) } else { 0 };
                    let entries: Vec<_> = words
                        .chunks_exact(entry_bytes / 8)
                        .take(written as usize)
                        .map(|it| json!({"pid": it[0] as u32, "used": it[1], "rest": it[2..]}))
                        .collect();
                    (code, json!({"count": count, "entries": entries}))
                });
            }
        }
    }

    /// Samples since the epoch, the last ten seconds, the last second, and the future.
    pub(super) fn process_utilization(&mut self, device: Device) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |it| it.as_micros() as u64);
        for (argument, since) in [
            ("0", 0),
            ("10 s ago", now.saturating_sub(10_000_000)),
            ("1 s ago", now.saturating_sub(1_000_000)),
            ("in 1 s", now + 1_000_000),
        ] {
            for capacity in [0_u32, 1, 128] {
                self.call(
                    "nvmlDeviceGetProcessUtilization",
                    format!("{argument}, room for {capacity}"),
                    |call: extern "C" fn(Device, *mut [u64; 4], *mut u32, u64) -> u32| {
                        // pid and padding, time stamp, then four shares in percent, two to a word.
                        let mut samples = [[0; 4]; 128];
                        let mut count = capacity;
                        let buffer = match capacity {
                            0 => std::ptr::null_mut(),
                            _ => samples.as_mut_ptr(),
                        };
                        let code = call(device, buffer, &raw mut count, since);
                        let written = if code == SUCCESS { count.min(capacity) } else { 0 };
                        let samples: Vec<_> = samples[..written as usize]
                            .iter()
                            .map(|&[pid, stamp, sm_memory, encoder_decoder]| {
                                let age = i128::from(now) - i128::from(stamp);
                                let shares = [sm_memory, encoder_decoder].map(|it| [it as u32, (it >> 32) as u32]);
                                json!({"pid": pid as u32, "age_microseconds": age as i64, "shares": shares})
                            })
                            .collect();
                        (code, json!({"count": count, "samples": samples}))
                    },
                );
            }
        }
    }
}
