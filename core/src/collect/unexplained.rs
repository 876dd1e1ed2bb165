//! Devices whose own utilization is more than that of all their processes together.
//!
//! What is unexplained may be the use of each process that shows less: that process is unmeasured, and not idle. The two
//! are measured over different times, the device over the last sample period and processes since the last reading, so
//! that one reading contradicts nothing.

use std::collections::BTreeMap;

use super::contradictions::rounded_ratio;
use crate::gpu::{DeviceSample, GpuSample};
use crate::model::DeviceIndex;

/// How many samples must contradict themselves.
const SAMPLES: u32 = 2;

/// How many samples of each device contradicted themselves lately, up to [`SAMPLES`]. Each that does not makes it one
/// less, rather than none: a driver that tells the truth now and then does not measure in between.
#[derive(Debug, Default)]
pub(super) struct Unexplained(BTreeMap<DeviceIndex, u32>);

impl Unexplained {
    /// Takes out the use of processes that may have done more than the driver tells.
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
                for process in device.processes.iter_mut().flatten() {
                    process.utilization_ratio.take_if(|own| *own < ratio);
                }
            }
        }
    }
}

/// The part of a device's utilization that no process shows; nothing of a device whose processes or whose own use are
/// not measured.
fn unexplained(device: &DeviceSample) -> Option<f64> {
    let processes = device.processes.as_ref()?;
    let measured = processes.iter().filter_map(|it| it.utilization_ratio);
    // Without one there is none to take out.
    measured.clone().next()?;
    Some(device.measurements.utilization_ratio? - measured.sum::<f64>())
}
