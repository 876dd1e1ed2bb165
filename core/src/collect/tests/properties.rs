//! Accounting over random histories: the charges add up.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::lab::{Lab, UNIX};
use super::*;
use crate::gpu::XidEvent;
use crate::model::{Counters, DeviceSeconds, NOBODY};

const GPUS: u32 = 2;

/// An environment: its user, and by GPU whether it is attached, with an amount in GiB or to all of it.
type Timed = (u32, Vec<Option<Option<u64>>>);

#[derive(Clone, Debug)]
struct Cycle {
    elapsed_seconds: f64,
    /// Absent: the source does not answer.
    gpus: Option<Vec<Gpu>>,
    environments: Option<Vec<Timed>>,
    processes_answer: bool,
    xid_errors: Vec<(u32, u64)>,
}

#[derive(Clone, Debug)]
enum Gpu {
    Gone,
    Lost,
    /// Another device in its place.
    Replaced,
    Answers {
        joules: f64,
        counter_resets: bool,
        counter: bool,
        power: bool,
        /// Absent: the driver does not report it.
        processes: Option<Vec<GpuUse>>,
    },
}

#[derive(Clone, Debug)]
struct GpuUse {
    user: u32,
    /// In one of the user's environments, if there are any.
    claims: bool,
    vanished: bool,
    utilization_ratio: Option<f64>,
}

fn gpu_use() -> impl Strategy<Value = GpuUse> {
    let utilization = prop_oneof![
        1 => Just(None), 1 => Just(Some(0.0)), 3 => (0.0..=1.0).prop_map(Some)
    ];
    (1..=3u32, any::<bool>(), prop::bool::weighted(0.1), utilization)
        .prop_map(|(user, claims, vanished, utilization_ratio)| GpuUse { user, claims, vanished, utilization_ratio })
}

fn a_gpu() -> impl Strategy<Value = Gpu> {
    let answers = (
        0.0..5_000.0,
        prop::bool::weighted(0.05),
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.8),
        prop::option::weighted(0.9, prop::collection::vec(gpu_use(), 0..4)),
    )
        .prop_map(|(joules, counter_resets, counter, power, processes)| Gpu::Answers {
            joules,
            counter_resets,
            counter,
            power,
            processes,
        });
    prop_oneof![1 => Just(Gpu::Gone), 1 => Just(Gpu::Lost), 1 => Just(Gpu::Replaced), 12 => answers]
}

fn cycle() -> impl Strategy<Value = Cycle> {
    let amount = prop::option::weighted(0.6, 1..=20u64);
    let attachments = prop::collection::vec(prop::option::of(amount), GPUS as usize);
    (
        0.01..40.0,
        prop::option::weighted(0.9, prop::collection::vec(a_gpu(), GPUS as usize)),
        prop::option::weighted(0.9, prop::collection::vec((1..=3u32, attachments), 0..5)),
        prop::bool::weighted(0.9),
        prop::collection::vec((0..GPUS, 1..3u64), 0..3),
    )
        .prop_map(|(elapsed_seconds, gpus, environments, processes_answer, xid_errors)| Cycle {
            elapsed_seconds,
            gpus,
            environments,
            processes_answer,
            xid_errors,
        })
}

struct Player {
    lab: Lab,
    meters: Vec<f64>,
    generations: Vec<u32>,
    environments: Vec<Timed>,
    /// XID errors that were reported so far, by GPU and code.
    xid_errors: BTreeMap<(u32, u64), u64>,
}

impl Player {
    fn new() -> Self {
        Self {
            lab: Lab::new(),
            meters: vec![1e6; GPUS as usize],
            generations: vec![0; GPUS as usize],
            environments: Vec::new(),
            xid_errors: BTreeMap::new(),
        }
    }

    fn play(&mut self, cycle: &Cycle) -> Snapshot {
        if let Some(environments) = &cycle.environments {
            self.environments.clone_from(environments);
        }
        let mut table = ProcessTable::default();
        let environments: Vec<EnvironmentState> = self
            .environments
            .iter()
            .enumerate()
            .map(|(number, (user, _))| {
                let shell = 100 + u32::try_from(number).unwrap();
                add_process(&mut table, shell, *user, Claim::Absent);
                environment(&number.to_string(), *user, &[shell])
            })
            .collect();
        self.lab.gpu = cycle.gpus.as_ref().map(|gpus| {
            let devices =
                gpus.iter().enumerate().filter_map(|(number, gpu)| self.device(number, gpu, &mut table)).collect();
            let mut sample = sample(devices);
            for (gpu, xid) in &cycle.xid_errors {
                *self.xid_errors.entry((*gpu, *xid)).or_default() += 1;
                sample.xid_events.push(XidEvent {
                    index: DeviceIndex::gpu(*gpu),
                    xid: *xid,
                    timestamp_seconds: UNIX + self.lab.now_seconds,
                });
            }
            sample
        });
        self.lab.state = cycle.environments.as_ref().map(|_| {
            let held = (0..GPUS).map(|gpu| {
                let mut device = attached(gpu, &[]);
                for (number, (_, attachments)) in self.environments.iter().enumerate() {
                    if let Some(amount) = attachments[gpu as usize] {
                        device.attachments.push(AttachmentState {
                            eid: number.to_string(),
                            gpu_memory: amount.map(|gibibytes| MemoryAmount::from_bytes(gibibytes * GIB)),
                            attached_timestamp_seconds: Some(UNIX + self.lab.now_seconds),
                        });
                    }
                }
                device
            });
            state(environments, held.collect())
        });
        self.lab.table = cycle.processes_answer.then_some(table);
        self.lab.after(cycle.elapsed_seconds)
    }

    fn device(&mut self, number: usize, played: &Gpu, table: &mut ProcessTable) -> Option<DeviceSample> {
        let index = u32::try_from(number).unwrap();
        let mut device = gpu(index);
        if matches!(played, Gpu::Replaced) {
            self.generations[number] += 1;
            self.meters[number] = 1e9;
        }
        device.uuid = format!("GPU-{number}-{}", self.generations[number]);
        device.measurements.energy_joules = Some(self.meters[number]);
        match played {
            Gpu::Gone => return None,
            Gpu::Lost => return Some(lost(&device)),
            Gpu::Replaced => {}
            Gpu::Answers { joules, counter_resets, counter, power, processes } => {
                if *counter_resets {
                    self.meters[number] = 0.0;
                }
                self.meters[number] += joules;
                device.measurements.energy_joules = counter.then_some(self.meters[number]);
                device.measurements.power_watts = power.then_some(joules / 10.0);
                device.processes = processes.as_ref().map(|uses| {
                    let first_pid = 1_000 * (index + 1);
                    let pids = first_pid..;
                    pids.zip(uses).map(|(pid, gpu_use)| self.process(pid, gpu_use, table)).collect()
                });
            }
        }
        Some(device)
    }

    fn process(&self, pid: u32, gpu_use: &GpuUse, table: &mut ProcessTable) -> GpuProcess {
        let own = self.environments.iter().position(|(user, _)| *user == gpu_use.user);
        let claim = match own {
            Some(number) if gpu_use.claims => Claim::Named(number.to_string()),
            _ => Claim::Absent,
        };
        if !gpu_use.vanished {
            add_process(table, pid, gpu_use.user, claim);
        }
        on_gpu(pid, gpu_use.utilization_ratio)
    }
}

fn held_seconds(seconds: &DeviceSeconds) -> f64 {
    seconds.busy + seconds.idle + seconds.unmeasured
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

/// Every counter by name, so that two publications can be compared.
fn flat(counters: &Counters) -> BTreeMap<String, f64> {
    let mut flat = BTreeMap::new();
    let mut add = |name: String, value: f64| assert_eq!(flat.insert(name, value), None, "a counter twice");
    for row in &counters.device_energy {
        add(format!("energy {}", row.index), row.energy_joules);
    }
    for row in &counters.device_xid_errors {
        add(format!("xid {} {}", row.index, row.xid), row.errors as f64);
    }
    for row in &counters.user_xid_errors {
        add(format!("xid {} {} {}", row.username, row.index, row.xid), row.errors as f64);
    }
    for row in &counters.user_device_use {
        let key = format!("{} {}", row.username, row.index);
        if let Some(joules) = row.energy_joules {
            add(format!("energy {key}"), joules);
        }
        assert_eq!(row.username == NOBODY, row.device_seconds.is_none());
        if let Some(seconds) = row.device_seconds {
            add(format!("busy {key}"), seconds.busy);
            add(format!("idle {key}"), seconds.idle);
            add(format!("unmeasured {key}"), seconds.unmeasured);
            add(format!("outside {key}"), seconds.outside);
        }
        if let Some(utilized) = row.utilized_device_seconds {
            add(format!("utilized {key}"), utilized);
        }
    }
    flat
}

proptest! {

    #[test]
    fn accounting_adds_up_over_any_history(history in prop::collection::vec(cycle(), 1..30)) {
        let mut player = Player::new();
        let mut before: Option<Snapshot> = None;
        // What should have been charged, by user and GPU, and by GPU.
        let mut share_seconds: HashMap<(String, u32), f64> = HashMap::new();
        let mut seconds = 0.0;
        let mut published: BTreeMap<String, f64> = BTreeMap::new();
        // Two quiet cycles at the end publish the withheld amounts.
        let quiet = Cycle { elapsed_seconds: 1.0, gpus: None, environments: None, processes_answer: true, xid_errors: Vec::new() };
        let cycles = history.iter().chain([&quiet, &quiet]);
        for cycle in cycles {
            let snapshot = player.play(cycle);
            if let Some(before) = &before {
                seconds += cycle.elapsed_seconds;
                for device in &before.devices {
                    let shares: f64 = device.attachments.iter().map(|a| a.share_ratio).sum();
                    prop_assert!(shares <= 1.0);
                    for attachment in device.attachments.iter() {
                        let user = &before.environment(&attachment.eid).unwrap().username;
                        *share_seconds.entry((user.clone(), device.index.gpu)).or_default() +=
                            attachment.share_ratio * cycle.elapsed_seconds;
                    }
                }
            }

            let counters = flat(&snapshot.counters);
            for (name, value) in &counters {
                match published.get(name) {
                    None => prop_assert_eq!(*value, 0.0, "{} does not begin at 0", name),
                    Some(last) => prop_assert!(value >= last, "{} went back", name),
                }
            }
            for name in published.keys() {
                prop_assert!(counters.contains_key(name), "{} vanished", name);
            }
            published = counters;

            for energy in &snapshot.counters.device_energy {
                let users = snapshot.counters.user_device_use.iter().filter(|row| row.index == energy.index);
                let sum: f64 = users.filter_map(|row| row.energy_joules).sum();
                prop_assert_eq!(sum, energy.energy_joules);
            }
            for gpu in 0..GPUS {
                let rows = snapshot.counters.user_device_use.iter().filter(|row| row.index.gpu == gpu);
                let utilized: f64 = rows.filter_map(|row| row.utilized_device_seconds).sum();
                prop_assert!(utilized <= seconds * (1.0 + 1e-9));
            }
            before = Some(snapshot);
        }

        let last = before.unwrap().counters;
        for row in &last.user_device_use {
            if let Some(seconds) = &row.device_seconds {
                let expected = share_seconds.remove(&(row.username.clone(), row.index.gpu)).unwrap_or(0.0);
                prop_assert!(close(held_seconds(seconds), expected), "{:?} should be {}", row, expected);
            }
        }
        prop_assert!(share_seconds.is_empty(), "not charged: {:?}", share_seconds);
        let errors: BTreeMap<(u32, u64), u64> =
            last.device_xid_errors.iter().map(|row| ((row.index.gpu, row.xid), row.errors)).collect();
        prop_assert_eq!(errors, player.xid_errors);
    }

    /// With a counter that never resets, what is charged is what the device used, wherever
    /// the source did not answer in between.
    #[test]
    fn all_energy_that_a_device_counts_is_charged(
        cycles in prop::collection::vec((cycle(), 0.0..1_000.0, prop::bool::weighted(0.7)), 1..20)
    ) {
        let mut player = Player::new();
        let mut first_and_last = None;
        let mut snapshot = None;
        for (cycle, joules, answers) in &cycles {
            let mut cycle = cycle.clone();
            let processes = cycle.gpus.iter().flatten().find_map(|gpu| match gpu {
                Gpu::Answers { processes, .. } => Some(processes.clone()),
                _ => None,
            });
            let gpu = Gpu::Answers { joules: *joules, counter_resets: false, counter: true, power: true, processes: processes.flatten() };
            cycle.gpus = answers.then(|| vec![gpu]);
            snapshot = Some(player.play(&cycle));
            if *answers {
                let meter = player.meters[0];
                first_and_last = Some((first_and_last.map_or(meter, |(first, _)| first), meter));
            }
        }
        let quiet = Cycle { gpus: None, ..cycles[0].0.clone() };
        player.play(&quiet);
        snapshot = Some(player.play(&quiet)).or(snapshot);
        if let Some((first, last)) = first_and_last {
            let energy = &snapshot.unwrap().counters.device_energy[0];
            prop_assert!(close(energy.energy_joules, last - first), "{} of {}", energy.energy_joules, last - first);
        }
    }
}
