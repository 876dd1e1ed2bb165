//! The GPU at each index.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Device;

/// The number of GPUs that are kept for one index.
const MOST_OCCUPANTS: usize = 16;

/// The GPU at each index, by UUID. Indices are positions in PCI order: when a GPU is taken out of a running machine,
/// the GPUs behind it move, and an attachment by index then points to another GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Occupants(BTreeMap<u32, Vec<Occupant>>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Occupant {
    uuid: String,
    /// The last time at which the GPU was seen at the index, Unix time.
    last_seconds: f64,
}

impl Occupants {
    /// Whether no GPU was seen yet.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The UUIDs of the GPUs seen at each index, oldest first.
    pub fn uuids(&self) -> impl Iterator<Item = (u32, &str)> {
        let occupants = self.0.iter().flat_map(|(index, all)| all.iter().map(move |one| (*index, one)));
        occupants.map(|(index, one)| (index, &*one.uuid))
    }

    /// Notes the indices of GPUs at a time of their host's clock.
    pub fn note(&mut self, devices: &[Device], now_seconds: f64) {
        let known = devices.iter().filter(|it| it.up && !it.uuid.is_empty());
        for device in known.filter(|it| it.index.mig.is_none()) {
            let occupants = self.0.entry(device.index.gpu).or_default();
            match occupants.last_mut() {
                Some(last) if last.uuid == device.uuid => last.last_seconds = now_seconds,
                _ => {
                    if occupants.len() == MOST_OCCUPANTS {
                        occupants.remove(0);
                    }
                    occupants.push(Occupant { uuid: device.uuid.clone(), last_seconds: now_seconds });
                }
            }
        }
    }

    /// Whether the GPU at the index of a device differs from the last noted one. A GPU without a UUID counts as
    /// different.
    pub fn is_replaced(&self, device: &Device) -> bool {
        let last = self.of(device).last();
        last.is_some_and(|last| last.uuid != device.uuid)
    }

    /// Whether another GPU was ever seen at the index of a device.
    pub fn saw_another(&self, device: &Device) -> bool {
        self.of(device).iter().any(|it| it.uuid != device.uuid)
    }

    /// Whether another GPU was at the index of a device at the time of an attachment, Unix time. Without a time, the
    /// first sight of the index counts.
    pub fn was_another(&self, device: &Device, attached_seconds: Option<f64>) -> bool {
        let attached = attached_seconds.unwrap_or(f64::NEG_INFINITY);
        let mut occupants = self.of(device).iter();
        let then = occupants.find(|it| it.last_seconds >= attached);
        then.is_some_and(|then| then.uuid != device.uuid)
    }

    fn of(&self, device: &Device) -> &[Occupant] {
        // MIG devices are parts of the GPU at the index.
        let known = self.0.get(&{ device.index.gpu });
        let known = known.filter(|_| device.index.mig.is_none());
        known.map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn device(uuid: &str) -> Device {
        let device = json!({"index": "3", "uuid": uuid, "up": true});
        serde_json::from_value(device).unwrap()
    }

    #[test]
    fn an_attachment_belongs_to_the_gpu_at_the_index_at_its_time() {
        let mut occupants = Occupants::default();
        let was_another = |occupants: &Occupants, uuid: &str, attached| occupants.was_another(&device(uuid), attached);
        assert!(!was_another(&occupants, "A", None));
        for (uuid, at) in [("A", 10.0), ("A", 20.0), ("", 21.0), ("B", 30.0)] {
            occupants.note(&[device(uuid)], at);
        }
        for (attached, expected) in [
            (None, true),
            (Some(5.0), true),
            (Some(20.0), true),
            // Between two samples the index counts as the next GPU's, B.
            (Some(25.0), false),
            (Some(31.0), false),
        ] {
            assert_eq!(was_another(&occupants, "B", attached), expected);
        }
        // GPU A comes back.
        assert!(!was_another(&occupants, "A", Some(5.0)));
        assert!(was_another(&occupants, "A", Some(25.0)));
        // The UUID of the present GPU is not known.
        assert!(was_another(&occupants, "", Some(5.0)));
        assert!(occupants.is_replaced(&device("A")) && occupants.saw_another(&device("B")));
    }

    #[test]
    fn the_number_of_kept_gpus_is_limited() {
        let mut occupants = Occupants::default();
        for n in 0..100 {
            occupants.note(&[device(&n.to_string())], f64::from(n));
        }
        assert_eq!(occupants.0[&3].len(), MOST_OCCUPANTS);
    }
}
