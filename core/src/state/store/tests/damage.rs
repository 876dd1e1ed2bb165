//! Damaged files, and other objects in the place of files.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::time::UNIX_EPOCH;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;
use crate::state::StateSource as _;
use crate::state::host::{COPY_FILE, STATE_FILE};

/// The notices, with the folder's name and times replaced.
fn notices_text(store: &mut StateStore) -> String {
    let notices = store.take_notices().join("\n");
    let notices = notices.replace(&store.path().display().to_string(), "DIR");
    let mut text = String::new();
    let mut rest = notices.as_str();
    while let Some(at) = rest.find(".corrupt-") {
        let (before, time) = rest.split_at(at + ".corrupt-".len());
        text.push_str(before);
        text.push_str("TIME");
        rest = &time["20261120-114100".len()..];
    }
    text + rest
}

fn nothing(store: &mut StateStore) {
    store.update(|_| Ok::<_, StoreError>(())).unwrap();
}

/// Two environments, each with a device and with this process as its member, as the file has them.
fn two_environments(folder: &TempDir) -> (StateStore, State) {
    let mut store = StateStore::new(folder.path());
    activate_and_attach(&mut store, "7", 1).unwrap();
    activate_and_attach(&mut store, "8", 1).unwrap();
    let state = store.read().unwrap();
    (store, state)
}

/// How a file is lost, and what is said of it.
type Loss = (fn(&Path), &'static str);

const LOSSES: [Loss; 7] = [
    (|path| fs::remove_file(path).unwrap(), "it was removed"),
    (|path| fs::write(path, "").unwrap(), "it is empty"),
    (|path| fs::write(path, "x").unwrap(), "it is not understood: expected value at line 1 column 1"),
    (|path| fs::write(path, " ".repeat(9 << 20)).unwrap(), "it has 9437184 bytes, and no more than 8388608 are read"),
    (
        |path| {
            let whole = fs::read(path).unwrap();
            fs::write(path, &whole[..whole.len() / 2]).unwrap();
        },
        "it is not understood: EOF",
    ),
    (
        |path| {
            let whole = fs::read_to_string(path).unwrap();
            fs::write(path, whole.replace("\"eid\":\"8\"", "\"eid\":\"7\"")).unwrap();
        },
        "or the id \"7\" of another one",
    ),
    (
        |path| {
            fs::remove_file(path).unwrap();
            symlink("/dev/null", path).unwrap();
        },
        "it is a symbolic link, which anybody could have put there",
    ),
];

#[test]
fn while_the_file_is_damaged_or_removed_its_copy_counts_and_the_next_change_writes_it_again() {
    for (lose, why) in LOSSES {
        let folder = TempDir::new().unwrap();
        let (mut store, before) = two_environments(&folder);
        let whole = fs::read(folder.path().join(STATE_FILE)).unwrap();
        lose(&folder.path().join(STATE_FILE));
        let names_before = names(folder.path());
        let state = store.read().unwrap();
        assert_eq!((&state.environments, &state.devices), (&before.environments, &before.devices), "{why}");
        assert!(state.incomplete);
        let notices = notices_text(&mut store);
        assert!(notices.contains(why) && notices.ends_with("Shown is its copy, with 2 environments"), "{notices}");
        // A read changes nothing, and a daemon keeps what it knows.
        assert_eq!(names(folder.path()), names_before);
        let error = StateDirectory::new(folder.path()).read().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        nothing(&mut store);
        let notices = notices_text(&mut store);
        assert!(
            notices.contains(why) && notices.ends_with("What counts is its copy, with 2 environments"),
            "{notices}"
        );
        assert_eq!(fs::read(folder.path().join(STATE_FILE)).unwrap(), whole, "{why}");
        nothing(&mut store);
        assert_eq!(notices_text(&mut store), "");
    }
}

#[test]
fn a_damaged_file_is_kept_aside_and_without_a_copy_the_state_begins_anew() {
    let folder = TempDir::new().unwrap();
    let (mut store, _) = two_environments(&folder);
    fs::write(folder.path().join(STATE_FILE), "damage").unwrap();
    fs::write(folder.path().join(COPY_FILE), "{}").unwrap();
    assert_eq!(store.read().unwrap().environments, []);
    store.take_notices();
    nothing(&mut store);
    insta::assert_snapshot!(notices_text(&mut store), @"DIR/state.json is damaged: it is not understood: expected value at line 1 column 1. It is kept as state.json.corrupt-TIME. What counts is no environment, since its copy is damaged or missing too");
    let aside: Vec<String> = names(folder.path()).into_iter().filter(|name| name.contains("corrupt")).collect();
    assert_eq!(fs::read_to_string(folder.path().join(&aside[0])).unwrap(), "damage");
    assert_eq!(activate_and_attach(&mut store, "9", 4).unwrap(), [0, 1, 2, 3]);
}

#[test]
fn a_damaged_copy_is_written_again() {
    let folder = TempDir::new().unwrap();
    let (mut store, _) = two_environments(&folder);
    let whole = fs::read(folder.path().join(COPY_FILE)).unwrap();
    for (lose, _) in LOSSES {
        lose(&folder.path().join(COPY_FILE));
        nothing(&mut store);
        assert_eq!(fs::read(folder.path().join(COPY_FILE)).unwrap(), whole);
        assert_eq!(store.take_notices(), Vec::<String>::new());
    }
}

#[test]
fn a_state_of_another_version_is_neither_read_nor_changed() {
    let folder = TempDir::new().unwrap();
    let (mut store, _) = two_environments(&folder);
    let [path, copy] = [STATE_FILE, COPY_FILE].map(|name| folder.path().join(name));
    let other = r#"{"version": 2, "environments": "elsewhere"}"#;
    let expected = |name: &str| {
        format!(
            "{name}: it has version 2, and this genv knows version 1 alone: use the genv that wrote it, or move it away"
        )
    };
    // Every user may write one such file. The other version writes both.
    fs::write(&path, other).unwrap();
    nothing(&mut store);
    assert!(notices_text(&mut store).contains("it has version 2"));
    fs::write(&copy, other).unwrap();
    nothing(&mut store);
    for removed in [false, true] {
        fs::write(&copy, other).unwrap();
        fs::write(&path, other).unwrap();
        if removed {
            fs::remove_file(&path).unwrap();
        }
        let expected = expected(COPY_FILE);
        let refused = store.update(|_| Ok::<_, StoreError>(())).unwrap_err().to_string();
        assert!(refused.ends_with(&expected), "{refused}");
        assert_eq!(fs::read_to_string(&copy).unwrap(), other);
    }
    fs::write(&path, other).unwrap();
    fs::remove_file(&copy).unwrap();
    let refused = store.update(|_| Ok::<_, StoreError>(())).unwrap_err().to_string();
    assert!(refused.ends_with(&expected(STATE_FILE)), "{refused}");
    assert!(store.read().unwrap_err().to_string().ends_with(&expected(STATE_FILE)));
    let error = StateDirectory::new(folder.path()).read().unwrap_err().to_string();
    assert!(error.ends_with(&expected(STATE_FILE)), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), other);
}

#[test]
fn of_another_boot_no_member_lives_and_no_process_waits() {
    let folder = TempDir::new().unwrap();
    // Its processes are younger than the environment.
    let mut store = StateStore::new(folder.path()).clock(|| UNIX_EPOCH + Duration::from_secs(1000));
    activate_and_attach(&mut store, "7", 1).unwrap();
    let mut store = store.finding_waiting(|_, pid| Some(waiting(pid)));
    store.update(|state| Ok::<_, TestError>(state.enqueue(1, None))).unwrap();
    assert_eq!(store.read().unwrap().environments.len(), 1);
    let path = folder.path().join(STATE_FILE);
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let written = fs::read_to_string(&path).unwrap();
    fs::write(&path, written.replace(boot.trim(), "another")).unwrap();
    // Confirmations show the starts of members too.
    fs::remove_file(folder.path().join(format!("genv-confirmed-{}.json", rustix::process::geteuid().as_raw())))
        .unwrap();
    let state = store.read().unwrap();
    assert_eq!((state.environments, state.queued), (Vec::new(), Vec::new()));
}

#[test]
fn kept_files_are_not_overwritten_and_their_number_is_limited() {
    let folder = TempDir::new().unwrap();
    let mut store = StateStore::new(folder.path());
    let path = folder.path().join(STATE_FILE);
    let aside = || -> Vec<String> {
        let names = names(folder.path()).into_iter();
        names.filter(|name| name.starts_with("state.json.corrupt-")).collect()
    };
    activate_and_attach(&mut store, "7", 1).unwrap();
    for damage in 0..10 {
        fs::write(&path, format!("damage {damage}")).unwrap();
        nothing(&mut store);
        assert_eq!(aside().len(), damage + 1);
    }
    let contents: BTreeSet<String> =
        aside().iter().map(|name| fs::read_to_string(folder.path().join(name)).unwrap()).collect();
    assert_eq!(contents.len(), 10);
    for damage in 10..15 {
        fs::write(&path, format!("damage {damage}")).unwrap();
        nothing(&mut store);
        assert_eq!(aside().len(), 10);
    }
}

#[test]
fn unknown_keys_are_read_and_not_written_again() {
    let folder = TempDir::new().unwrap();
    let mut store = StateStore::new(folder.path());
    activate_and_attach(&mut store, "7", 1).unwrap();
    let path = folder.path().join(STATE_FILE);
    let written = fs::read_to_string(&path).unwrap();
    fs::write(&path, written.replace("\"uid\"", "\"later\":1,\"uid\"")).unwrap();
    nothing(&mut store);
    assert_eq!(fs::read_to_string(&path).unwrap(), written);
    assert_eq!(notices_text(&mut store), "");
}

/// The target of a link at a path of the state stays unchanged, and commands work.
#[test]
fn a_link_in_the_place_of_a_file_is_not_followed() {
    let files = [STATE_FILE, COPY_FILE, ".state.json.new", ".state-copy.json.new"];
    for file in files {
        for plant in ["link", "dangling link", "hard link", "fifo", "socket", "folder", "full folder"] {
            let folder = TempDir::new().unwrap();
            let elsewhere = TempDir::new().unwrap();
            let victim = elsewhere.path().join("victim");
            fs::write(&victim, "precious").unwrap();
            fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
            let mut store = StateStore::new(folder.path());
            activate_and_attach(&mut store, "7", 1).unwrap();
            let path = folder.path().join(file);
            let _ = fs::remove_file(&path);
            match plant {
                "link" => symlink(&victim, &path).unwrap(),
                "dangling link" => symlink(elsewhere.path().join("new"), &path).unwrap(),
                "hard link" => fs::hard_link(&victim, &path).unwrap(),
                "fifo" => mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap(),
                "socket" => drop(UnixListener::bind(&path).unwrap()),
                "folder" => fs::create_dir(&path).unwrap(),
                _ => {
                    fs::create_dir(&path).unwrap();
                    fs::write(path.join("file"), "").unwrap();
                }
            }
            let what = format!("{plant} at {file}");
            store
                .update(|state| {
                    state.merge_inventory(&gpus(4));
                    state.activate("8", 0, None, &me());
                    state.attach("8", &count(1))?;
                    Ok::<_, TestError>(())
                })
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let state = store.read().unwrap();
            assert!(state.environments.iter().any(|it| it.eid == "8"), "{what}");
            assert_eq!(fs::read(&victim).unwrap(), b"precious", "{what}");
            let mode = fs::metadata(&victim).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, 0o600, "{what}");
            assert_eq!(names(elsewhere.path()), ["victim".to_owned()].into(), "{what}");
            let notices = store.take_notices();
            assert_eq!(notices.len(), usize::from(file == STATE_FILE), "{what}: {notices:?}");
            nothing(&mut store);
            assert_eq!(store.take_notices(), Vec::<String>::new(), "{what}");
        }
    }
}

/// Every user may write records in the name of another user.
#[test]
fn of_too_many_records_of_a_user_those_with_evidence_are_kept() {
    let uid = rustix::process::geteuid().as_raw();
    // A confirmed record precedes those with a living process, and a living process precedes no evidence.
    for (is_confirmed, pid_of_others) in [(true, std::process::id()), (false, u32::MAX >> 1)] {
        let folder = TempDir::new().unwrap();
        let mut store = StateStore::new(folder.path());
        let attached = store.update(|state| {
            state.merge_inventory(&gpus(4));
            state.activate("7", uid, None, &me());
            Ok::<_, TestError>(state.attach("7", &count(1))?)
        });
        assert_eq!(attached.unwrap(), [0]);
        if !is_confirmed {
            fs::remove_file(folder.path().join(format!("genv-confirmed-{uid}.json"))).unwrap();
        }
        let others = (0..8_200)
            .map(|number| format!(r#"{{"eid":"other-{number}","uid":{uid},"members":[{{"pid":{pid_of_others}}}]}},"#))
            .collect::<String>();
        let path = folder.path().join(STATE_FILE);
        let written = fs::read_to_string(&path).unwrap();
        fs::write(&path, written.replace("\"environments\":[", &format!("\"environments\":[{others}"))).unwrap();
        assert_eq!(activate_and_attach(&mut store, "8", 1).unwrap(), [1]);
        let notices = store.take_notices();
        assert!(notices.iter().any(|it| it.contains("are left out")), "{notices:?}");
        assert!(store.read().unwrap().environments.iter().any(|it| it.eid == "7"), "{is_confirmed}");
    }
}

#[test]
fn an_unusable_state_directory_is_refused() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("genv")] {
        let error = StateStore::new(&path).update(|_| Ok::<_, StoreError>(())).unwrap_err();
        assert!(error.to_string().contains("cannot open the state directory"), "{error}");
        assert!(error.to_string().contains("set GENV_TMPDIR"), "{error}");
    }
    let real = folder.path().join("real");
    symlink(&real, folder.path().join("own link")).unwrap();
    fs::create_dir(&real).unwrap();
    nothing(&mut StateStore::new(folder.path().join("own link")));
    assert!(real.join("genv.lock").exists());
}
