use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::super::allocate::{AttachRequest, DeviceKind, Selection};
use super::*;
use crate::model::MemoryAmount;
use crate::patience::until;

/// A process that holds a lock (fcntl(2)) on a file with this mode, until the process is killed.
fn locker(path: &std::path::Path, mode: u32) -> Child {
    fs::write(path, "").unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let script = "import fcntl, sys, time\nfile = open(sys.argv[1], 'r+')\nfcntl.lockf(file, fcntl.LOCK_EX)\n\
                  print(flush=True)\ntime.sleep(1000)";
    let mut child = Command::new("python3").args(["-c", script]).arg(path).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    child
}

#[test]
fn a_process_waits_only_with_a_lock_of_its_own_on_a_file_of_its_user() {
    let folder = TempDir::new().unwrap();
    let directory = File::open(folder.path()).unwrap();
    let path = |name: &str| folder.path().join(name);
    let user = |pid| waiting(directory.as_fd(), pid).map(|it| it.uid);
    let mut waits = locker(&path("file"), 0o644);
    let pid = waits.id();
    assert_eq!((user(1), user(pid)), (None, None), "there is no file");
    fs::rename(path("file"), path(&name(pid))).unwrap();
    assert_eq!(user(pid), Some(geteuid().as_raw()));
    // A process that does not hold the lock.
    fs::hard_link(path(&name(pid)), path(&name(1))).unwrap();
    assert_eq!(user(1), None);
    // A file that every user may write and lock.
    fs::set_permissions(path(&name(pid)), Permissions::from_mode(0o666)).unwrap();
    assert_eq!(user(pid), None);
    fs::set_permissions(path(&name(pid)), Permissions::from_mode(0o644)).unwrap();
    remove_leftovers(&RealDisk, directory.as_fd());
    assert!(path(&name(pid)).exists() && !path(&name(1)).exists());
    waits.kill().unwrap();
    waits.wait().unwrap();
    // It has ended.
    until(|| user(pid).is_none());
    remove_leftovers(&RealDisk, directory.as_fd());
    assert!(!path(&name(pid)).exists());
}

#[test]
fn the_request_of_a_waiting_process_is_the_content_of_its_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("file");
    let read = |content: &str| {
        fs::write(&path, content).unwrap();
        request(File::open(&path).unwrap())
    };
    let memory = MemoryAmount::from_person("4g").unwrap();
    let of_kind = AttachRequest {
        kind: DeviceKind { types: vec!["a100".to_owned(), "rtx 4090".to_owned()], memory_at_least: Some(memory) },
        ..AttachRequest::new(Selection::Count(2))
    };
    for request in [
        RequestedDevices::new(&AttachRequest::new(Selection::Count(2)), Some(memory)),
        RequestedDevices::new(&AttachRequest::new(Selection::Indices([3].into())), None),
        RequestedDevices::new(&AttachRequest::new(Selection::Indices([2, 3].into())), None),
        RequestedDevices::new(&of_kind, None),
    ] {
        let content = serde_json::to_string(&request).unwrap();
        assert_eq!(read(&content), Some(request));
    }
    assert_eq!(read("{}"), Some(RequestedDevices::default()));
    // Earlier versions know one index and no kinds.
    let earlier = RequestedDevices { index: Some(3), ..RequestedDevices::default() };
    assert_eq!(read("{\"index\": 3}"), Some(earlier));
    let long = format!("{{\"gpus\": 1, \"x\": \"{}\"}}", "x".repeat(2000));
    for damaged in ["", "x", "{\"gpus\": -1}", "{\"gpus\": 1e99}", &long] {
        assert_eq!(read(damaged), None, "{damaged}");
    }
}

#[test]
fn only_leftovers_of_killed_commands_are_removed() {
    let folder = TempDir::new().unwrap();
    let directory = File::open(folder.path()).unwrap();
    let left = [
        ".state.json.new",
        ".state-copy.json.new-0123456789abcdef",
        ".envs.json.new-01",
        ".genv-confirmed-7.json.new-01",
    ];
    let kept = [".other.new", "state.json", ".new", "genv-waiting-x"];
    for file in left.iter().chain(&kept) {
        fs::write(folder.path().join(file), "").unwrap();
    }
    remove_leftovers(&RealDisk, directory.as_fd());
    let is_there = |file: &&str| folder.path().join(file).exists();
    assert!(!left.iter().any(is_there) && kept.iter().all(is_there));
}
