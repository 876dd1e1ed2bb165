use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::*;
use crate::state::host::STATE_FILE;
use crate::state::{MemberId, State, StateStore, StoreError};

const NOW: u64 = 1_700_000_000;

fn own() -> u32 {
    geteuid().as_raw()
}

fn store(folder: &Path, now_seconds: u64) -> StateStore {
    StateStore::new(folder).clock(move || UNIX_EPOCH + Duration::from_secs(now_seconds))
}

/// Makes environments of the caller, each with a lease of an hour.
fn activate(folder: &Path, eids: &[&str]) {
    update(folder, NOW, |state| {
        for eid in eids {
            state.activate(eid, own(), None, &me());
            state.lease(eid, Duration::from_secs(3600));
        }
    });
}

fn update<T>(folder: &Path, now_seconds: u64, change: impl FnOnce(&mut EditableState) -> T) -> T {
    store(folder, now_seconds).update(|state| Ok::<_, StoreError>(change(state))).unwrap()
}

fn me() -> MemberId {
    MemberId::Process(std::process::id())
}

fn read_at(folder: &Path, now_seconds: u64) -> State {
    store(folder, now_seconds).read().unwrap()
}

fn ends(folder: &Path) -> Vec<(String, f64)> {
    let mut ends: Vec<_> = read_at(folder, NOW + 1).leases.into_iter().collect();
    ends.sort_by(|a, b| a.0.cmp(&b.0));
    ends
}

#[test]
fn a_lease_is_kept_until_its_environment_ends() {
    let folder = tempfile::tempdir().unwrap();
    activate(folder.path(), &["a", "b"]);
    let end = seconds(NOW as i64 + 3600);
    assert_eq!(ends(folder.path()), [("a".to_owned(), end), ("b".to_owned(), end)]);
    let file = folder.path().join(name(own()));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    let leave = |eid| assert!(update(folder.path(), NOW + 9, |state| state.leave(eid, &me())));
    leave("a");
    assert_eq!(ends(folder.path()), [("b".to_owned(), end)]);
    assert!(!fs::read_to_string(&file).unwrap().contains("\"a\""));
    leave("b");
    assert!(!file.exists(), "no lease is left");
}

#[test]
fn a_new_environment_has_no_lease_of_an_ended_one() {
    let folder = tempfile::tempdir().unwrap();
    activate(folder.path(), &["a"]);
    let kept = fs::read(folder.path().join(name(own()))).unwrap();
    update(folder.path(), NOW + 5, |state| {
        state.leave("a", &me());
        state.activate("a", own(), None, &me());
    });
    assert_eq!(ends(folder.path()), []);
    // A user puts the earlier file back.
    fs::write(folder.path().join(name(own())), kept).unwrap();
    assert_eq!(ends(folder.path()), []);
}

#[test]
fn a_file_counts_only_if_its_user_alone_wrote_it() {
    let folder = tempfile::tempdir().unwrap();
    activate(folder.path(), &["a"]);
    let file = folder.path().join(name(own()));
    let content = fs::read_to_string(&file).unwrap();
    let environment = read_at(folder.path(), NOW).environments.remove(0);
    let directory = File::open(folder.path()).unwrap();
    let of_user = |uid| {
        let environment = EnvironmentState { uid, ..environment.clone() };
        find(&[environment], directory.as_fd()).len()
    };
    assert_eq!(of_user(own()), 1);
    fs::copy(&file, folder.path().join(name(own() + 1))).unwrap();
    assert_eq!(of_user(own() + 1), 0, "another user wrote it");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(of_user(own()), 0, "every user may have written it");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(&file, &elsewhere).unwrap();
    symlink(&elsewhere, &file).unwrap();
    assert_eq!(of_user(own()), 0, "it is a link");
    fs::remove_file(&file).unwrap();
    let with_end = |end: &str| content.replace(&format!("{}", NOW + 3600), end);
    for bad in [
        with_end("1e300"),
        with_end("-1"),
        with_end("9223372036854775807"),
        with_end("\"18:00\""),
        content.replace("\"version\":1", "\"version\":2"),
        content[..content.len() / 2].to_owned(),
        format!("{}{content}", " ".repeat(1 << 20)),
        "[".repeat(1000),
        String::new(),
    ] {
        fs::write(&file, &bad).unwrap();
        assert_eq!(of_user(own()), 0, "{bad:.200}");
    }
    fs::write(&file, &content).unwrap();
    assert_eq!(of_user(own()), 1);
}

#[test]
fn an_older_file_that_is_put_back_ends_no_extended_lease() {
    let folder = tempfile::tempdir().unwrap();
    activate(folder.path(), &["a"]);
    let file = folder.path().join(name(own()));
    // Another user moves the file away before it is replaced, and back later.
    let aside = folder.path().join("aside");
    fs::rename(&file, &aside).unwrap();
    assert_eq!(ends(folder.path()), []);
    // It was written a minute ago.
    let written = fs::metadata(&aside).unwrap().modified().unwrap() - Duration::from_secs(60);
    File::options().append(true).open(&aside).unwrap().set_modified(written).unwrap();
    fs::rename(&aside, &file).unwrap();
    assert_eq!(ends(folder.path()), [], "it was written long before it got its name");
    activate(folder.path(), &["a"]);
    assert_eq!(ends(folder.path()).len(), 1);
}

#[test]
fn a_lease_that_cannot_be_written_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let eid = "e".repeat(70_000);
    let change = |state: &mut EditableState| {
        state.activate(&eid, own(), None, &me());
        state.lease(&eid, Duration::from_secs(60));
        Ok::<_, StoreError>(())
    };
    let refused = store(folder.path(), NOW).update(change).unwrap_err();
    assert!(refused.to_string().contains(&name(own())), "{refused}");
    assert!(!folder.path().join(STATE_FILE).exists());
}
