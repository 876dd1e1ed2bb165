use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;

use super::super::AttachmentState;
use super::*;

fn environment(eid: &str, pids: &[u32], memory: Option<u64>) -> EnvironmentState {
    EnvironmentState {
        eid: eid.to_owned(),
        uid: 1000,
        gpu_memory: memory.map(MemoryAmount::from_bytes),
        members: pids.iter().map(|pid| MemberState::from(*pid)).collect(),
        ..EnvironmentState::default()
    }
}

fn device(index: u32, attachments: &[(&str, Option<u64>)]) -> DeviceState {
    let attachment = |&(eid, memory): &(&str, Option<u64>)| AttachmentState {
        eid: eid.to_owned(),
        gpu_memory: memory.map(MemoryAmount::from_bytes),
        attached_timestamp_seconds: None,
    };
    DeviceState { index, total_memory: None, attachments: attachments.iter().map(attachment).collect() }
}

#[test]
fn a_change_confirms_what_it_takes_and_gives() {
    let before = [environment("e", &[1, 2], None), environment("gone", &[3], None)];
    let devices =
        [device(0, &[("e", Some(8)), ("gone", None)]), device(1, &[("e", None)]), device(2, &[("e", Some(1))])];
    let after = [environment("e", &[2, 4], Some(5)), environment("new", &[5], None)];
    let left = [device(0, &[("e", Some(4)), ("new", Some(1))]), device(2, &[("e", Some(9))])];
    let of_e = |change| ("e".to_owned(), change);
    let of_new = |change| ("new".to_owned(), change);
    assert_eq!(
        changes((&before, &devices), (&after, &left), &HashSet::new()),
        [
            of_e(ConfirmedChange::Left { pid: 1 }),
            of_e(ConfirmedChange::Configured { bytes: 5 }),
            of_e(ConfirmedChange::Reserved { gpu: 0, bytes: 4 }),
            of_e(ConfirmedChange::Released { gpu: 1 }),
            ("gone".to_owned(), ConfirmedChange::Ended),
            of_e(ConfirmedChange::Joined { pid: 4 }),
            of_new(ConfirmedChange::Joined { pid: 5 }),
            of_new(ConfirmedChange::Attached { gpu: 0 }),
        ]
    );
    assert_eq!(changes((&after, &left), (&after, &left), &HashSet::new()), []);
    // A second record by the id of one ends neither.
    let second = EnvironmentState { uid: 1001, ..environment("e", &[9], None) };
    let twice = [after[0].clone(), second];
    assert_eq!(changes((&twice, &[]), (&twice, &[]), &HashSet::new()), []);
}

#[test]
fn a_confirmation_counts_only_in_a_file_that_its_user_alone_can_write() {
    let folder = tempfile::tempdir().unwrap();
    let own = geteuid().as_raw();
    let directory = File::open(folder.path()).unwrap();
    let left = |pid| vec![("e".to_owned(), ConfirmedChange::Left { pid })];
    let confirm = |changes, live: &[EnvironmentState], now_seconds| {
        write(directory.as_fd(), changes, live, now_seconds);
    };
    confirm(left(1), &[], 7.0);
    confirm(left(2), &[], 8.0);
    let times = |uid| -> Vec<f64> {
        let read = read_confirmed(folder.path(), uid);
        read.iter().map(|it| it.at_seconds).collect()
    };
    assert_eq!(times(own), [7.0, 8.0]);
    let path = folder.path().join(name(own));
    fs::copy(&path, folder.path().join(name(own + 1))).unwrap();
    assert_eq!(times(own + 1), [0.0; 0], "another user wrote it");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(times(own), [0.0; 0], "every user may have written it");
    fs::write(&path, "{").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(times(own), [0.0; 0]);
    let live = [environment("e", &[1], None)];
    confirm(vec![("e".to_owned(), ConfirmedChange::Joined { pid: 1000 })], &live, 0.0);
    for number in 1..300 {
        confirm(left(number), &live, f64::from(number));
    }
    let kept = times(own);
    assert_eq!(kept.len(), MOST_CHANGES);
    // The changes that give an environment a member or a device are older than the others that are left.
    assert_eq!([kept[0], kept[1], kept[255]], [0.0, 45.0, 299.0]);
}

#[test]
fn long_ids_leave_the_newest_changes() {
    let eid = "e".repeat(1000);
    let change = |at: u32| Confirmed {
        eid: eid.clone(),
        at_seconds: f64::from(at),
        process: None,
        change: ConfirmedChange::Left { pid: at },
    };
    let text = content((0..256).map(change).collect());
    assert!(text.len() as u64 <= MOST_BYTES);
    let kept: ConfirmedFile = serde_json::from_slice(&text).unwrap();
    assert!(kept.changes.len() > 20);
    assert_eq!(kept.changes.last(), Some(&change(255)));
}

#[test]
fn replaced_changes_do_not_fill_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let directory = File::open(folder.path()).unwrap();
    let of_e = |change| vec![("e".to_owned(), change)];
    let live = [environment("e", &[2], None)];
    for change in [
        ConfirmedChange::Joined { pid: 1 },
        ConfirmedChange::Joined { pid: 2 },
        ConfirmedChange::Attached { gpu: 0 },
        ConfirmedChange::Attached { gpu: 1 },
        ConfirmedChange::Left { pid: 1 },
        ConfirmedChange::Released { gpu: 0 },
    ] {
        write(directory.as_fd(), of_e(change), &live, 7.0);
    }
    let kept = || -> Vec<ConfirmedChange> {
        let read = read_confirmed(folder.path(), geteuid().as_raw());
        read.into_iter().map(|it| it.change).collect()
    };
    let left = [
        ConfirmedChange::Joined { pid: 2 },
        ConfirmedChange::Attached { gpu: 1 },
        ConfirmedChange::Left { pid: 1 },
        ConfirmedChange::Released { gpu: 0 },
    ];
    assert_eq!(kept(), left);
    // Of an environment that ended without a command.
    let other = vec![("other".to_owned(), ConfirmedChange::Left { pid: 3 })];
    write(directory.as_fd(), other, &[], 8.0);
    let taken = ConfirmedChange::Left { pid: 3 };
    assert_eq!(kept(), [left[2].clone(), left[3].clone(), taken.clone()]);
    write(directory.as_fd(), of_e(ConfirmedChange::Ended), &[], 8.0);
    assert_eq!(kept(), [taken, ConfirmedChange::Ended]);
}
