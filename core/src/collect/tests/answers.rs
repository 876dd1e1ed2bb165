//! Random answers of a driver: absent, zero, plausible, impossible and contradictory. A snapshot shows a process, an
//! amount, a use or a device without further processes only if the answers as they were read support it.
//!
//! The judge is written without the code of the collection.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;

use super::lab::{Lab, alice_computes};
use super::*;
use crate::collect::processes_on;
use crate::model::{Attribution, EnvironmentDevice, ProcessDevice};

/// Of a process: used memory in bytes, and utilization.
type Use = (Option<u64>, Option<f64>);

/// One device's answers to all calls.
#[derive(Clone, Debug)]
struct Answer {
    measurements: DeviceMeasurements,
    /// By pid. Absent: a list failed, and the others have no process.
    processes: Option<BTreeMap<u32, Use>>,
    a_list_failed: bool,
}

fn bytes() -> impl Strategy<Value = u64> {
    let garbage = vec![0, 1, 255, 16 * GIB + 1, 400 * GIB, 1 << 46, (1 << 46) + 1, u64::MAX - 1];
    prop_oneof![4 => 0..=6 * GIB, 2 => 0..=GIB, 1 => select(garbage)]
}

fn reading(plausible: f64) -> BoxedStrategy<Option<f64>> {
    let garbage = vec![0.0, -1.0, 2.55 * plausible, 1e9, 1e18, f64::NAN, f64::INFINITY];
    prop_oneof![
        1 => Just(None),
        2 => Just(Some(0.0)),
        6 => (0.0..=plausible).prop_map(Some),
        1 => select(garbage).prop_map(Some),
    ]
    .boxed()
}

fn memory() -> BoxedStrategy<Option<DeviceMemory>> {
    let amounts = (prop_oneof![6 => Just(16 * GIB), 1 => bytes()], bytes(), bytes(), prop::option::of(bytes()));
    let memory = amounts.prop_map(|(total_bytes, used_bytes, free_bytes, reserved_bytes)| DeviceMemory {
        total_bytes,
        used_bytes,
        free_bytes,
        reserved_bytes,
    });
    prop::option::weighted(0.8, memory).boxed()
}

fn measurements() -> BoxedStrategy<DeviceMeasurements> {
    let measurements = (reading(1.0), memory());
    measurements
        .prop_map(|(utilization_ratio, memory)| DeviceMeasurements {
            utilization_ratio,
            memory,
            ..DeviceMeasurements::default()
        })
        .boxed()
}

/// Boxed, as each part of it: a value of all its strategies is larger than the stack of a test.
fn answer() -> BoxedStrategy<Answer> {
    let pid = prop_oneof![12 => 101..=104u32, 1 => select(vec![0, (1 << 22) + 1, u32::MAX])];
    let process = (prop::option::weighted(0.8, bytes()), reading(0.4));
    let processes = prop::option::weighted(0.9, prop::collection::btree_map(pid, process, 0..4));
    let answer = (measurements(), processes, prop::bool::weighted(0.1));
    answer
        .prop_map(|(measurements, processes, a_list_failed)| Answer { measurements, processes, a_list_failed })
        .boxed()
}

/// A whole GPU, and another in two parts: the parts with memory of their own and without utilization.
fn answers() -> impl Strategy<Value = [Answer; 4]> {
    [answer(), answer(), answer(), answer()].prop_map(|mut answers| {
        for part in &mut answers[2..] {
            let memory = part.measurements.memory;
            part.measurements = DeviceMeasurements { memory, ..DeviceMeasurements::default() };
        }
        answers[1].processes = Some(BTreeMap::new());
        answers[1].a_list_failed = false;
        answers
    })
}

const INDICES: [DeviceIndex; 4] =
    [DeviceIndex::gpu(0), DeviceIndex::gpu(1), DeviceIndex::mig(1, 0), DeviceIndex::mig(1, 1)];

fn sample_of(index: DeviceIndex, answer: &Answer) -> DeviceSample {
    let processes = answer.processes.as_ref().map(|processes| {
        let rows = processes.iter().map(|(pid, (memory_used_bytes, utilization_ratio))| GpuProcess {
            pid: *pid,
            process_type: ProcessType::Compute,
            memory_used_bytes: *memory_used_bytes,
            utilization_ratio: *utilization_ratio,
        });
        rows.collect()
    });
    DeviceSample {
        index,
        uuid: index.to_string(),
        mig_parent: index == DeviceIndex::gpu(1),
        measurements: answer.measurements.clone(),
        processes,
        processes_incomplete: answer.a_list_failed,
        ..gpu(0)
    }
}

#[derive(Debug)]
struct Support {
    list: bool,
    amounts: bool,
    ratios: bool,
    /// That no other process uses the device.
    nobody_else: bool,
}

const MOST: u128 = 64 << 40;
const LOOSE: u128 = 1 << 30;

fn is_share(ratio: Option<f64>) -> bool {
    ratio.is_none_or(|ratio| (0.0..=1.0).contains(&ratio))
}

#[derive(Default)]
struct Judge {
    /// The installed memory of each device that showed it.
    installed: BTreeMap<DeviceIndex, u128>,
    /// Whether the last answer of a whole GPU had possible memory.
    parent_memory_possible: bool,
}

impl Judge {
    fn judge(&mut self, index: DeviceIndex, answer: &Answer) -> Support {
        let own = &answer.measurements;
        let parent = DeviceIndex::gpu(index.gpu);
        let of_unknown_parent = if self.parent_memory_possible { MOST } else { 0 };
        let most = if index == parent { MOST } else { *self.installed.get(&parent).unwrap_or(&of_unknown_parent) };
        let mut memory_possible = true;
        if let Some(memory) = own.memory {
            let [total, used, free] = [memory.total_bytes, memory.used_bytes, memory.free_bytes].map(u128::from);
            let reserved = u128::from(memory.reserved_bytes.unwrap_or(0));
            memory_possible = total > 0 && total <= most && used + free <= total && reserved <= total;
            if memory_possible {
                self.installed.insert(index, total);
            }
        }
        if index == parent {
            self.parent_memory_possible = memory_possible;
        }
        let installed = *self.installed.get(&index).unwrap_or(&most);
        let used = own.memory.map_or(installed, |memory| u128::from(memory.used_bytes));
        let mut list = answer.processes.is_some();
        let mut sum = 0;
        let mut ratios = is_share(own.utilization_ratio);
        for (pid, (memory, ratio)) in answer.processes.iter().flatten() {
            let memory = u128::from(memory.unwrap_or(0));
            list &= *pid > 0 && *pid <= 4_194_304 && memory <= installed && memory <= used + LOOSE;
            sum += memory;
            ratios &= is_share(*ratio);
        }
        let unused = answer.processes.as_ref().is_some_and(BTreeMap::is_empty);
        let confirmed = own.utilization_ratio.is_some() || own.memory.is_some();
        Support {
            list,
            amounts: list && sum <= used + LOOSE,
            ratios,
            nobody_else: list
                && !answer.a_list_failed
                && memory_possible
                && is_share(own.utilization_ratio)
                && (!unused || confirmed),
        }
    }
}

/// Whether the device works, and all its listed processes rest.
fn works_alone(answer: &Answer) -> bool {
    let rows = || answer.processes.iter().flatten().map(|(_, (_, ratio))| *ratio);
    let rounded = 0.05 + 0.01 * rows().count() as f64;
    let used: Option<f64> = rows().sum();
    let exceeds = |ratio: f64| ratio > rounded + 1e-9;
    answer.measurements.utilization_ratio.is_some_and(exceeds) && used.is_some_and(|used| !exceeds(used + 2e-9))
}

/// Whether an answer lists no process, and no reading of it shows use.
fn shows_no_use(answer: &Answer) -> bool {
    let own = &answer.measurements;
    answer.processes.as_ref().is_some_and(BTreeMap::is_empty)
        && own.utilization_ratio.is_none_or(|ratio| ratio <= 0.05)
        && own.memory.is_none_or(|memory| memory.used_bytes <= (1 << 30) + (64 << 20))
}

/// The rows of a device, by pid.
fn rows(snapshot: &Snapshot, index: DeviceIndex) -> BTreeMap<u32, ProcessDevice> {
    let rows = snapshot.processes.iter().flat_map(|process| process.devices.iter().map(|row| (process.pid, row)));
    rows.filter(|(_, row)| row.index == index).map(|(pid, row)| (pid, row.clone())).collect()
}

fn check_processes(
    snapshot: &Snapshot,
    index: DeviceIndex,
    answer: &Answer,
    support: &Support,
) -> Result<(), TestCaseError> {
    let rows = rows(snapshot, index);
    // Only what the snapshot lists can be outside of an environment, or acted upon.
    let listed = answer.processes.iter().flatten().filter(|_| support.list);
    prop_assert_eq!(rows.keys().collect::<Vec<_>>(), listed.map(|(pid, _)| pid).collect::<Vec<_>>());
    for (pid, row) in rows {
        let (memory, ratio) = answer.processes.as_ref().unwrap()[&pid];
        prop_assert_eq!(row.memory_used_bytes, memory.filter(|_| support.amounts || memory == Some(0)));
        if row.utilization_ratio.get().is_some() {
            prop_assert!(support.ratios, "{pid} used {:?}", row.utilization_ratio);
            prop_assert_eq!(row.utilization_ratio, ratio);
        }
    }
    Ok(())
}

/// Alice's use of device 0.
fn check_use(used: &EnvironmentDevice, answer: &Answer, support: &Support) -> Result<(), TestCaseError> {
    let own = answer.processes.as_ref().and_then(|processes| processes.get(&101)).filter(|_| support.list);
    if let Some(ratio) = used.utilization_ratio.get() {
        prop_assert!(support.nobody_else && (support.ratios || own.is_none()), "used {ratio}");
        prop_assert_eq!(ratio, own.map_or(0.0, |(_, ratio)| ratio.unwrap()));
        // A process with an impossible share may be the one at work.
        prop_assert!(!works_alone(answer) || !support.ratios, "used {ratio} of a device at work");
    }
    if let Some(bytes) = used.memory_used_bytes.get() {
        prop_assert!(support.nobody_else, "holds {bytes}");
        prop_assert_eq!(bytes, own.map_or(0, |(memory, _)| memory.unwrap()));
    }
    Ok(())
}

proptest! {
    #[test]
    fn nothing_is_free_idle_or_outside_that_the_answers_as_read_do_not_show(
        history in prop::collection::vec((answers(), 0.5..8.0), 1..6)
    ) {
        let mut lab = Lab::new();
        alice_computes(&mut lab);
        for pid in 102..=104 {
            lab.process(pid, 2, Claim::Absent);
        }
        let mut judge = Judge::default();
        for (answers, elapsed_seconds) in &history {
            let devices = INDICES.iter().zip(answers);
            lab.gpu = Some(sample(devices.clone().map(|(index, answer)| sample_of(*index, answer)).collect()));
            let snapshot = lab.after(*elapsed_seconds);
            let supports: Vec<Support> = devices.map(|(index, answer)| judge.judge(*index, answer)).collect();
            for ((index, answer), support) in INDICES.into_iter().zip(answers).zip(&supports) {
                let device = snapshot.devices.iter().find(|device| device.index == index).unwrap();
                let (shown, read) = (&device.measurements, &answer.measurements);
                let is_as_read = |ratio| is_share(Some(ratio)) && read.utilization_ratio == Some(ratio);
                prop_assert!(shown.utilization_ratio.is_none_or(is_as_read));
                prop_assert!(shown.memory.is_none_or(|memory| read.memory == Some(memory)));
                prop_assert!(!device.processes_measured || support.nobody_else, "{index}: {support:?}");
                check_processes(&snapshot, index, answer, support)?;
            }
            // A GPU is free, and its holder idle, only if all its processes are known.
            prop_assert!(!snapshot.processes_known(0) || supports[0].nobody_else);
            prop_assert!(!snapshot.processes_known(1) || supports[2..].iter().all(|support| support.nobody_else));
            // A GPU in parts is free only if its own answer supports it, too.
            for (gpu, parts) in [(0, 0..1), (1, 1..4)] {
                for part in parts.filter(|_| processes_on(gpu, &snapshot) == Some(0)) {
                    prop_assert!(supports[part].nobody_else && shows_no_use(&answers[part]), "{gpu} is free");
                }
            }
            for process in &snapshot.processes {
                let is_outside = matches!(process.attribution, Attribution::Outside { .. });
                prop_assert!(!is_outside || process.pid > 101, "alice's process is in her environment");
            }
            let mut used = snapshot.environment("10").unwrap().devices.iter();
            check_use(used.find(|used| used.index == INDICES[0]).unwrap(), &answers[0], &supports[0])?;
        }
    }
}
