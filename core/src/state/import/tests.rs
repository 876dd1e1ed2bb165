use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::state::host::{COPY_FILE, STATE_FILE};
use crate::state::record::boot_id;
use crate::state::{MemberState, State, StateDirectory, StateSource as _, StateStore, StoreError};

const TIME: &str = "20/11/2026 12:00:00";

fn write(folder: &TempDir, name: &str, content: &Value) {
    fs::write(folder.path().join(name), content.to_string()).unwrap();
}

fn names(folder: &TempDir) -> BTreeSet<String> {
    fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
}

/// The files of an environment of this process with a device, and of one whose only member never was.
fn earlier() -> TempDir {
    let folder = TempDir::new().unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let environment = |eid: &str, pids: &[u32]| json!({"eid": eid, "uid": uid, "creation": TIME, "pids": pids});
    let environments = [environment("a", &[std::process::id()]), environment("gone", &[i32::MAX.unsigned_abs()])];
    write(&folder, ENVIRONMENTS_FILE, &json!({ "envs": environments }));
    let device = |index: u32, eids: &[&str]| json!({"index": index, "total_memory": "16gi", "attachments": eids});
    write(&folder, DEVICES_FILE, &json!({"devices": [device(0, &["a", "no such"]), device(1, &[])]}));
    folder
}

fn read(folder: &TempDir) -> State {
    StateDirectory::new(folder.path()).read().unwrap()
}

fn change(folder: &TempDir) -> Result<(), StoreError> {
    StateStore::new(folder.path()).update(|_| Ok(()))
}

#[test]
fn earlier_files_are_shown_until_the_first_change_which_retires_them() {
    let folder = earlier();
    let before = names(&folder);
    let seen = read(&folder);
    assert_eq!(seen.environments.iter().map(|it| it.eid.as_str()).collect::<Vec<_>>(), ["a", "gone"]);
    assert_eq!((seen.attached("a"), seen.attached("no such")), (vec![0], vec![]));
    assert_eq!(names(&folder), before);
    let made_since = || StateDirectory::new(folder.path()).environments_of_genv1();
    assert_eq!(made_since(), [], "they are to be imported");

    let files = [ENVIRONMENTS_FILE, DEVICES_FILE].map(|name| fs::read(folder.path().join(name)).unwrap());
    change(&folder).unwrap();
    let imported = read(&folder);
    assert_eq!(imported.environments.iter().map(|it| it.eid.as_str()).collect::<Vec<_>>(), ["a"]);
    assert_eq!((imported.attached("a"), imported.devices.len()), (vec![0], 2));
    let kept = [ENVIRONMENTS_FILE, DEVICES_FILE].map(|name| fs::read(folder.path().join(format!("{name}.imported"))));
    assert_eq!(kept.map(Result::unwrap), files);

    // A genv 1.x finds all devices held by an environment that does not end.
    let placeholder =
        |name: &str| -> Value { serde_json::from_slice(&fs::read(folder.path().join(name)).unwrap()).unwrap() };
    let environments = placeholder(ENVIRONMENTS_FILE);
    assert_eq!((&environments["envs"][0]["eid"], &environments["envs"][0]["pids"]), (&json!(MOVED), &json!([1])));
    for device in placeholder(DEVICES_FILE)["devices"].as_array().unwrap() {
        assert_eq!(device["attachments"][0]["eid"], MOVED);
    }
    // A genv 1.x that goes on there is named by its environments.
    assert_eq!(made_since(), []);
    let mut beside = environments.clone();
    beside["envs"].as_array_mut().unwrap().push(json!({"eid": "late", "uid": 7, "creation": TIME, "pids": [1]}));
    write(&folder, ENVIRONMENTS_FILE, &beside);
    assert_eq!(made_since().iter().map(|it| (it.eid.as_str(), it.uid)).collect::<Vec<_>>(), [("late", 7)]);
    assert_eq!(read(&folder).environments, imported.environments);
    write(&folder, ENVIRONMENTS_FILE, &environments);
    // It is no environment, even if the state is removed, and what was kept stays.
    for name in [STATE_FILE, COPY_FILE] {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    assert_eq!((read(&folder).environments, read(&folder).attached(MOVED)), (Vec::new(), Vec::new()));
    change(&folder).unwrap();
    assert_eq!(fs::read(folder.path().join("envs.json.imported")).unwrap(), files[0]);
}

#[test]
fn members_get_their_facts_from_the_file_beside() {
    let folder = earlier();
    let facts = |boot_id: &str, creation: &str| {
        let member = json!({"eid": "a", "creation": creation, "pid": std::process::id(), "start_time_ticks": 5,
            "pid_namespace": 4_026_531_999_u64, "job": true});
        json!({"version": 1, "boot_id": boot_id, "members": [member], "simulated": true,
            "queue": [{"pid": 3, "start_time_ticks": 4}],
            "known": [{"eid": "a", "creation": creation, "uid": 0, "devices": [0], "context_seconds": 1_795_000_000}]})
    };
    let member = |started: Started, pid_namespace: Option<u64>| MemberState {
        started,
        pid_namespace,
        ..MemberState::from(std::process::id())
    };
    let of_another_time = "19/11/2026 12:00:00";
    let bare = member(Started::Unknown, None);
    let namespace = Some(4_026_531_999);
    let seen = Some(1_795_000_000.0);
    for (boot_id, creation, expected, queued, context) in [
        (boot_id(), TIME, member(Started::At(5), namespace), 1, seen),
        (boot_id(), of_another_time, bare, 1, None),
        ("another".to_owned(), TIME, member(Started::BeforeThisBoot, namespace), 0, None),
    ] {
        write(&folder, MEMBERS_FILE, &facts(&boot_id, creation));
        let state = read(&folder);
        let environment = &state.environments[0];
        assert_eq!((environment.members[0], environment.context_seconds), (expected, context), "{boot_id} {creation}");
        assert_eq!((state.queued.len(), state.simulated), (queued, Some(true)));
    }
    // A name that is not UTF-8 costs only its own facts.
    let name = |eid: &str| format!(r#"{{"eid": "{eid}", "creation": "{TIME}", "pid": 1, "start_time_ticks": 5}}"#);
    let of_this_boot = facts(&boot_id(), TIME).to_string();
    let text = of_this_boot.replace("\"members\":[", &format!("\"members\":[{},", name(r"b\udcff")));
    assert_ne!(text, of_this_boot);
    fs::write(folder.path().join(MEMBERS_FILE), text).unwrap();
    assert_eq!(read(&folder).environments[0].members, [member(Started::At(5), namespace)]);
    fs::write(folder.path().join(MEMBERS_FILE), "damage").unwrap();
    assert_eq!(read(&folder).environments[0].members, [bare]);
    change(&folder).unwrap();
    assert!(folder.path().join("genv-members.json.imported").exists() && !folder.path().join(MEMBERS_FILE).exists());
}

#[test]
fn the_oldest_shape_is_imported() {
    let (folder, fixtures) = (TempDir::new().unwrap(), env!("CARGO_MANIFEST_DIR"));
    for name in [ENVIRONMENTS_FILE, DEVICES_FILE] {
        let fixture = format!("{fixtures}/../tests/fixtures/genv-state/0.6.0/{name}");
        fs::copy(fixture, folder.path().join(name)).unwrap();
    }
    let kept = StateStore::new(folder.path()).cleaning(false).update(|_| Ok::<_, StoreError>(()));
    kept.unwrap();
    assert!(folder.path().join(STATE_FILE).exists());
    let state = read(&folder);
    assert_eq!(state.environments.iter().map(|it| it.eid.as_str()).collect::<Vec<_>>(), ["24652", "25088"]);
    assert_eq!([state.attached("24652"), state.attached("25088")], [[0], [1]]);
}

/// How a file is made useless.
type Spoil = fn(&Path);

#[test]
fn an_earlier_file_that_cannot_be_read_stops_the_import_and_stays() {
    let spoils: [(Spoil, &str); 5] = [
        (|path| fs::write(path, "{").unwrap(), "it is not JSON"),
        (|path| fs::write(path, " ".repeat(3 << 20)).unwrap(), "no more than 2097152 are read"),
        (|path| fs::write(path, " ".repeat(9 << 20)).unwrap(), "no more than 8388608 are read"),
        (|path| fs::create_dir(path).unwrap(), "it is not a regular file"),
        (|path| symlink("/etc/passwd", path).unwrap(), "it is a symbolic link"),
    ];
    for name in [ENVIRONMENTS_FILE, DEVICES_FILE] {
        for (spoil, why) in spoils {
            let folder = earlier();
            fs::remove_file(folder.path().join(name)).unwrap();
            spoil(&folder.path().join(name));
            for error in [
                StateDirectory::new(folder.path()).read().unwrap_err().to_string(),
                change(&folder).unwrap_err().to_string(),
            ] {
                assert!(error.contains(&format!("cannot import {}", folder.path().join(name).display())), "{error}");
                assert!(
                    error.contains(why) && error.ends_with("repair it, or move it away to go on without it"),
                    "{error}"
                );
            }
            assert!(!folder.path().join(STATE_FILE).exists());
        }
    }
}

#[test]
fn an_entry_that_cannot_be_read_stops_the_import_and_a_value_does_not() {
    let folder = earlier();
    let uid = rustix::process::geteuid().as_raw();
    let entry = |more: Value| {
        let mut entry =
            json!({"eid": "b", "uid": uid, "creation": "01/01/1960 00:00:00", "pids": [std::process::id()]});
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "envs": [entry] })
    };
    write(&folder, ENVIRONMENTS_FILE, &entry(json!({"uid": -1})));
    let error = change(&folder).unwrap_err().to_string();
    assert!(error.contains(r#"envs.json: environment "b": its uid is -1, and it is left out: repair it"#), "{error}");
    // The time is none that the new file can have.
    write(&folder, ENVIRONMENTS_FILE, &entry(json!({"username": 5})));
    change(&folder).unwrap();
    let state = read(&folder);
    assert_eq!((state.environments.len(), state.warnings.len()), (1, 0));
}

#[test]
fn an_import_is_completed_after_a_kill_and_voided_by_no_file_of_another_user() {
    let folder = earlier();
    let others = [json!({"eid": MOVED, "uid": 7, "pids": [1]}), json!({"eid": "b", "uid": 7, "pids": [1]})];
    let mut environments: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join(ENVIRONMENTS_FILE)).unwrap()).unwrap();
    environments["envs"].as_array_mut().unwrap().extend(others);
    write(&folder, ENVIRONMENTS_FILE, &environments);
    fs::write(folder.path().join(COPY_FILE), "").unwrap();
    fs::create_dir(folder.path().join("envs.json.imported")).unwrap();
    let eids = |state: &State| state.environments.iter().map(|it| it.eid.clone()).collect::<Vec<_>>();
    assert_eq!(eids(&read(&folder)), ["a", "gone", "b"]);
    change(&folder).unwrap();
    assert!(eids(&read(&folder)).contains(&"a".to_owned()));
    let kept = fs::read_to_string(folder.path().join("envs.json.imported-2")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&kept).unwrap(), environments);

    // The state is written first, its copy last.
    let retired = fs::read(folder.path().join(ENVIRONMENTS_FILE)).unwrap();
    fs::remove_file(folder.path().join(COPY_FILE)).unwrap();
    write(&folder, ENVIRONMENTS_FILE, &environments);
    change(&folder).unwrap();
    let without_time = |text: &[u8]| String::from_utf8_lossy(text).split("\"creation\"").next().unwrap().to_owned();
    assert_eq!(without_time(&fs::read(folder.path().join(ENVIRONMENTS_FILE)).unwrap()), without_time(&retired));
    assert!(folder.path().join("envs.json.imported-3").exists());
}

#[test]
fn earlier_files_that_are_removed_end_no_environment() {
    let folder = earlier();
    let mut daemon = StateDirectory::new(folder.path());
    assert_eq!(daemon.read().unwrap().environments.len(), 2);
    for name in [ENVIRONMENTS_FILE, DEVICES_FILE] {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    assert!(daemon.read().unwrap_err().to_string().contains("it was removed"));
}
