use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::*;
use crate::state::allocate::{AttachRequest, DeviceUsage, Selection};
use crate::state::{Activation, ChangeError, Configuration, Inventory, MemberId};

#[derive(Debug, thiserror::Error)]
enum TestError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Change(#[from] ChangeError),
}

fn me() -> MemberId {
    MemberId::Process(std::process::id())
}

fn count(count: u32) -> AttachRequest {
    AttachRequest {
        selection: Selection::Count(count),
        over_subscribe: false,
        usage: DeviceUsage::default(),
    }
}

fn gpus(count: u32) -> Inventory {
    Inventory::new((0..count).map(|index| (index, Some(16_384))))
}

fn activate_and_attach(
    store: &mut StateStore,
    eid: &str,
    devices: u32,
) -> Result<Vec<u32>, TestError> {
    store.update(|state| {
        state.merge_inventory(&gpus(4));
        assert_eq!(
            state.activate(eid, 0, Some("root"), &me()),
            Activation::Created
        );
        Ok(state.attach(eid, &count(devices))?)
    })
}

#[test]
fn an_environment_lives_its_life() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("genv");
    let mut store = StateStore::new(&path);
    assert_eq!(activate_and_attach(&mut store, "7", 2).unwrap(), [0, 1]);
    let mode = |name: &str| {
        std::fs::metadata(path.join(name))
            .unwrap()
            .permissions()
            .mode()
            & 0o7777
    };
    assert_eq!(mode(""), 0o777);
    for name in [
        "envs.json",
        "devices.json",
        "genv-members.json",
        "genv.lock",
    ] {
        assert_eq!(mode(name), 0o666, "{name}");
    }
    let state = store.read().unwrap();
    assert_eq!(state.environments[0].pids, [std::process::id()]);
    let error = activate_and_attach(&mut store, "8", 3).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot attach 3 devices: 2 of 4 can be had, and one environment holds the others"
    );
    assert_eq!(store.read().unwrap().environments.len(), 1);
    let left = store.update(|state| Ok::<_, TestError>(state.leave("7", &me())));
    assert!(left.unwrap());
    let state = store.read().unwrap();
    assert_eq!(state.environments, []);
    assert!(
        state
            .devices
            .iter()
            .all(|device| device.attachments.is_empty())
    );
    let names: BTreeSet<String> = std::fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let expected = [
        "devices.json",
        "envs.json",
        "genv-members.json",
        "genv.lock",
    ];
    assert_eq!(names, expected.map(str::to_owned).into());
    assert_eq!(store.take_notices(), Vec::<String>::new());
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
    assert!(matches!(failed, Err(TestError::Change(_))));
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}
