use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use super::*;
use crate::attribute::live_environments;
use crate::proc::{Lineage, ProcessRequest};
use crate::state::host::STATE_FILE;
use crate::state::{EditableState, EnvironmentState, StateSource as _};

#[derive(Clone, Default)]
struct Processes(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    start_ticks: HashMap<u32, u64>,
    hidden: Vec<u32>,
    idle: Vec<u32>,
}

/// Ticks are hundredths of a second since this Unix time.
const BOOT_SECONDS: f64 = 1_000_000.0;

impl Processes {
    fn start(&self, pid: u32, ticks: u64) {
        self.0.lock().unwrap().start_ticks.insert(pid, ticks);
    }

    fn end(&self, pid: u32) {
        self.0.lock().unwrap().start_ticks.remove(&pid);
    }

    fn hide(&self, pid: u32) {
        self.end(pid);
        self.0.lock().unwrap().hidden.push(pid);
    }
}

impl ProcessSource for Processes {
    fn read(&mut self, request: &ProcessRequest) -> ProcessTable {
        let table = self.0.lock().unwrap();
        let mut read = ProcessTable::default();
        for pid in &request.members {
            if let Some(&start_time_ticks) = table.start_ticks.get(pid) {
                let lineage = Lineage {
                    start_time_ticks,
                    start_timestamp_seconds: BOOT_SECONDS + start_time_ticks as f64 / 100.0,
                    parent: 1,
                    uid: Some(0),
                };
                read.lineage.insert(*pid, lineage);
            } else if table.hidden.contains(pid) {
                read.hidden.insert(*pid);
            }
        }
        read
    }

    fn can_act(&mut self, pid: u32) -> bool {
        !self.0.lock().unwrap().idle.contains(&pid)
    }

    fn username(&mut self, uid: u32) -> String {
        format!("uid:{uid}")
    }
}

struct Lab {
    folder: TempDir,
    processes: Processes,
    store: StateStore,
}

fn lab() -> Lab {
    let folder = TempDir::new().unwrap();
    let processes = Processes::default();
    let store = StateStore::new(folder.path()).processes(processes.clone());
    let store = store.finding_waiting(|_, pid| Some(waiting(pid)));
    Lab { folder, processes, store }
}

impl Lab {
    fn update<T>(&mut self, change: impl FnOnce(&mut EditableState) -> T) -> T {
        self.store.update(|state| Ok::<_, StoreError>(change(state))).unwrap()
    }

    fn activate(&mut self, eid: &str, pid: u32) {
        self.update(|state| state.activate(eid, 0, None, &MemberId::Process(pid)));
    }

    /// The lab with a process that is a member of an environment.
    fn with(mut self, eid: &str, pid: u32) -> Self {
        self.processes.start(pid, 100);
        self.activate(eid, pid);
        self
    }

    fn enqueue(&mut self, pid: u32) -> usize {
        self.update(|state| state.enqueue(pid, None))
    }

    fn queue_length(&mut self) -> usize {
        self.update(|state| state.queue().len())
    }

    /// Environments and their members, as the file has them after cleaning; readers see the same before.
    fn pids(&mut self) -> Vec<(String, Vec<u32>)> {
        let members = |environments: &[EnvironmentState]| {
            let environments = environments.iter();
            environments.map(|it| (it.eid.clone(), it.pids().collect())).collect::<Vec<(String, Vec<u32>)>>()
        };
        let seen = members(&self.store.read().unwrap().environments);
        self.update(|_| ());
        let path = self.folder.path();
        let written = members(&StateDirectory::new(path).read().unwrap().environments);
        assert_eq!(seen, written);
        seen
    }

    fn exported(&mut self) -> Vec<(String, Vec<u32>)> {
        let state = StateDirectory::new(self.folder.path()).read().unwrap();
        let members = state.environments.iter().flat_map(EnvironmentState::pids).collect();
        let table = self.processes.read(&ProcessRequest { members, ..ProcessRequest::default() });
        let live = live_environments(&state, &table);
        live.iter()
            .map(|it| {
                let pids = it.members.iter().map(|member| member.pid);
                (it.environment.eid.clone(), pids.collect())
            })
            .collect()
    }

    fn edit(&self, edit: impl Fn(&str) -> String) {
        let path = self.folder.path().join(STATE_FILE);
        let content = fs::read_to_string(&path).unwrap();
        let edited = edit(&content);
        assert_ne!(edited, content);
        fs::write(&path, edited).unwrap();
    }

    /// Lets the file be written at so many hundredths of a second since boot.
    fn written_at(&self, ticks: u64) {
        let file = fs::File::options().append(true).open(self.folder.path().join(STATE_FILE));
        let seconds = BOOT_SECONDS + ticks as f64 / 100.0;
        file.unwrap().set_modified(UNIX_EPOCH + Duration::from_secs_f64(seconds)).unwrap();
    }
}

fn environment(eid: &str, pids: &[u32]) -> (String, Vec<u32>) {
    (eid.to_owned(), pids.to_vec())
}

#[test]
fn members_that_ended_are_removed_and_environments_with_them() {
    let mut lab = lab().with("a", 1).with("a", 2).with("b", 3);
    lab.processes.end(1);
    lab.processes.end(3);
    assert_eq!(lab.exported(), [environment("a", &[2])]);
    assert_eq!(lab.pids(), [environment("a", &[2])]);
}

/// A start after the creation of every environment of these tests.
const LATER_TICKS: u64 = 400_000_000_000;

#[test]
fn a_process_with_a_members_pid_is_not_that_member() {
    let mut lab = lab().with("7", 7);
    lab.processes.start(7, 101);
    // By the time of the file alone, it could be the member.
    lab.written_at(1_000);
    assert_eq!(lab.exported(), []);
    // It had no kernels that could run elsewhere.
    let seen = StateDirectory::new(lab.store.path()).read().unwrap();
    assert!(seen.kernels_not_found.is_empty());
    assert_eq!(lab.pids(), []);
}

#[test]
fn a_bare_pid_is_the_process_that_had_it_when_the_file_was_written() {
    let mut lab = lab().with("e", 7);
    lab.edit(|content| content.replace("\"members\":[", "\"members\":[{\"pid\":8},{\"pid\":9},"));
    lab.written_at(1_000);
    lab.processes.start(8, 900);
    lab.processes.start(9, 1_300);
    assert_eq!(lab.exported(), [environment("e", &[8, 7])]);
    assert_eq!(lab.pids(), [environment("e", &[8, 7])]);
    // Now both are recorded, and a process with one of their pids is another process.
    lab.processes.start(8, LATER_TICKS);
    assert_eq!(lab.exported(), [environment("e", &[7])]);
    assert_eq!(lab.pids(), [environment("e", &[7])]);
}

#[test]
fn a_process_that_joins_with_the_pid_of_an_ended_member_is_a_new_member() {
    let mut lab = lab().with("e", 7).with("e", 8);
    lab.processes.start(7, 500);
    lab.activate("e", 7);
    assert_eq!(lab.pids(), [environment("e", &[8, 7])]);
    lab.processes.start(7, 501);
    assert_eq!(lab.pids(), [environment("e", &[8])]);
}

#[test]
fn a_hidden_member_stays() {
    let mut lab = lab().with("e", 7);
    lab.processes.hide(7);
    assert_eq!(lab.pids(), [environment("e", &[7])]);
}

#[test]
fn without_cleaning_ended_members_stay_and_are_not_confused_with_later_processes() {
    let mut lab = lab().with("a", 7);
    lab.edit(|content| content.replace("\"members\":[", "\"members\":[{\"pid\":8},"));
    lab.written_at(1_000);
    // The process with pid 8 has ended, and another process has the pid now.
    lab.processes.start(8, LATER_TICKS);
    lab.processes.start(9, 100);
    let mut keeping = StateStore::new(lab.folder.path()).processes(lab.processes.clone()).cleaning(false);
    let activate = |state: &mut EditableState| Ok::<_, StoreError>(state.activate("b", 0, None, &MemberId::Process(9)));
    keeping.update(activate).unwrap();
    let kept = keeping.read().unwrap();
    assert!(kept.environments[0].pids().eq([8, 7]));
    assert_eq!(lab.pids(), [environment("a", &[7]), environment("b", &[9])]);
}

#[test]
fn a_waiting_process_leaves_the_queue_when_it_ends() {
    let mut lab = lab();
    for pid in 1..=3 {
        lab.processes.start(pid, 100);
    }
    assert_eq!([1, 2, 3].map(|pid| lab.enqueue(pid)), [0, 1, 2]);
    lab.processes.start(1, 200);
    assert_eq!(lab.enqueue(3), 1);
    lab.processes.end(2);
    assert_eq!(lab.enqueue(3), 0);
    // Another process with the first one's pid comes last, and keeps its place.
    assert_eq!(lab.enqueue(1), 1);
    lab.processes.end(3);
    assert_eq!((lab.enqueue(1), lab.queue_length()), (0, 1));
}

#[test]
fn a_waiting_process_that_cannot_act_loses_its_place() {
    let mut lab = lab();
    for pid in 1..=2 {
        lab.processes.start(pid, 100);
    }
    assert_eq!([1, 2].map(|pid| lab.enqueue(pid)), [0, 1]);
    // A zombie, or stopped.
    lab.processes.0.lock().unwrap().idle.push(1);
    assert_eq!((lab.enqueue(2), lab.queue_length()), (0, 1));
    lab.processes.0.lock().unwrap().idle.clear();
    assert_eq!(lab.enqueue(1), 1);
}

#[test]
fn an_environment_lives_as_long_as_its_kernels() {
    let lab = lab();
    let runtime = TempDir::new().unwrap();
    let folder: PathBuf = runtime.path().to_owned();
    let looking = || {
        let folder = folder.clone();
        Kernels::new(move |uid| (uid == 0).then(|| folder.clone()))
    };
    let mut store = lab.store.kernels(looking());
    for id in ["a", "b"] {
        fs::write(runtime.path().join(format!("kernel-{id}.json")), "").unwrap();
        let member = MemberId::Kernel(id.to_owned());
        store
            .update(|state| {
                state.activate("e", 0, None, &member);
                state.activate("other user's", 9, None, &member);
                Ok::<_, StoreError>(())
            })
            .unwrap();
    }
    let kernels = |store: &mut StateStore| -> Vec<(String, Vec<String>)> {
        store.update(|_| Ok::<_, StoreError>(())).unwrap();
        let state = StateDirectory::new(store.path()).read_files().unwrap();
        state.environments.into_iter().map(|it| (it.eid, it.kernel_ids)).collect()
    };
    let (a, b) = ("a".to_owned(), "b".to_owned());
    let other = ("other user's".to_owned(), vec![a.clone(), b.clone()]);
    assert_eq!(kernels(&mut store), [("e".to_owned(), vec![a, b.clone()]), other.clone()]);
    fs::remove_file(runtime.path().join("kernel-a.json")).unwrap();
    let seen = store.read().unwrap().environments.swap_remove(0);
    assert_eq!(seen.kernel_ids, vec![b.clone()]);
    // So does the exporter, which never writes.
    let mut exporter = StateDirectory::new(store.path()).kernels(looking());
    let seen = exporter.read().unwrap().environments.swap_remove(0);
    assert_eq!(seen.kernel_ids, vec![b.clone()]);
    assert_eq!(kernels(&mut store), [("e".to_owned(), vec![b]), other.clone()]);
    assert!(exporter.read().unwrap().kernels_not_found.is_empty());
    fs::remove_file(runtime.path().join("kernel-b.json")).unwrap();
    // A reader keeps the environments whose kernels it did not find: the kernels may run elsewhere.
    let not_found = BTreeMap::from([("e".to_owned(), 0)]);
    assert_eq!(exporter.read().unwrap().kernels_not_found, not_found);
    assert_eq!(store.read().unwrap().kernels_not_found, not_found);
    assert_eq!(kernels(&mut store), [other]);
    assert!(exporter.read().unwrap().kernels_not_found.is_empty());
}
