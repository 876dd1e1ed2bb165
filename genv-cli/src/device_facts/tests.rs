//! Random answers of a driver: absent, failed, zero, plausible, impossible and contradictory. A device is handed out as
//! unused exactly if its answers as they were read say so.
//!
//! The judge is written without the code of the choice.

use genv_core::gpu::bounds::Bounds;
use genv_core::gpu::{DeviceSample, GpuProcess};
use genv_core::model::{DeviceIndex, DeviceMeasurements, DeviceMemory, ProcessType};
use genv_core::proc::ProcReader;
use genv_core::state::Inventory;
use genv_core::state::allocate::{AttachRequest, Selection, choose};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

const GIB: u64 = 1 << 30;

/// The answers about a whole GPU or one of its parts.
#[derive(Clone, Debug)]
struct Answer {
    utilization_ratio: Option<f64>,
    memory: Option<DeviceMemory>,
    /// Pids, and the memory of each. Absent: a list failed, and the others have no process.
    processes: Option<Vec<(u32, Option<u64>)>>,
    a_list_failed: bool,
}

#[derive(Clone, Debug)]
struct Gpu {
    whole: Answer,
    part: Option<Answer>,
    is_lost: bool,
    is_mig_unsplit: bool,
    model: &'static str,
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..=GIB, 2 => 0..=6 * GIB, 1 => select(vec![0, 400 * GIB, (1 << 46) + 1, u64::MAX])]
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

fn answer() -> BoxedStrategy<Answer> {
    let utilization_ratio = prop_oneof![
        2 => Just(None::<f64>),
        4 => Just(Some(0.0)),
        2 => (0.0..=1.0_f64).prop_map(Some),
        1 => select(vec![-1.0, 1.01, 1e18, f64::NAN]).prop_map(Some),
    ];
    let pid = prop_oneof![8 => 101..=104u32, 1 => select(vec![0, u32::MAX])];
    let processes = prop::collection::vec((pid, prop::option::of(bytes())), 0..3);
    let processes = prop::option::weighted(0.9, processes);
    let answer = (utilization_ratio, memory(), processes, prop::bool::weighted(0.1));
    answer
        .prop_map(|(utilization_ratio, memory, processes, a_list_failed)| Answer {
            utilization_ratio,
            memory,
            processes,
            a_list_failed,
        })
        .boxed()
}

fn gpu() -> impl Strategy<Value = Gpu> {
    let part = prop::option::weighted(0.3, answer());
    let model = select(vec!["A100", "T4"]);
    let gpu = (answer(), part, prop::bool::weighted(0.1), prop::bool::weighted(0.1), model);
    gpu.prop_map(|(mut whole, mut part, is_lost, is_mig_unsplit, model)| {
        if let Some(part) = &mut part {
            part.utilization_ratio = None;
            (whole.processes, whole.a_list_failed) = (Some(Vec::new()), false);
        }
        let is_mig_unsplit = is_mig_unsplit && part.is_none();
        Gpu { whole, part, is_lost, is_mig_unsplit, model }
    })
}

fn device_sample(index: DeviceIndex, answer: &Answer) -> DeviceSample {
    let processes = answer.processes.as_ref().map(|processes| {
        let rows = processes.iter().map(|(pid, memory_used_bytes)| GpuProcess {
            pid: *pid,
            process_type: ProcessType::Compute,
            memory_used_bytes: *memory_used_bytes,
            utilization_ratio: None,
        });
        rows.collect()
    });
    DeviceSample {
        lost: false,
        measurements: DeviceMeasurements {
            utilization_ratio: answer.utilization_ratio,
            memory: answer.memory,
            ..DeviceMeasurements::default()
        },
        processes,
        processes_incomplete: answer.a_list_failed,
        ..DeviceSample::lost(index, index.to_string())
    }
}

impl Gpu {
    fn samples(&self, gpu: u32) -> Vec<DeviceSample> {
        let index = DeviceIndex::gpu(gpu);
        if self.is_lost {
            return vec![DeviceSample::lost(index, index.to_string())];
        }
        let whole = DeviceSample {
            name: Some(self.model.to_owned()),
            mig_parent: self.part.is_some(),
            mig_unsplit: self.is_mig_unsplit,
            ..device_sample(index, &self.whole)
        };
        let part = self.part.as_ref().map(|part| device_sample(DeviceIndex::mig(gpu, 0), part));
        std::iter::once(whole).chain(part).collect()
    }

    fn runs_programs(&self) -> bool {
        !self.is_lost && !self.is_mig_unsplit
    }

    /// Whether the answers as they were read show a GPU that nobody uses.
    fn is_unused(&self) -> bool {
        let total = |answer: &Answer| answer.memory.map(|memory| memory.total_bytes);
        let part_fits =
            self.part.as_ref().and_then(total).zip(total(&self.whole)).is_none_or(|(part, all)| part <= all);
        let mut answers = std::iter::once(&self.whole).chain(&self.part);
        self.runs_programs() && part_fits && answers.all(Answer::shows_no_use)
    }
}

impl Answer {
    fn shows_no_use(&self) -> bool {
        let lists_nothing = self.processes.as_ref().is_some_and(Vec::is_empty) && !self.a_list_failed;
        let is_confirmed = self.utilization_ratio.is_some() || self.memory.is_some();
        let rests = self.utilization_ratio.is_none_or(|ratio| (0.0..=0.05).contains(&ratio));
        let is_empty = self.memory.is_none_or(|memory| {
            let [total, used, free] = [memory.total_bytes, memory.used_bytes, memory.free_bytes].map(u128::from);
            let reserved = u128::from(memory.reserved_bytes.unwrap_or(0));
            let is_possible = total > 0 && total <= 64 << 40 && used + free <= total && reserved <= total;
            is_possible && used <= (1 << 30) + (64 << 20)
        });
        lists_nothing && is_confirmed && rests && is_empty
    }
}

proptest! {
    #[test]
    fn a_device_is_handed_out_as_unused_exactly_if_the_answers_as_read_say_so(
        gpus in prop::collection::vec(gpu(), 1..5)
    ) {
        let samples = (0..).zip(&gpus).flat_map(|(index, gpu)| gpu.samples(index));
        let mut sample = GpuSample { devices: samples.collect(), ..GpuSample::default() };
        Bounds::default().apply(&mut sample, 0.0);
        let state = State { devices: Inventory::of(&sample).devices(), ..State::default() };
        let usage = usage(&sample, &state, "me", &mut ProcReader::new());
        let are_other = [&usage.busy, &usage.unknown, &usage.lost, &usage.mig_unsplit];
        let is_unused = |index: u32| are_other.iter().all(|other| !other.contains(&index));
        for (index, gpu) in (0..).zip(&gpus) {
            prop_assert_eq!(is_unused(index), gpu.is_unused(), "{}: {:?}", index, usage);
        }
        for count in 1..=u32::try_from(gpus.len()).unwrap() {
            let request = AttachRequest { usage: usage.clone(), ..AttachRequest::new(Selection::Count(count)) };
            let Ok(chosen) = choose(&state.devices, "me", None, &request) else {
                continue;
            };
            let takes_unknown = chosen.iter().any(|it| usage.unknown.contains(it) && !usage.busy.contains(it));
            for (index, gpu) in (0..).zip(&gpus) {
                let is_chosen = chosen.contains(&index);
                prop_assert!(!is_chosen || gpu.runs_programs(), "{index}");
                let is_passed = gpu.is_unused() && takes_unknown && !is_chosen;
                prop_assert!(!is_passed, "{index} is left, and {chosen:?} are taken");
            }
        }
    }
}
