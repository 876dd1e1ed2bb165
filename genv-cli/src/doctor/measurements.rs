//! Check of devices whose measurements contradict each other for a long time. Only a daemon watches that long: the check
//! reads the exporter's snapshots.

use genv_core::model::DeviceIndex;
use serde::Deserialize;

use super::Check;
use crate::exporter;
use crate::machine::Machine;

/// The part of a snapshot that this check needs.
#[derive(Deserialize)]
struct Published {
    hostname: String,
    devices: Vec<PublishedDevice>,
}

#[derive(Deserialize)]
struct PublishedDevice {
    index: DeviceIndex,
    #[serde(default)]
    contradictory: bool,
}

/// Checks the devices of the exporter's snapshots. Absent if no device is contradictory, or if the exporter publishes no
/// snapshot to this user, or may read other GPUs.
pub(super) fn examine(machine: &Machine) -> Option<Check> {
    if !machine.shares_gpus_with_exporter() {
        return None;
    }
    contradictory(&exporter::snapshots()?)
}

/// The check by one snapshot, or several on lines of their own.
fn contradictory(snapshots: &[u8]) -> Option<Check> {
    let hosts = serde_json::Deserializer::from_slice(snapshots).into_iter::<Published>();
    let mut found = Vec::new();
    for host in hosts.map_while(Result::ok) {
        let devices = host.devices.iter().filter(|device| device.contradictory);
        found.extend(devices.map(|device| format!("device {} of {}", device.index, host.hostname)));
    }
    (!found.is_empty()).then(|| {
        Check::warn(
            "measurements",
            format!("a high utilization without a process and without memory in use: {}", found.join(", ")),
            "if the measurement is stuck, a new CUDA context (any CUDA program) or a reset of the GPU ends it; a process \
             that the exporter does not see, as from a container, in WSL or in a vGPU guest, looks the same",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_contradictory_device_of_the_exporter_is_named() {
        let found = |snapshots: &str| contradictory(snapshots.as_bytes()).map(|check| check.found);
        let host = |name: &str, contradictory: bool| {
            let device = format!(r#"{{"index":"1","up":true,"contradictory":{contradictory}}}"#);
            format!(r#"{{"hostname":"{name}","version":1,"devices":[{{"index":"0","up":true}},{device}]}}"#)
        };
        let what = "a high utilization without a process and without memory in use";
        assert_eq!(found(&host("gpu01", true)), Some(format!("{what}: device 1 of gpu01")));
        let several = [host("gpu01", true), host("gpu02", false), host("gpu03", true)].join("\n");
        assert_eq!(found(&several), Some(format!("{what}: device 1 of gpu01, device 1 of gpu03")));
        for other in [host("gpu01", false), "No data was collected yet.".to_owned(), String::new()] {
            assert_eq!(found(&other), None, "{other}");
        }
    }
}
