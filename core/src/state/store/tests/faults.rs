//! A disk that fails, and a program that is killed, at every single step.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use rustix::io::Errno;

use super::*;
use crate::state::host::{COPY_FILE, STATE_FILE};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// This one step fails.
    Fails(Errno),
    /// Nothing happens from this step on.
    Killed,
}

/// A disk whose steps succeed until the given one.
#[derive(Debug)]
struct FaultyDisk {
    fault: Fault,
    at: usize,
    steps: Arc<Mutex<Vec<&'static str>>>,
}

impl FaultyDisk {
    fn step(&self, what: &'static str) -> Result<(), Errno> {
        let mut steps = self.steps.lock().unwrap();
        let step = steps.len();
        steps.push(what);
        match self.fault {
            Fault::Fails(errno) if step == self.at => Err(errno),
            Fault::Killed if step >= self.at => Err(Errno::INTR),
            Fault::Fails(_) | Fault::Killed => Ok(()),
        }
    }
}

impl Disk for FaultyDisk {
    fn create(&self, directory: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
        self.step("create")?;
        RealDisk.create(directory, name)
    }

    fn share(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        self.step("share")?;
        RealDisk.share(file)
    }

    fn write(&self, file: BorrowedFd<'_>, content: &[u8]) -> Result<usize, Errno> {
        let first = &content[..content.len().min(300)];
        self.step("write").inspect_err(|_| {
            // A part is written before it fails.
            RealDisk.write(file, &first[..first.len() / 2]).unwrap();
        })?;
        RealDisk.write(file, first)
    }

    fn rename(&self, directory: BorrowedFd<'_>, from: &str, to: &str) -> Result<(), Errno> {
        self.step("rename")?;
        RealDisk.rename(directory, from, to)
    }

    fn link(&self, directory: BorrowedFd<'_>, from: &str, to: &str) -> Result<(), Errno> {
        self.step("link")?;
        RealDisk.link(directory, from, to)
    }

    fn remove(&self, directory: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        self.step("remove")?;
        RealDisk.remove(directory, name)
    }
}

fn files(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let names = names(path).into_iter().filter(|name| name != "genv.lock");
    names
        .map(|name| {
            let content = std::fs::read(path.join(&name)).unwrap();
            (name, content)
        })
        .collect()
}

fn change(store: &mut StateStore) -> Result<(), TestError> {
    store.update(|state| {
        state.merge_inventory(&gpus(3));
        state.leave("7", &me());
        state.activate("8", 0, Some("root"), &me());
        state.attach("8", &count(2))?;
        Ok(())
    })
}

fn assert_sound(state: &State) {
    for device in &state.devices {
        assert!(device.attachments.len() <= 1, "{device:?}");
        for attachment in &device.attachments {
            let mut eids = state.environments.iter().map(|it| &it.eid);
            assert!(eids.any(|eid| *eid == attachment.eid), "{attachment:?}");
        }
    }
}

/// Runs all steps. `start` prepares a folder, and `check` tests the rest of it after each failing step.
fn at_every_step(
    fault: Fault,
    start: impl Fn(&Path),
    check: impl Fn(&BTreeMap<String, Vec<u8>>, &BTreeMap<String, Vec<u8>>, Option<&str>),
) {
    let mut at = 0;
    loop {
        let folder = TempDir::new().unwrap();
        let path = folder.path();
        start(path);
        let steps = Arc::default();
        let before = files(path);
        let disk = FaultyDisk { fault, at, steps: Arc::clone(&steps) };
        let mut store = StateStore::new(path).clock(|| UNIX_EPOCH + Duration::from_secs(1_795_174_860)).disk(disk);
        let changed = change(&mut store);
        let steps = steps.lock().unwrap();
        let failed = steps.get(at).copied();
        check(&before, &files(path), failed.filter(|_| changed.is_err()));
        if let Err(error) = &changed {
            assert!(error.to_string().starts_with("cannot write "), "{error}");
        }

        // The next command works, and leaves no leftover.
        let mut next = StateStore::new(path);
        next.update(|_| Ok::<_, StoreError>(())).unwrap();
        assert_sound(&next.read().unwrap());
        change(&mut next).unwrap();
        let state = next.read().unwrap();
        assert_sound(&state);
        assert!(state.environments.iter().any(|it| it.eid == "8"));
        let left: Vec<String> = names(path).into_iter().filter(|name| name.contains(".new-")).collect();
        assert_eq!(left, Vec::<String>::new(), "step {at}");
        if failed.is_none() {
            changed.unwrap();
            break;
        }
        at += 1;
    }
    assert!(at > 10, "{at} steps are fewer than there are");
}

fn two_environments(path: &Path) {
    let mut store = StateStore::new(path).clock(|| UNIX_EPOCH + Duration::from_secs(1_795_000_000));
    activate_and_attach(&mut store, "7", 1).unwrap();
    activate_and_attach(&mut store, "6", 1).unwrap();
    assert_eq!(store.take_notices(), Vec::<String>::new());
}

const FAULTS: [Fault; 5] = [
    Fault::Fails(Errno::NOSPC),
    Fault::Fails(Errno::ROFS),
    Fault::Fails(Errno::ACCESS),
    Fault::Fails(Errno::DQUOT),
    Fault::Killed,
];

#[test]
fn every_file_is_the_old_one_or_the_new_one_whatever_fails() {
    let folder = TempDir::new().unwrap();
    two_environments(folder.path());
    let mut store = StateStore::new(folder.path()).clock(|| UNIX_EPOCH + Duration::from_secs(1_795_174_860));
    change(&mut store).unwrap();
    let new = files(folder.path());
    for fault in FAULTS {
        at_every_step(fault, two_environments, |old, left, failed| {
            match failed {
                None => assert_eq!(left[STATE_FILE], new[STATE_FILE]),
                Some("rename") => assert!([&old[STATE_FILE], &new[STATE_FILE]].contains(&&left[STATE_FILE])),
                Some(_) => assert_eq!(left[STATE_FILE], old[STATE_FILE], "{fault:?}: {failed:?}"),
            }
            // The copy is never newer than the file.
            let copy = &left[COPY_FILE];
            assert!(*copy == old[COPY_FILE] || (copy, &left[STATE_FILE]) == (&new[COPY_FILE], &new[STATE_FILE]));
            if fault != Fault::Killed {
                assert!(left.keys().all(|name| !name.contains(".new-")));
            }
        });
    }
}

#[test]
fn no_damaged_file_and_no_environment_is_lost_whatever_fails() {
    let damaged = b"{\"environments\": [";
    for fault in FAULTS {
        let start = |path: &Path| {
            two_environments(path);
            std::fs::write(path.join(STATE_FILE), damaged).unwrap();
        };
        at_every_step(fault, start, |_, left, _| {
            assert!(left.values().any(|content| content == damaged), "{fault:?}: {left:?}");
            assert!(left[COPY_FILE].windows(9).any(|it| it == br#""eid":"6""#), "{fault:?}: {left:?}");
        });
    }
}

#[test]
fn an_import_loses_nothing_whatever_fails() {
    for fault in FAULTS {
        let start = |path: &Path| {
            let me = std::process::id();
            let uid = rustix::process::geteuid().as_raw();
            let environment = |eid: &str| format!(r#"{{"eid": "{eid}", "uid": {uid}, "pids": [{me}]}}"#);
            let environments = format!(r#"{{"envs": [{}, {}]}}"#, environment("7"), environment("6"));
            std::fs::write(path.join("envs.json"), environments).unwrap();
            let devices = r#"{"devices": [{"index": 0, "attachments": ["7"]}, {"index": 1, "attachments": ["6"]}]}"#;
            std::fs::write(path.join("devices.json"), devices).unwrap();
        };
        at_every_step(fault, start, |old, left, _| {
            let imported = left.get(STATE_FILE).is_some_and(|state| {
                let state: serde_json::Value = serde_json::from_slice(state).unwrap();
                state["devices"][1]["attachments"][0]["eid"] == "6"
            });
            for name in ["envs.json", "devices.json"] {
                let is_kept = left.get(name) == old.get(name);
                let is_aside = left.get(&format!("{name}.imported")) == old.get(name);
                assert!(is_kept || imported && is_aside, "{fault:?}: {left:?}");
            }
        });
    }
}
