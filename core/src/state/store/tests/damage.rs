//! Damaged files, and other objects in the place of files.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;
use crate::proc::in_initial_pid_namespace;

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

#[test]
fn a_damaged_file_is_kept_aside_with_one_notice() {
    let folder = TempDir::new().unwrap();
    let mut store = StateStore::new(folder.path());
    activate_and_attach(&mut store, "7", 1).unwrap();
    fs::write(folder.path().join("devices.json"), "").unwrap();
    nothing(&mut store);
    insta::assert_snapshot!(notices_text(&mut store), @"DIR/devices.json is damaged: it is empty. It is kept as devices.json.corrupt-TIME. 0 devices in it are whole; environments keep the others by genv-members.json or by what their processes see. 'genv attach' attaches what is missing");
    assert_eq!(activate_and_attach(&mut store, "8", 3).unwrap(), [1, 2, 3]);
    assert_eq!(notices_text(&mut store), "");

    fs::write(folder.path().join("genv-members.json"), "[]").unwrap();
    nothing(&mut store);
    insta::assert_snapshot!(notices_text(&mut store), @"DIR/genv-members.json is damaged: it is not understood: invalid length 0, expected an object. It is kept as genv-members.json.corrupt-TIME. genv fills it again, and there is nothing to do");
    // This process started before envs.json was written: it is adopted.
    assert_eq!(store.read().unwrap().environments.len(), 2);
}

/// Two environments, each with a device and with this process as its member, as the files have them.
fn two_environments(folder: &TempDir) -> (StateStore, State) {
    let mut store = StateStore::new(folder.path());
    activate_and_attach(&mut store, "7", 1).unwrap();
    activate_and_attach(&mut store, "8", 1).unwrap();
    let state = store.read().unwrap();
    (store, state)
}

#[test]
fn a_read_of_a_damaged_file_returns_its_whole_records_and_does_not_change_it() {
    for name in ["envs.json", "devices.json"] {
        let folder = TempDir::new().unwrap();
        let (mut store, before) = two_environments(&folder);
        let path = folder.path().join(name);
        let whole = fs::read_to_string(&path).unwrap();
        let damaged = whole.trim_end_matches(['}', ']', '\n', ' ']).to_owned() + "}]}";
        fs::write(&path, &damaged[..damaged.len() - 1]).unwrap();
        let names_before = names(folder.path());
        let state = store.read().unwrap();
        assert_eq!(state.devices[0], before.devices[0]);
        assert_eq!(state.environments[0], before.environments[0]);
        assert!(notices_text(&mut store).contains("is damaged: it is not JSON"));
        assert_eq!(names(folder.path()), names_before);
        nothing(&mut store);
        assert_ne!(names(folder.path()), names_before);
        assert_eq!(store.read().unwrap().environments[0], before.environments[0]);
    }
}

#[test]
fn a_cut_of_a_file_loses_only_the_records_that_it_cuts() {
    for name in ["envs.json", "devices.json"] {
        let (mut kept_one, mut kept_both) = (0, 0);
        for part in 0..20 {
            let folder = TempDir::new().unwrap();
            let (mut store, before) = two_environments(&folder);
            let path = folder.path().join(name);
            let whole = fs::read(&path).unwrap();
            let cut = whole.len() * part / 20;
            fs::write(&path, &whole[..cut]).unwrap();
            nothing(&mut store);
            let state = store.read().unwrap();
            // Their members live: no other environment gets their devices.
            assert_eq!(state.devices, before.devices, "{name}, {cut}");
            let is_kept = |eid: &str| state.environments.iter().any(|it| it.eid == eid);
            match (is_kept("7"), is_kept("8")) {
                (true, true) => kept_both += 1,
                (true, false) => kept_one += 1,
                (false, false) => {}
                (false, true) => panic!("{name}: the first is lost at {cut}"),
            }
        }
        let all_of_devices = name == "devices.json" && kept_both == 20;
        assert!(kept_one > 2 || all_of_devices, "{name}: {kept_one}, {kept_both}");
    }
}

/// How a file is lost.
type Lose = fn(&Path);

#[test]
fn an_environment_keeps_its_devices_while_its_member_lives_whatever_file_is_lost() {
    let lose: [(&str, Lose); 5] = [
        ("removed", |path| fs::remove_file(path).unwrap()),
        ("empty", |path| fs::write(path, "").unwrap()),
        ("overwritten", |path| fs::write(path, "x").unwrap()),
        ("too large", |path| fs::write(path, " ".repeat(9 << 20)).unwrap()),
        ("link", |path| {
            fs::remove_file(path).unwrap();
            symlink("/dev/null", path).unwrap();
        }),
    ];
    let cases = lose.iter().flat_map(|(how, lose)| {
        [vec!["envs.json"], vec!["devices.json"], vec!["envs.json", "devices.json"]]
            .map(|files| (format!("{files:?} {how}"), files, lose))
    });
    for (how, files, lose) in cases {
        let folder = TempDir::new().unwrap();
        let mut member = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut store = StateStore::new(folder.path());
        store
            .update(|state| {
                state.merge_inventory(&gpus(4));
                state.activate("7", 0, None, &MemberId::Process(member.id()));
                state.attach("7", &count(2))?;
                Ok::<_, TestError>(())
            })
            .unwrap();
        for file in &files {
            lose(&folder.path().join(file));
        }
        for _ in 0..2 {
            let mut other = StateStore::new(folder.path());
            let attached = other.update(|state| {
                state.activate("8", 0, None, &me());
                Ok::<_, TestError>(state.attach("8", &count(2))?)
            });
            assert_eq!(attached.unwrap(), [2, 3], "{how}");
        }
        member.kill().unwrap();
        member.wait().unwrap();
        nothing(&mut store);
        if files.contains(&"envs.json") && !in_initial_pid_namespace() {
            // Processes that this one does not see may be in the lost environment.
            assert_eq!(store.read().unwrap().attached("7"), [0, 1], "{how}");
            store.update(|state| Ok::<_, TestError>(state.detach("7", None)?)).unwrap();
        }
        assert_eq!(store.read().unwrap().attached("7"), [0_u32; 0], "{how}");
    }
}

#[test]
fn a_file_that_grew_too_large_loses_nothing() {
    for name in ["envs.json", "devices.json"] {
        let folder = TempDir::new().unwrap();
        let (mut store, before) = two_environments(&folder);
        let path = folder.path().join(name);
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, whole.clone() + &" ".repeat(33 << 20)).unwrap();
        let error = store.update(|_| Ok::<_, StoreError>(())).unwrap_err();
        assert!(error.to_string().contains("33554432 are read"), "{error}");
        assert!(store.read().is_err());
        fs::write(&path, whole + &" ".repeat(31 << 20)).unwrap();
        nothing(&mut store);
        let after = store.read().unwrap();
        assert_eq!((after.environments, after.devices), (before.environments, before.devices));
    }
}

#[test]
fn whole_records_of_members_and_of_the_queue_are_kept() {
    let folder = TempDir::new().unwrap();
    let (store, _) = two_environments(&folder);
    let mut store = store.finding_waiting(|_, pid| Some(waiting(pid)));
    store.update(|state| Ok::<_, TestError>(state.enqueue(1, None))).unwrap();
    let path = folder.path().join("genv-members.json");
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, whole.trim_end_matches(['}', ']', '\n', ' ']).to_owned() + "}").unwrap();
    nothing(&mut store);
    assert_eq!(fs::read_to_string(&path).unwrap(), whole);
}

#[test]
fn whole_records_of_a_damaged_file_are_kept() {
    let folder = TempDir::new().unwrap();
    let mut store = StateStore::new(folder.path());
    activate_and_attach(&mut store, "7", 1).unwrap();
    let path = folder.path().join("envs.json");
    let damaged = fs::read_to_string(&path).unwrap().replace("\"envs\": [", "\"envs\": [{\"eid\": \"broken\"},");
    fs::write(&path, &damaged).unwrap();
    nothing(&mut store);
    insta::assert_snapshot!(notices_text(&mut store), @r#"DIR/envs.json has damaged entries (envs.json: environment "broken": its uid is missing, and it is left out): what it was is kept as envs.json.corrupt-TIME"#);
    let state = store.read().unwrap();
    assert_eq!(state.environments[0].eid, "7");
    assert_eq!((state.incomplete, state.devices[0].attachments.len()), (false, 1));
    let aside: Vec<String> = names(folder.path()).into_iter().filter(|name| name.contains("corrupt")).collect();
    assert_eq!(fs::read_to_string(folder.path().join(&aside[0])).unwrap(), damaged);
    nothing(&mut store);
    assert_eq!(notices_text(&mut store), "");
}

#[test]
fn kept_files_are_not_overwritten_and_their_number_is_limited() {
    let folder = TempDir::new().unwrap();
    let mut store = StateStore::new(folder.path());
    let path = folder.path().join("envs.json");
    let aside = || -> Vec<String> {
        let names = names(folder.path()).into_iter();
        names.filter(|name| name.starts_with("envs.json.corrupt-")).collect()
    };
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
    let path = folder.path().join("envs.json");
    let written = fs::read_to_string(&path).unwrap();
    fs::write(&path, written.replace("\"uid\"", "\"later\": 1, \"uid\"")).unwrap();
    nothing(&mut store);
    assert_eq!(fs::read_to_string(&path).unwrap(), written);
    assert_eq!(notices_text(&mut store), "");
}

/// The target of a link at a path of the state stays unchanged, and commands work.
#[test]
fn a_link_in_the_place_of_a_file_is_not_followed() {
    let files = [
        "envs.json",
        "devices.json",
        "genv-members.json",
        ".envs.json.new",
        ".devices.json.new",
        ".genv-members.json.new",
    ];
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
            assert_eq!(notices.len(), usize::from(!file.starts_with('.')), "{what}: {notices:?}");
            nothing(&mut store);
            assert_eq!(store.take_notices(), Vec::<String>::new(), "{what}");
        }
    }
}

#[test]
fn a_written_file_can_be_read_again_whatever_the_size_of_the_old_one() {
    let folder = TempDir::new().unwrap();
    // Nobody is in the other environments.
    let mut store = StateStore::new(folder.path()).cleaning(false);
    activate_and_attach(&mut store, "7", 1).unwrap();
    let path = folder.path().join("envs.json");
    let kept = fs::read_to_string(&path).unwrap();
    let last = kept.split_once('[').and_then(|(_, kept)| kept.trim_end().strip_suffix("]\n}"));
    let last = last.unwrap();
    // More than is read of all users together.
    let name = "x".repeat(500_000);
    let record = |number: u32| format!("{{\"eid\":\"e{number}\",\"uid\":{},\"username\":\"{name}\"}},", number % 4 + 1);
    let large: String = (0..12).map(record).collect();
    fs::write(&path, format!("{{\"envs\": [{large}{last}]}}")).unwrap();
    activate_and_attach(&mut store, "8", 1).unwrap();
    let notices = store.take_notices();
    assert!(notices.iter().any(|it| it.contains("are left out")), "{notices:?}");
    let bytes = fs::metadata(&path).unwrap().len();
    assert!((3 << 20..6 << 20).contains(&bytes), "{bytes}");
    let environments = store.read().unwrap().environments;
    for eid in ["7", "8"] {
        assert!(environments.iter().any(|it| it.eid == eid), "{eid}");
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
            .map(|number| format!(r#"{{"eid":"other-{number}","uid":{uid},"pids":[{pid_of_others}]}},"#))
            .collect::<String>();
        let path = folder.path().join("envs.json");
        let written = fs::read_to_string(&path).unwrap();
        fs::write(&path, written.replace("\"envs\": [", &format!("\"envs\": [{others}"))).unwrap();
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
