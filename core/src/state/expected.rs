//! When devices are expected to come free: by the leases of those who hold them, and by nothing else.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::allocate::DeviceKind;
use super::waiting::RequestedDevices;
use super::{DeviceState, Waiting};
use crate::model::MemoryAmount;

/// The devices of a host with the leases of their holders.
#[derive(Clone, Copy, Debug)]
pub struct Expectation<'a> {
    /// The devices.
    pub devices: &'a [DeviceState],
    /// The ends of leases by environment, Unix time.
    pub leases: &'a HashMap<String, f64>,
    /// Unix time. The end of a lease that is over by then is no expectation.
    pub now_seconds: f64,
}

impl Expectation<'_> {
    /// When each process of a queue is expected to get its devices, Unix time. No process gets devices before the process in
    /// front, and that process keeps what it gets. Absent: not known.
    #[must_use]
    pub fn of_queue(&self, queue: &[Waiting]) -> Vec<Option<f64>> {
        let mut before = Some(0.0);
        let mut taken = BTreeSet::new();
        let each = queue.iter().map(|waiting| {
            let request = waiting.request.as_ref().filter(|_| before.is_some());
            let (time, devices) = request
                .and_then(|request| self.of_request(request, &taken))
                .unzip();
            taken.extend(devices.into_iter().flatten());
            before = before
                .zip(time)
                .map(|(before, time): (f64, f64)| before.max(time));
            before.filter(|time| *time > self.now_seconds)
        });
        each.collect()
    }

    /// When each device that is held is expected back, as a whole.
    #[must_use]
    pub fn of_devices(&self) -> BTreeMap<u32, f64> {
        let held = self.devices.iter().filter(|it| !it.attachments.is_empty());
        let times = held.filter_map(|it| Some((it.index, self.of_device(it, None)?)));
        times.collect()
    }

    /// The devices that come first, and when the last of them comes. Of a type it is not known: the state has no models.
    fn of_request(
        &self,
        request: &RequestedDevices,
        taken: &BTreeSet<u32>,
    ) -> Option<(f64, Vec<u32>)> {
        let named: BTreeSet<u32> = request
            .indices
            .iter()
            .copied()
            .chain(request.index)
            .collect();
        let of_named = Some(named.len()).filter(|named| *named > 0);
        let of_count = request.gpus.and_then(|gpus| usize::try_from(gpus).ok());
        let count = of_count.or(of_named)?;
        let kind = DeviceKind {
            types: request.gpu_types.clone(),
            memory_at_least: request
                .gpu_memory_at_least_bytes
                .map(MemoryAmount::from_bytes),
        };
        let is_meant = |it: &&DeviceState| {
            (named.is_empty() || named.contains(&it.index))
                && kind.accepts(None, it.total_memory)
                && !taken.contains(&it.index)
        };
        let candidates = self.devices.iter().filter(is_meant);
        let mut times: Vec<(f64, u32)> = candidates
            .filter_map(|it| Some((self.of_device(it, request.gpu_memory_bytes)?, it.index)))
            .collect();
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        let chosen = times.get(..count)?;
        let last = chosen.last().map_or(0.0, |it| it.0);
        Some((last, chosen.iter().map(|it| it.1).collect()))
    }

    /// When a device has so much memory that no environment claims; all of it, if no amount is given.
    fn of_device(&self, device: &DeviceState, needed_bytes: Option<u64>) -> Option<f64> {
        let total = device.total_memory.map_or(u64::MAX, MemoryAmount::bytes);
        let claim = |memory: Option<MemoryAmount>| memory.map_or(total, MemoryAmount::bytes);
        let mut claims: Vec<(Option<f64>, u64)> = device
            .attachments
            .iter()
            .map(|it| (self.end(&it.eid), claim(it.gpu_memory)))
            .collect();
        claims.sort_by(|a, b| {
            a.0.unwrap_or(f64::INFINITY)
                .total_cmp(&b.0.unwrap_or(f64::INFINITY))
        });
        let mut time = 0.0;
        loop {
            let claimed = claims
                .iter()
                .fold(0_u64, |sum, it| sum.saturating_add(it.1));
            let is_enough = match needed_bytes {
                None => claims.is_empty(),
                Some(needed) => total.saturating_sub(claimed) >= needed,
            };
            if is_enough {
                return Some(time);
            }
            if claims.is_empty() {
                return None;
            }
            time = claims.remove(0).0?;
        }
    }

    fn end(&self, eid: &str) -> Option<f64> {
        let end = self.leases.get(eid).copied();
        end.filter(|end| *end > self.now_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::AttachmentState;

    const GIB: u64 = 1 << 30;

    fn device(index: u32, holders: &[(&str, Option<u64>)]) -> DeviceState {
        let attachment = |&(eid, gibibytes): &(&str, Option<u64>)| AttachmentState {
            eid: eid.to_owned(),
            gpu_memory: gibibytes.map(|it| MemoryAmount::from_bytes(it * GIB)),
            attached_timestamp_seconds: None,
        };
        DeviceState {
            index,
            total_memory: Some(MemoryAmount::from_bytes(16 * GIB)),
            attachments: holders.iter().map(attachment).collect(),
        }
    }

    fn times(devices: &[DeviceState], requests: &[RequestedDevices]) -> Vec<Option<f64>> {
        let ends = [("over", 90.0), ("a", 200.0), ("b", 300.0), ("c", 400.0)];
        let leases = ends.map(|(eid, end)| (eid.to_owned(), end)).into();
        let expectation = Expectation {
            devices,
            leases: &leases,
            now_seconds: 100.0,
        };
        let waiting = |request: &RequestedDevices| Waiting {
            pid: 7,
            uid: 7,
            request: Some(request.clone()),
            since_timestamp_seconds: None,
        };
        let queue: Vec<Waiting> = requests.iter().map(waiting).collect();
        expectation.of_queue(&queue)
    }

    fn gpus(gpus: u32) -> RequestedDevices {
        RequestedDevices {
            gpus: Some(gpus),
            ..RequestedDevices::default()
        }
    }

    #[test]
    fn the_earliest_leases_that_give_enough_devices_tell_the_time() {
        let whole = |eid| [(eid, None)];
        let devices = [
            device(0, &whole("c")),
            device(1, &whole("a")),
            device(2, &whole("none")),
            device(3, &whole("b")),
        ];
        assert_eq!(times(&devices, &[gpus(1)]), [Some(200.0)]);
        assert_eq!(times(&devices, &[gpus(2)]), [Some(300.0)]);
        assert_eq!(times(&devices, &[gpus(4)]), [None], "one has no lease");
        assert_eq!(
            times(&devices, &[gpus(1), gpus(1), gpus(1)]),
            [200.0, 300.0, 400.0].map(Some)
        );
        assert_eq!(times(&devices, &[gpus(3), gpus(1)]), [Some(400.0), None]);
        assert_eq!(
            times(&devices, &[gpus(4), gpus(1)]),
            [None, None],
            "no process passes the first"
        );
        assert_eq!(times(&devices, &[gpus(0).index_of(3)]), [Some(300.0)]);
        assert_eq!(times(&devices, &[RequestedDevices::default()]), [None]);
        let over = [device(0, &whole("over"))];
        assert_eq!(times(&over, &[gpus(1)]), [None], "it should be back");
        let of_indices = RequestedDevices {
            gpus: None,
            indices: [0, 1].into(),
            ..RequestedDevices::default()
        };
        assert_eq!(times(&devices, &[of_indices]), [Some(400.0)]);
        let of_type = RequestedDevices {
            gpu_types: vec!["a100".to_owned()],
            ..gpus(1)
        };
        assert_eq!(times(&devices, &[of_type]), [None], "no model is known");
        for (gibibytes, expected) in [(16, Some(200.0)), (17, None)] {
            let of_size = RequestedDevices {
                gpu_memory_at_least_bytes: Some(gibibytes * GIB),
                ..gpus(1)
            };
            assert_eq!(times(&devices, &[of_size]), [expected]);
        }
    }

    impl RequestedDevices {
        fn index_of(self, index: u32) -> Self {
            Self {
                gpus: None,
                index: Some(index),
                ..self
            }
        }
    }

    #[test]
    fn of_a_shared_device_the_leases_count_that_leave_enough_memory() {
        let devices = [device(
            0,
            &[("c", Some(4)), ("a", Some(8)), ("none", Some(4))],
        )];
        let of_memory = |gibibytes: u64| RequestedDevices {
            gpu_memory_bytes: Some(gibibytes * GIB),
            ..gpus(1)
        };
        assert_eq!(times(&devices, &[of_memory(8)]), [Some(200.0)]);
        assert_eq!(times(&devices, &[of_memory(12)]), [Some(400.0)]);
        assert_eq!(times(&devices, &[of_memory(16)]), [None]);
        assert_eq!(times(&devices, &[of_memory(17)]), [None]);
        assert_eq!(times(&devices, &[gpus(1)]), [None]);
    }
}
