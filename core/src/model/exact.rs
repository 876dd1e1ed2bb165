//! Lists that are read from JSON.

use serde::{Deserialize, Deserializer};

/// Reads a list, as a `Vec` or in an `Arc`, and frees its spare room: a list of unknown length grows to at least four elements,
/// then by doubling.
pub(super) fn exact<'de, D, T, L>(deserializer: D) -> Result<L, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
    L: From<Vec<T>>,
{
    let mut list = Vec::deserialize(deserializer)?;
    list.shrink_to_fit();
    Ok(list.into())
}

#[cfg(test)]
mod tests {
    use crate::model::{Device, Environment, Process};

    #[test]
    fn lists_have_no_room_for_more_elements() {
        let environment = r#"{"eid": "7", "username": "alice", "members": [{"pid": 7, "start_time_ticks": 70}],
            "kernel_ids": ["a"], "devices": [{"index": "0", "attached": true}]}"#;
        let environment: Environment = serde_json::from_str(environment).unwrap();
        let Environment { members, kernel_ids, devices, .. } = &environment;
        assert_eq!((members.capacity(), kernel_ids.capacity(), devices.capacity()), (1, 1, 1));
        let process = r#"{"pid": 7, "attribution": {"state": "environment", "eid": "7"},
            "devices": [{"index": "0", "type": "compute"}]}"#;
        let process: Process = serde_json::from_str(process).unwrap();
        assert_eq!(process.devices.capacity(), 1);
        let device =
            r#"{"index": "0", "uuid": "GPU-0", "up": true, "attachments": [{"eid": "7", "share_ratio": 1.0}]}"#;
        let device: Device = serde_json::from_str(device).unwrap();
        assert_eq!(device.attachments.capacity(), 1);
    }
}
