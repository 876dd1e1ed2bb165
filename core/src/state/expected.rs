//! The expected times at which devices become free, by the leases of their holders alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::allocate::DeviceUsage;
use super::data::DeviceState;
use super::queue::{RequestedDevices, Waiting};
use crate::model::MemoryAmount;

/// The devices of a host with the leases of their holders.
#[derive(Clone, Copy, Debug)]
pub struct Expectation<'a> {
    /// The devices.
    pub devices: &'a [DeviceState],
    /// The ends of leases by environment, Unix time.
    pub leases: &'a HashMap<String, f64>,
    /// The models of the devices as far as they are known, and the devices that cannot be assigned.
    pub usage: &'a DeviceUsage,
    /// Unix time. A lease that has ended by then gives no expectation.
    pub now_seconds: f64,
}

impl Expectation<'_> {
    /// The expected time at which each process of a queue gets its devices, Unix time, if no process passes another
    /// one. Each process keeps its devices. Absent: not known, or now.
    pub fn of_queue(&self, queue: &[Waiting]) -> Vec<Option<f64>> {
        let times = self.times(queue).into_iter();
        times.map(|time| time.filter(|time| *time > self.now_seconds)).collect()
    }

    /// Whether an environment that takes the devices `added` delays no process of a queue. `after`: as it is then.
    ///
    /// A process whose devices are free now has to find them free afterwards. A process whose devices are not free has
    /// to get them after the end of the environment's lease, unless `any_time`. A process that accepts none of `added`
    /// is not delayed.
    pub fn delays_none(
        &self,
        after: &Expectation<'_>,
        queue: &[Waiting],
        (eid, added): (&str, &[u32]),
        any_time: bool,
    ) -> bool {
        let end = after.end(eid);
        let mut is_over = false;
        queue.iter().zip(self.times(queue)).all(|(waiting, time)| {
            // Later processes get their devices no earlier.
            is_over |= end.zip(time).is_some_and(|(end, time)| end <= time);
            let request = waiting.request.as_ref();
            let Some(request) = request.filter(|it| self.is_decided(it)) else {
                return false;
            };
            let is_free = |of: &Expectation<'_>| {
                let found = of.of_request(request, &BTreeSet::new());
                found.is_some_and(|it| it.0 == 0.0)
            };
            let is_met = || any_time || is_over;
            !added.iter().any(|index| self.is_accepted(*index, request))
                || is_met() && (is_free(after) || !is_free(self))
        })
    }

    /// The time at which each process of a queue gets its devices, Unix time; 0: now. Absent: not known.
    pub(super) fn times(&self, queue: &[Waiting]) -> Vec<Option<f64>> {
        let mut before = Some(0.0);
        let mut taken = BTreeSet::new();
        let each = queue.iter().map(|waiting| {
            let request = waiting.request.as_ref().filter(|_| before.is_some());
            let (time, devices) = request.and_then(|request| self.of_request(request, &taken)).unzip();
            taken.extend(devices.into_iter().flatten());
            before = before.zip(time).map(|(before, time): (f64, f64)| before.max(time));
            before
        });
        each.collect()
    }

    /// The expected time at which each held device is wholly free. A device that cannot be assigned has none.
    pub fn of_devices(&self) -> BTreeMap<u32, f64> {
        let held = self.devices.iter().filter(|it| !it.attachments.is_empty() && self.usage.is_usable(it.index));
        let times = held.filter_map(|it| Some((it.index, self.of_device(it, None)?)));
        times.collect()
    }

    /// The time at which a request is met, and its devices: those that become free first.
    fn of_request(&self, request: &RequestedDevices, taken: &BTreeSet<u32>) -> Option<(f64, Vec<u32>)> {
        let of_named = Some(request.named().count()).filter(|named| *named > 0);
        let of_count = request.gpus.and_then(|gpus| usize::try_from(gpus).ok());
        let count = of_count.or(of_named)?;
        let is_meant = |it: &&DeviceState| self.accepts(request, it) && !taken.contains(&it.index);
        let candidates = self.devices.iter().filter(is_meant);
        let mut times: Vec<(f64, u32)> =
            candidates.filter_map(|it| Some((self.of_device(it, request.gpu_memory_bytes)?, it.index))).collect();
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        let chosen = times.get(..count)?;
        let last = chosen.last().map_or(0.0, |it| it.0);
        Some((last, chosen.iter().map(|it| it.1).collect()))
    }

    fn is_accepted(&self, index: u32, request: &RequestedDevices) -> bool {
        let device = self.devices.iter().find(|it| it.index == index);
        device.is_some_and(|device| self.accepts(request, device))
    }

    /// Whether a request takes a device if it is free.
    pub fn accepts(&self, request: &RequestedDevices, device: &DeviceState) -> bool {
        let mut named = request.named().peekable();
        let is_named = named.peek().is_none() || named.any(|index| index == device.index);
        let model = self.usage.models.get(&device.index);
        let is_candidate = is_named && self.usage.is_usable(device.index);
        is_candidate && request.kind().accepts(model.map(String::as_str), device.total_memory)
    }

    /// Whether models and memory are known as far as they decide which devices a request accepts.
    fn is_decided(&self, request: &RequestedDevices) -> bool {
        self.devices.iter().filter(|it| self.usage.is_usable(it.index)).all(|it| {
            (request.gpu_types.is_empty() || self.usage.models.contains_key(&it.index))
                && (request.gpu_memory_at_least_bytes.is_none() || it.total_memory.is_some())
        })
    }

    /// The time at which a device has this amount of unclaimed memory; without an amount, the time at which all is
    /// unclaimed.
    fn of_device(&self, device: &DeviceState, needed_bytes: Option<u64>) -> Option<f64> {
        // As for an attachment, a device of unknown memory is not divided.
        let needed_bytes = needed_bytes.filter(|_| device.total_memory.is_some());
        let total = device.total_memory.map_or(u64::MAX, MemoryAmount::bytes);
        let claim = |memory: Option<MemoryAmount>| memory.map_or(total, MemoryAmount::bytes);
        let mut claims: Vec<(Option<f64>, u64)> =
            device.attachments.iter().map(|it| (self.end(&it.eid), claim(it.gpu_memory))).collect();
        claims.sort_by(|a, b| a.0.unwrap_or(f64::INFINITY).total_cmp(&b.0.unwrap_or(f64::INFINITY)));
        let mut time = 0.0;
        loop {
            let claimed = claims.iter().fold(0_u64, |sum, it| sum.saturating_add(it.1));
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
        times_with(&DeviceUsage::default(), devices, requests)
    }

    fn times_with(usage: &DeviceUsage, devices: &[DeviceState], requests: &[RequestedDevices]) -> Vec<Option<f64>> {
        let ends = [("over", 90.0), ("a", 200.0), ("b", 300.0), ("c", 400.0)];
        let leases = ends.map(|(eid, end)| (eid.to_owned(), end)).into();
        let expectation = Expectation { devices, leases: &leases, usage, now_seconds: 100.0 };
        assert!(expectation.of_devices().keys().all(|it| usage.is_usable(*it)));
        let queue: Vec<Waiting> = requests.iter().map(waiting).collect();
        expectation.of_queue(&queue)
    }

    fn waiting(request: &RequestedDevices) -> Waiting {
        Waiting { pid: 7, uid: 7, request: Some(request.clone()), since_timestamp_seconds: None }
    }

    fn gpus(gpus: u32) -> RequestedDevices {
        RequestedDevices { gpus: Some(gpus), ..RequestedDevices::default() }
    }

    #[test]
    fn the_time_is_the_end_of_the_earliest_leases_that_free_enough_devices() {
        let whole = |eid| [(eid, None)];
        let devices =
            [device(0, &whole("c")), device(1, &whole("a")), device(2, &whole("none")), device(3, &whole("b"))];
        assert_eq!(times(&devices, &[gpus(1)]), [Some(200.0)]);
        assert_eq!(times(&devices, &[gpus(2)]), [Some(300.0)]);
        assert_eq!(times(&devices, &[gpus(4)]), [None], "one has no lease");
        assert_eq!(times(&devices, &[gpus(1), gpus(1), gpus(1)]), [200.0, 300.0, 400.0].map(Some));
        assert_eq!(times(&devices, &[gpus(3), gpus(1)]), [Some(400.0), None]);
        assert_eq!(times(&devices, &[gpus(4), gpus(1)]), [None, None], "no process passes the first");
        assert_eq!(times(&devices, &[gpus(0).index_of(3)]), [Some(300.0)]);
        assert_eq!(times(&devices, &[RequestedDevices::default()]), [None]);
        let over = [device(0, &whole("over"))];
        assert_eq!(times(&over, &[gpus(1)]), [None], "it should be back");
        let of_indices = RequestedDevices { gpus: None, indices: [0, 1].into(), ..RequestedDevices::default() };
        assert_eq!(times(&devices, &[of_indices]), [Some(400.0)]);
        let of_type = RequestedDevices { gpu_types: vec!["a100".to_owned()], ..gpus(1) };
        assert_eq!(times(&devices, &[of_type]), [None], "no model is known");
        let usage = DeviceUsage { lost: [1].into(), mig_unsplit: [4].into(), ..DeviceUsage::default() };
        let with_another = [&devices[..], &[device(4, &[])]].concat();
        assert_eq!(times_with(&usage, &with_another, &[gpus(1)]), [Some(300.0)], "neither 1 nor 4 is assigned");
        for (gibibytes, expected) in [(16, Some(200.0)), (17, None)] {
            let of_size = RequestedDevices { gpu_memory_at_least_bytes: Some(gibibytes * GIB), ..gpus(1) };
            assert_eq!(times(&devices, &[of_size]), [expected]);
        }
    }

    impl RequestedDevices {
        fn index_of(self, index: u32) -> Self {
            Self { gpus: None, index: Some(index), ..self }
        }
    }

    #[test]
    fn for_a_shared_device_the_leases_that_leave_enough_memory_count() {
        let devices = [device(0, &[("c", Some(4)), ("a", Some(8)), ("none", Some(4))])];
        let of_memory = |gibibytes: u64| RequestedDevices { gpu_memory_bytes: Some(gibibytes * GIB), ..gpus(1) };
        assert_eq!(times(&devices, &[of_memory(8)]), [Some(200.0)]);
        assert_eq!(times(&devices, &[of_memory(12)]), [Some(400.0)]);
        assert_eq!(times(&devices, &[of_memory(16)]), [None]);
        assert_eq!(times(&devices, &[of_memory(17)]), [None]);
        assert_eq!(times(&devices, &[gpus(1)]), [None]);
        let untold = [DeviceState { total_memory: None, ..device(0, &[("a", Some(8)), ("b", Some(4))]) }];
        assert_eq!(times(&untold, &[of_memory(1)]), [Some(300.0)], "a device of unknown memory is not divided");
    }

    #[test]
    fn a_process_is_delayed_if_its_devices_come_later() {
        let whole = |eid| vec![(eid, None)];
        let before = [whole("b"), whole("b"), vec![], vec![]];
        let models: BTreeMap<u32, String> = (0..4).map(|index| (index, format!("A{index}"))).collect();
        let none = BTreeMap::new();
        let of_types = |types: &[&str]| RequestedDevices {
            gpu_types: types.iter().map(|it| (*it).to_owned()).collect(),
            ..gpus(1)
        };
        let of_index = |index| gpus(0).index_of(index);
        let delays_none = |queue: &[RequestedDevices], eid, added: &[u32], any_time, models: &BTreeMap<u32, String>| {
            let devices = |holders: &[Vec<(&str, Option<u64>)>]| -> Vec<DeviceState> {
                (0..).zip(holders).map(|(index, it)| device(index, it)).collect()
            };
            let mut taken = before.clone();
            for index in added {
                taken[*index as usize].push((eid, None));
            }
            let (before, after) = (devices(&before), devices(&taken));
            let leases = [("a", 200.0), ("b", 300.0), ("c", 400.0)];
            let leases = leases.map(|(eid, end)| (eid.to_owned(), end)).into();
            let usage = DeviceUsage { models: models.clone(), ..DeviceUsage::default() };
            let expectation = |devices| Expectation { devices, leases: &leases, usage: &usage, now_seconds: 100.0 };
            let queue: Vec<Waiting> = queue.iter().map(waiting).collect();
            expectation(&before).delays_none(&expectation(&after), &queue, (eid, added), any_time)
        };
        for (queue, eid, added, passes, passes_at_any_time) in [
            // The large request begins at 300.
            (&[gpus(4)][..], "a", &[2, 3][..], true, true),
            (&[gpus(4)], "c", &[2], false, true),
            (&[gpus(4)], "none", &[2], false, true),
            // One device is left over, but holders may give devices back before the end of their leases.
            (&[gpus(3)], "none", &[2], false, true),
            (&[gpus(3)], "c", &[2, 3], false, true),
            // The second would have it now.
            (&[gpus(4), gpus(2)], "a", &[2], false, false),
            (&[gpus(4), gpus(1)], "a", &[2], true, true),
            (&[gpus(4), gpus(1)], "c", &[2], false, true),
            (&[gpus(2)], "a", &[2], false, false),
            (&[of_index(0)], "none", &[2], true, true),
            (&[of_index(2)], "a", &[2], false, false),
            (&[RequestedDevices::default()], "a", &[2], false, true),
            (&[of_types(&["a0", "a1"])], "none", &[2], true, true),
            (&[of_types(&["a0", "a2"])], "none", &[2], false, false),
        ] {
            for (any_time, passes) in [(false, passes), (true, passes_at_any_time)] {
                let now = delays_none(queue, eid, added, any_time, &models);
                assert_eq!(now, passes, "{queue:?} {eid} {added:?} {any_time}");
            }
        }
        let unknown = [of_types(&["a0"])];
        assert!(!delays_none(&unknown, "a", &[2], true, &none));
        assert!(!delays_none(&[gpus(5)], "none", &[2], false, &models));
    }
}
