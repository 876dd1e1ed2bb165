use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;

use super::super::AttachmentState;
use super::*;

fn environment(eid: &str, pids: &[u32], memory: Option<u64>) -> EnvironmentState {
    EnvironmentState {
        eid: eid.to_owned(),
        uid: 1000,
        username: None,
        created_timestamp_seconds: None,
        name: None,
        gpus: None,
        gpu_memory: memory.map(MemoryAmount::from_bytes),
        pids: pids.to_vec(),
        kernel_ids: Vec::new(),
    }
}

fn device(index: u32, attachments: &[(&str, Option<u64>)]) -> DeviceState {
    let attachment = |&(eid, memory): &(&str, Option<u64>)| AttachmentState {
        eid: eid.to_owned(),
        gpu_memory: memory.map(MemoryAmount::from_bytes),
        attached_timestamp_seconds: None,
    };
    DeviceState {
        index,
        total_memory: None,
        attachments: attachments.iter().map(attachment).collect(),
    }
}

#[test]
fn what_a_change_takes_is_noted_and_what_it_gives_is_not() {
    let before = [
        environment("e", &[1, 2], None),
        environment("gone", &[3], None),
    ];
    let devices = [
        device(0, &[("e", Some(8)), ("gone", None)]),
        device(1, &[("e", None)]),
        device(2, &[("e", Some(1))]),
    ];
    let after = [
        environment("e", &[2, 4], Some(5)),
        environment("new", &[5], None),
    ];
    let left = [
        device(0, &[("e", Some(4)), ("new", Some(1))]),
        device(2, &[("e", Some(9))]),
    ];
    let of_e = |change| ("e".to_owned(), change);
    assert_eq!(
        taken((&before, &devices), (&after, &left)),
        [
            of_e(ConfirmedChange::Left { pid: 1 }),
            of_e(ConfirmedChange::Configured { bytes: 5 }),
            of_e(ConfirmedChange::Reserved { gpu: 0, bytes: 4 }),
            of_e(ConfirmedChange::Released { gpu: 1 }),
            ("gone".to_owned(), ConfirmedChange::Ended),
        ]
    );
    assert_eq!(taken((&after, &left), (&after, &left)), []);
}

#[test]
fn a_file_is_believed_only_if_its_user_alone_wrote_it() {
    let folder = tempfile::tempdir().unwrap();
    let own = geteuid().as_raw();
    let directory = File::open(folder.path()).unwrap();
    let ended = || vec![("e".to_owned(), ConfirmedChange::Ended)];
    write(directory.as_fd(), ended(), 7.0);
    write(directory.as_fd(), ended(), 8.0);
    let times = |uid| -> Vec<f64> {
        let read = read_confirmed(folder.path(), uid);
        read.iter().map(|it| it.at_seconds).collect()
    };
    assert_eq!(times(own), [7.0, 8.0]);
    let path = folder.path().join(name(own));
    fs::copy(&path, folder.path().join(name(own + 1))).unwrap();
    assert_eq!(times(own + 1), [0.0; 0], "another user wrote it");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(times(own), [0.0; 0], "anybody may have written it");
    fs::write(&path, "{").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(times(own), [0.0; 0]);
    for number in 0..300 {
        write(directory.as_fd(), ended(), f64::from(number));
    }
    assert_eq!(times(own).len(), MOST_CHANGES);
    assert_eq!(times(own).last(), Some(&299.0));
}
