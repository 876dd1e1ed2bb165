use std::fs;
use std::io::{BufRead as _, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use super::*;
use crate::proc::files::MOST_READ_BYTES;

/// A directory that is laid out like `/proc`.
struct FakeProc(TempDir);

impl FakeProc {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        fs::write(root.path().join("stat"), "cpu 1 2 3\nbtime 1700000000\nprocesses 7\n").unwrap();
        Self(root)
    }

    fn file(&self, pid: u32, name: &str, content: impl AsRef<[u8]>) {
        let directory = self.0.path().join(pid.to_string());
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(name), content).unwrap();
    }

    fn stat(&self, pid: u32, comm: &str, state: char, parent: u32, start_time_ticks: u64) {
        let stat =
            format!("{pid} ({comm}) {state} {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start_time_ticks} 0\n");
        self.file(pid, "stat", stat);
    }

    fn process(&self, pid: u32, parent: u32, environ: impl AsRef<[u8]>) {
        self.stat(pid, "python", 'S', parent, u64::from(pid) * 100);
        self.file(pid, "status", "Name:\tpython\nUid:\t1000\t1001\t1000\t1000\n");
        self.file(pid, "cgroup", "0::/user.slice/user-1000.slice/session-1.scope\n");
        self.file(pid, "environ", environ);
    }

    fn reader(&self) -> DirectReader {
        DirectReader::with_root(self.0.path())
    }

    fn read(&self, processes: &[u32], members: &[u32]) -> ProcessTable {
        self.reader().read(&request(processes, members))
    }

    fn claim(&self, pid: u32) -> Claim {
        match self.read(&[pid], &[]).processes.remove(&pid) {
            Some(ProcessRead::Present(facts)) => facts.claim,
            other => panic!("{other:?}"),
        }
    }
}

fn request(processes: &[u32], members: &[u32]) -> ProcessRequest {
    ProcessRequest { processes: processes.to_vec(), members: members.to_vec() }
}

fn pids<T>(map: &HashMap<u32, T>) -> Vec<u32> {
    let mut pids: Vec<u32> = map.keys().copied().collect();
    pids.sort_unstable();
    pids
}

#[test]
fn a_process_without_its_first_thread_has_the_claim_of_its_other_threads() {
    let root = FakeProc::new();
    root.process(42, 1, "");
    let stat = |threads: u32| format!("42 (python) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 4200 0\n");
    root.file(42, "stat", stat(2));
    for (thread, environ) in [("42", ""), ("57", "A=b\0GENV_ENVIRONMENT_ID=7\0")] {
        let directory = root.0.path().join("42/task").join(thread);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("environ"), environ).unwrap();
    }
    assert_eq!(root.claim(42), Claim::Named("7".to_owned()));
    assert!(root.reader().can_act(42));
    root.file(42, "stat", stat(1));
    assert_eq!(root.claim(42), Claim::Missing(MissingEvidence::Zombie));
    assert!(!root.reader().can_act(42));
}

#[test]
fn all_facts_of_a_process_are_read() {
    let proc = FakeProc::new();
    proc.process(42, 0, "A=1\0GENV_ENVIRONMENT_ID=7\0");
    let id = "a".repeat(64);
    proc.file(42, "cgroup", format!("0::/user.slice/user-9.slice/user@9.service/libpod-{id}.scope\n"));
    let table = proc.read(&[42, 42], &[]);
    let facts = ProcessFacts {
        start_time_ticks: 4200,
        uid: Some(1001),
        real_uid: Some(1000),
        comm: "python".to_owned(),
        container_id: Some(id),
        container_owner: Some(9),
        claim: Claim::Named("7".to_owned()),
    };
    assert_eq!(table.processes[&42], ProcessRead::Present(facts));
    let ticks_per_second = f64::from(u32::try_from(rustix::param::clock_ticks_per_second()).unwrap());
    let lineage = Lineage {
        start_time_ticks: 4200,
        start_timestamp_seconds: 1_700_000_000.0 + 4200.0 / ticks_per_second,
        parent: 0,
        uid: Some(1001),
    };
    assert_eq!(table.lineage, [(42, lineage)].into_iter().collect());
}

#[test]
fn each_defect_of_an_environ_has_its_own_evidence() {
    let proc = FakeProc::new();
    let missing = |environ: &[u8]| {
        proc.process(42, 0, environ);
        proc.claim(42)
    };
    assert_eq!(missing(b"A=1\0"), Claim::Absent);
    assert_eq!(missing(b""), Claim::Missing(MissingEvidence::EnvironEmpty));
    assert_eq!(missing(b"title\0\0\0\0"), Claim::Missing(MissingEvidence::EnvironOverwritten));
    fs::remove_file(proc.0.path().join("42/environ")).unwrap();
    fs::create_dir(proc.0.path().join("42/environ")).unwrap();
    assert_eq!(proc.claim(42), Claim::Missing(MissingEvidence::EnvironUnreadable));
    proc.stat(42, "python", 'Z', 0, 4200);
    assert_eq!(proc.claim(42), Claim::Missing(MissingEvidence::Zombie));
}

#[test]
fn an_ended_or_stopped_process_cannot_act() {
    let proc = FakeProc::new();
    let mut reader = proc.reader();
    for (state, can_act) in
        [('R', true), ('S', true), ('D', true), ('t', true), ('I', true), ('T', false), ('Z', false), ('X', false)]
    {
        proc.stat(42, "genv", state, 1, 4200);
        assert_eq!(reader.can_act(42), can_act, "{state}");
        // The cache of the last cycle has no effect.
        reader.read(&request(&[], &[42]));
    }
    assert!(!reader.can_act(43));
    assert!(DirectReader::with_root(PROC).can_act(std::process::id()));
}

#[test]
fn a_huge_environ_is_read_up_to_the_limit() {
    let proc = FakeProc::new();
    let huge = |bytes: usize| {
        let mut environ = b"A=1\0".to_vec();
        while environ.len() < bytes {
            environ.extend_from_slice(format!("B={}\0", "x".repeat(100_000)).as_bytes());
        }
        environ
    };
    let mut named = huge(700_000);
    named.extend_from_slice(b"GENV_ENVIRONMENT_ID=7\0");
    proc.process(42, 0, &named);
    assert_eq!(proc.claim(42), Claim::Named("7".to_owned()));

    proc.process(42, 0, huge(700_000));
    assert_eq!(proc.claim(42), Claim::Absent);

    let mut late = huge(8_000_000);
    late.extend_from_slice(b"GENV_ENVIRONMENT_ID=7\0");
    proc.process(42, 0, &late);
    let mut reader = proc.reader();
    let table = reader.read(&request(&[42], &[]));
    let ProcessRead::Present(facts) = &table.processes[&42] else { panic!("{table:?}") };
    assert_eq!(facts.claim, Claim::Missing(MissingEvidence::EnvironUnreadable));
    assert!(reader.buffer.len() <= MOST_READ_BYTES);
}

#[test]
fn a_process_that_ends_during_its_read_has_vanished() {
    let proc = FakeProc::new();
    for gone in ["stat", "status", "environ"] {
        proc.process(42, 0, "A=1\0");
        fs::remove_file(proc.0.path().join("42").join(gone)).unwrap();
        let table = proc.read(&[42, 43], &[]);
        assert_eq!(table.processes[&42], ProcessRead::Vanished, "{gone}");
        assert_eq!(table.processes[&43], ProcessRead::Vanished);
        assert_eq!(table.lineage, HashMap::new());
    }
}

#[test]
fn a_kernel_without_cgroups_has_no_containers() {
    let proc = FakeProc::new();
    proc.process(42, 0, "A=1\0");
    fs::remove_file(proc.0.path().join("42/cgroup")).unwrap();
    assert_eq!(proc.claim(42), Claim::Absent);
}

#[test]
fn damaged_files_make_a_process_unreadable_or_its_user_unknown() {
    let proc = FakeProc::new();
    proc.process(42, 0, "A=1\0");
    proc.file(42, "stat", "42 (python");
    assert_eq!(proc.read(&[42], &[]).processes[&42], ProcessRead::Unreadable);
    proc.process(42, 0, "A=1\0");
    proc.file(42, "status", "Name:\tpython\n");
    let table = proc.read(&[42], &[]);
    assert!(matches!(&table.processes[&42], ProcessRead::Present(facts) if facts.uid.is_none()), "{table:?}");
}

#[test]
fn ancestors_are_followed_once_to_the_root() {
    let proc = FakeProc::new();
    for (pid, parent) in [(10, 0), (20, 10), (30, 20), (31, 20), (40, 10)] {
        proc.process(pid, parent, "");
    }
    let table = proc.read(&[31, 30], &[40, 41]);
    assert_eq!(pids(&table.processes), [30, 31]);
    assert_eq!(pids(&table.lineage), [10, 20, 30, 31, 40]);
    assert_eq!(table.lineage[&30].parent, 20);
    assert_eq!(table.lineage[&40].parent, 10);
}

#[test]
fn the_chain_of_parents_passes_members_and_ends_in_a_loop_or_at_a_missing_parent() {
    let proc = FakeProc::new();
    for (pid, parent) in [(10, 0), (20, 10), (30, 20), (130, 120), (120, 130), (150, 140)] {
        proc.process(pid, parent, "");
    }
    assert_eq!(pids(&proc.read(&[30], &[20]).lineage), [10, 20, 30]);
    assert_eq!(pids(&proc.read(&[120, 150], &[]).lineage), [120, 130, 150]);
}

#[test]
fn the_cache_holds_only_processes_of_the_last_cycle() {
    let proc = FakeProc::new();
    let mut reader = proc.reader();
    let all: Vec<u32> = (100..150).collect();
    for &pid in &all {
        proc.process(pid, 0, "A=1\0");
    }
    reader.read(&request(&all, &[]));
    assert_eq!(reader.cache.len(), 50);
    reader.read(&request(&[100], &[101]));
    assert_eq!(reader.cache.len(), 1);
}

#[test]
fn without_a_proc_every_process_is_unreadable_and_every_member_hidden() {
    let mut reader = DirectReader::with_root("/nonexistent/proc");
    let table = reader.read(&request(&[1], &[2]));
    assert_eq!(table.processes[&1], ProcessRead::Unreadable);
    assert!(table.hidden.contains(&2));
    assert_eq!(table.withheld[0].value, "processes");
}

#[test]
fn the_running_kernel_shows_this_process_and_its_ancestors() {
    let mut reader = DirectReader::with_root(PROC);
    let own = std::process::id();
    let mut last = None;
    // The second read uses the cache.
    for _ in 0..2 {
        let table = reader.read(&request(&[own], &[1]));
        let ProcessRead::Present(facts) = &table.processes[&own] else { panic!("{table:?}") };
        assert_eq!(facts.uid, Some(rustix::process::geteuid().as_raw()));
        assert_eq!(facts.claim, Claim::Absent);
        let lineage = table.lineage[&own];
        assert_eq!(lineage.parent, std::os::unix::process::parent_id());
        assert!(table.lineage.contains_key(&lineage.parent));
        assert!(table.lineage.contains_key(&1));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let age_seconds = now.as_secs_f64() - lineage.start_timestamp_seconds;
        assert!(age_seconds >= 0.0, "started {age_seconds} seconds ago");
        assert!(last.is_none_or(|last| last == facts.clone()));
        last = Some(facts.clone());
    }
}

#[test]
fn a_process_whose_parent_ended_is_shown_below_another_parent() {
    // A zombie keeps its directory: then the child's `stat` shows the change.
    for (waited_for, reads) in [(true, 1), (false, CYCLES_BETWEEN_STATS)] {
        // The child ends with its input, also where this test fails.
        let script = "exec 3<&0; cat <&3 >/dev/null & echo $!; wait";
        let mut parent = std::process::Command::new("sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let input = parent.stdin.take();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(parent.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let child: u32 = line.trim().parse().unwrap();
        let mut reader = DirectReader::with_root(PROC);
        let mut shown = || reader.read(&request(&[child], &[])).lineage[&child].parent;
        for _ in 0..=CYCLES_BETWEEN_STATS {
            assert_eq!(shown(), parent.id());
        }
        parent.kill().unwrap();
        if waited_for {
            parent.wait().unwrap();
        }
        let stat = || fs::read(format!("/proc/{child}/stat")).unwrap();
        while stat::Stat::parse(&stat()).unwrap().parent == parent.id() {
            std::thread::yield_now();
        }
        let last = (0..reads).map(|_| shown()).last().unwrap();
        assert_ne!(last, parent.id(), "waited for: {waited_for}");
        drop(input);
        parent.wait().unwrap();
    }
}

#[test]
fn files_stay_open_for_as_many_processes_as_are_read_and_allowed() {
    let mut children = [(); 3].map(|()| {
        // It ends with its input, also where this test fails.
        let mut command = std::process::Command::new("cat");
        command.stdin(std::process::Stdio::piped()).spawn().unwrap()
    });
    let pids = children.each_ref().map(std::process::Child::id);
    for pid in pids {
        while fs::read(format!("/proc/{pid}/environ")).unwrap().is_empty() {
            std::thread::yield_now();
        }
    }
    let open = || {
        let files = fs::read_dir("/proc/self/fd").unwrap();
        // Other tests close theirs meanwhile.
        let targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        let of = |target: PathBuf| pids.iter().any(|pid| target.starts_with(format!("/proc/{pid}")));
        targets.filter(|target| of(target.clone())).count()
    };
    let mut reader = DirectReader::with_root(PROC);
    for _ in 0..2 * CYCLES_BETWEEN_STATS {
        assert_eq!(reader.read(&request(&pids, &[])).processes.len(), 3);
        assert_eq!(open(), 6);
    }
    reader.read(&request(&pids[..2], &[]));
    assert_eq!(open(), 4);
    children[0].stdin = None;
    children[0].wait().unwrap();
    let table = reader.read(&request(&pids[..2], &[]));
    assert!(matches!(table.processes[&pids[0]], ProcessRead::Vanished));
    assert_eq!(open(), 2);
    reader.most_open = 2;
    reader.read(&request(&pids, &[]));
    assert_eq!(open(), 4);
    for mut child in children {
        child.stdin = None;
        child.wait().unwrap();
    }
}

#[test]
fn a_new_command_name_is_seen_some_reads_later_and_a_new_claim_at_once() {
    // It ends with its input, also where this test fails.
    let script = "read line; exec env GENV_ENVIRONMENT_ID=7 cat";
    let mut child =
        std::process::Command::new("sh").args(["-c", script]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let mut reader = DirectReader::with_root(PROC);
    let mut read = || match reader.read(&request(&[pid], &[])).processes.remove(&pid) {
        Some(ProcessRead::Present(facts)) => facts,
        other => panic!("{other:?}"),
    };
    // The environ of a program that was just started is empty for a moment.
    while fs::read(format!("/proc/{pid}/environ")).unwrap().is_empty() {
        std::thread::yield_now();
    }
    for _ in 0..2 {
        let facts = read();
        assert_eq!((facts.comm.as_str(), facts.claim), ("sh", Claim::Absent));
    }
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let is = |name: &str, content: &str| {
        let found = fs::read(format!("/proc/{pid}/{name}")).unwrap();
        String::from_utf8_lossy(&found).contains(content)
    };
    while !(is("comm", "cat") && is("environ", "GENV_ENVIRONMENT_ID=7")) {
        std::thread::yield_now();
    }
    let names: Vec<String> = (0..CYCLES_BETWEEN_STATS)
        .map(|_| {
            let facts = read();
            assert_eq!(facts.claim, Claim::Named("7".to_owned()));
            facts.comm
        })
        .collect();
    assert_eq!(names.last().unwrap(), "cat");
    child.kill().unwrap();
    child.wait().unwrap();
}
