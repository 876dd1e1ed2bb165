mod damage;
mod faults;
mod many;
mod members;

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use tempfile::TempDir;

use super::*;
use crate::model::MemoryAmount;
use crate::state::allocate::{AttachRequest, Selection};
use crate::state::{Activation, Configuration, Inventory, MemberId, Refusal};

#[derive(Debug, thiserror::Error)]
enum TestError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

fn waiting(pid: u32) -> Waiting {
    Waiting { pid, uid: 0, request: None, since_timestamp_seconds: None }
}

fn me() -> MemberId {
    MemberId::Process(std::process::id())
}

fn count(count: u32) -> AttachRequest {
    AttachRequest::new(Selection::Count(count))
}

fn gpus(count: u32) -> Inventory {
    Inventory::new((0..count).map(|index| (index, Some(16_384))))
}

fn names(path: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(path).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn activate_and_attach(store: &mut StateStore, eid: &str, devices: u32) -> Result<Vec<u32>, TestError> {
    store.update(|state| {
        state.merge_inventory(&gpus(4));
        assert_eq!(state.activate(eid, 0, Some("root"), &me()), Activation::Created);
        Ok(state.attach(eid, &count(devices))?)
    })
}

#[test]
fn an_environment_is_created_attached_and_ended() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("genv");
    let mut store = StateStore::new(&path);
    assert_eq!(activate_and_attach(&mut store, "7", 2).unwrap(), [0, 1]);
    let mode = |name: &str| std::fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(""), 0o777);
    for name in ["state.json", "state-copy.json", "genv.lock"] {
        assert_eq!(mode(name), 0o666, "{name}");
    }
    let state = store.read().unwrap();
    assert!(state.environments[0].pids().eq([std::process::id()]));
    activate_and_attach(&mut store, "8", 3).unwrap_err();
    assert_eq!(store.read().unwrap().environments.len(), 1);
    let left = store.update(|state| Ok::<_, TestError>(state.leave("7", &me())));
    assert!(left.unwrap());
    let state = store.read().unwrap();
    assert_eq!(state.environments, []);
    assert!(state.devices.iter().all(|device| device.attachments.is_empty()));
    let expected = ["state.json", "state-copy.json", "genv.lock"];
    let mut expected: BTreeSet<String> = expected.map(str::to_owned).into();
    expected.insert(format!("genv-confirmed-{}.json", rustix::process::geteuid().as_raw()));
    assert_eq!(names(&path), expected);
    assert_eq!(store.take_notices(), Vec::<String>::new());
}

#[test]
fn one_environment_is_read_with_its_own_devices_and_members() {
    let folder = TempDir::new().unwrap();
    let mut store = StateStore::new(folder.path());
    activate_and_attach(&mut store, "7", 1).unwrap();
    activate_and_attach(&mut store, "8", 2).unwrap();
    let state = store.read_environment("8").unwrap();
    assert_eq!((state.environments.len(), state.environments[0].eid.as_str()), (1, "8"));
    assert!(state.environments[0].pids().eq([std::process::id()]));
    let attached = state.devices.iter().filter(|device| !device.attachments.is_empty()).map(|device| device.index);
    assert_eq!(attached.collect::<Vec<_>>(), [1, 2]);
    assert_eq!(store.read_environment("9").unwrap().environments, []);
}

#[test]
fn a_failed_change_writes_nothing() {
    let folder = TempDir::new().unwrap();
    let mut store = StateStore::new(folder.path());
    let failed = store.update(|state| {
        state.merge_inventory(&gpus(1));
        state.activate("7", 0, None, &me());
        state.configure("7", Configuration::default())?;
        state.attach("7", &count(2))?;
        Ok::<_, TestError>(())
    });
    assert!(matches!(failed, Err(TestError::Refused(_))));
    assert_eq!(names(folder.path()), ["genv.lock".to_owned()].into());
}

#[test]
fn an_unchanged_file_is_not_written() {
    let folder = TempDir::new().unwrap();
    let mut store = StateStore::new(folder.path());
    activate_and_attach(&mut store, "7", 1).unwrap();
    let inode = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().ino();
    let inodes = || ["state.json", "state-copy.json"].map(inode);
    let before = inodes();
    store.update(|state| Ok::<_, TestError>(state.detach("7", None)?)).unwrap();
    let after = inodes();
    assert!(before[0] != after[0] && before[1] != after[1]);
    store.update(|_| Ok::<_, TestError>(())).unwrap();
    assert_eq!(inodes(), after);
}

#[test]
fn concurrent_changes_are_all_applied() {
    let folder = TempDir::new().unwrap();
    let configuration = Configuration { gpu_memory: Some(MemoryAmount::mebibytes(1)), ..Configuration::default() };
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let (path, configuration) = (folder.path(), configuration.clone());
            scope.spawn(move || {
                let mut store = StateStore::new(path).patience(None);
                for round in 0..10 {
                    let eid = format!("{thread}-{round}");
                    let attached = store.update(|state| {
                        state.merge_inventory(&gpus(1));
                        state.activate(&eid, 0, None, &me());
                        state.configure(&eid, configuration.clone())?;
                        Ok::<_, TestError>(state.attach(&eid, &count(1))?)
                    });
                    attached.unwrap();
                }
            });
        }
    });
    let state = StateStore::new(folder.path()).read().unwrap();
    assert_eq!(state.environments.len(), 160);
    assert_eq!(state.devices[0].attachments.len(), 160);
}

#[test]
fn without_the_lock_no_change_is_made() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_owned();
    let mut store = StateStore::new(&path);
    let held = store.update(|_| {
        let mut other = StateStore::new(&path).patience(Duration::from_millis(20));
        let error = activate_and_attach(&mut other, "7", 1).unwrap_err();
        assert!(matches!(error, TestError::Store(StoreError::Lock(LockError::TimedOut { .. }))));
        // A reader does not wait.
        assert_eq!(other.read().unwrap().environments, []);
        Ok::<_, TestError>(())
    });
    held.unwrap();
}
