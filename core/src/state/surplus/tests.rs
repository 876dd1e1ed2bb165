use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd as _;

use tempfile::TempDir;

use super::*;
use crate::state::data::MemberState;

fn records(uid: u32, numbers: Range<u32>) -> impl Iterator<Item = EnvironmentState> {
    numbers.map(move |number| EnvironmentState {
        eid: format!("{uid}-{number}"),
        uid,
        members: vec![MemberState::from(1)],
        ..EnvironmentState::default()
    })
}

fn kept(records: impl Iterator<Item = EnvironmentState>) -> (Vec<EnvironmentState>, Vec<String>) {
    let folder = TempDir::new().unwrap();
    let mut records = records.collect();
    let warnings = leave_out(&mut records, File::open(folder.path()).unwrap().as_fd());
    (records, warnings)
}

#[test]
fn of_a_user_with_too_many_records_the_first_are_kept_and_all_records_of_others() {
    let all = records(1, 0..20_000).chain(records(2, 0..3)).chain(records(1, 20_000..20_001));
    let (kept, warnings) = kept(all);
    let of = |uid| kept.iter().filter(|it| it.uid == uid).count();
    assert_eq!((of(1), of(2)), (8_192, 3));
    assert_eq!(kept[8_191].eid, "1-8191");
    assert_eq!(warnings, ["11809 records of environments of the user with uid 1 are left out: there are too many"]);
}

#[test]
fn with_too_many_users_the_first_records_of_each_user_are_kept() {
    let all = (1..4).flat_map(|uid| records(uid, 0..8_000)).chain((10..9_000).flat_map(|uid| records(uid, 0..1)));
    let (kept, warnings) = kept(all);
    assert_eq!(kept.len(), 16_384);
    assert_eq!(kept.iter().filter(|it| it.uid >= 10).count(), 8_990);
    assert_eq!(warnings.len(), 3);
}

#[test]
fn large_records_count_by_their_bytes() {
    let large = |it| EnvironmentState { username: Some("x".repeat(500_000)), ..it };
    let (kept, warnings) = kept(records(1, 0..5).map(large).chain(records(2, 0..1)));
    assert_eq!(kept.iter().map(|it| it.uid).collect::<Vec<_>>(), [1, 1, 1, 1, 2]);
    assert_eq!(warnings.len(), 1);
}
