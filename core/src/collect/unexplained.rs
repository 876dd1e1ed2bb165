//! Devices with a higher utilization than all their processes together.
//!
//! The unexplained part may belong to any process with a lower utilization: that process is unmeasured, and not idle.
//! The utilization of a device covers the last sample period, the utilization of processes the time since the last
//! reading: one sample alone is no contradiction.

use std::collections::BTreeMap;

use super::contradictions::rounded_ratio;
use crate::gpu::{DeviceSample, GpuSample};
use crate::model::{DeviceIndex, Withheld};

/// The number of contradictory samples from which processes count as unmeasured.
const SAMPLES: u32 = 2;

/// The number of recent contradictory samples of each device, up to [`SAMPLES`]. A consistent sample reduces the number
/// by one and does not reset it: a driver with occasional correct samples does not measure in between.
#[derive(Debug, Default)]
pub(super) struct Unexplained(BTreeMap<DeviceIndex, u32>);

impl Unexplained {
    /// Removes the use of processes that may have used more than the driver reports.
    pub(super) fn mark(&mut self, sample: &mut GpuSample) {
        for device in &mut sample.devices {
            let Some(ratio) = unexplained(device) else {
                continue;
            };
            let processes = device.processes.as_ref().map_or(0, Vec::len);
            let count = self.0.entry(device.index).or_default();
            if ratio <= rounded_ratio(processes) {
                *count = count.saturating_sub(1);
                continue;
            }
            *count = SAMPLES.min(*count + 1);
            if *count == SAMPLES {
                let mut is_removed = false;
                for process in device.processes.iter_mut().flatten() {
                    is_removed |= process.utilization_ratio.take_if(|own| *own < ratio).is_some();
                }
                if is_removed {
                    let error = "the device works more than all its listed processes together";
                    Withheld::of(device.index, "process_utilization", error).add_to(&mut sample.withheld);
                }
            }
        }
    }
}

/// The part of a device's utilization that no process explains. Absent if the utilization of the device or of all its
/// processes is not measured.
fn unexplained(device: &DeviceSample) -> Option<f64> {
    let processes = device.processes.as_ref()?;
    let measured = processes.iter().filter_map(|it| it.utilization_ratio);
    // Without a measured process there is no use to remove.
    measured.clone().next()?;
    Some(device.measurements.utilization_ratio? - measured.sum::<f64>())
}
