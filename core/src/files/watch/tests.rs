use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tempfile::TempDir;

use super::*;
use crate::patience::until;

fn text(watched: &mut Watched) -> Option<String> {
    watched.changed(|path| fs::read_to_string(path).unwrap_or_else(|error| error.kind().to_string()))
}

/// Looks until a change is found.
fn next(watched: &mut Watched) -> String {
    let mut found = None;
    until(|| {
        found = text(watched);
        found.is_some()
    });
    found.unwrap()
}

/// Looks again and again for longer than a file needs to settle by looks, and finds nothing.
fn nothing_while_written(watched: &mut Watched) {
    // Before the event has come, only the looks count, and they cannot know.
    until(|| watched.entries.is_being_written());
    let end = Instant::now() + BETWEEN_LOOKS + Duration::from_millis(200);
    while Instant::now() < end {
        assert_eq!(text(watched), None);
        thread::sleep(Duration::from_millis(1));
    }
}

/// Looks again and again for some time, and finds nothing. A busy machine may stop this test for so long after the change
/// before `changed` that a look finds it again.
fn nothing_more(watched: &mut Watched, changed: Instant) {
    let end = Instant::now() + Duration::from_millis(200);
    while Instant::now() < end {
        let found = text(watched);
        assert!(found.is_none() || changed.elapsed() >= BETWEEN_LOOKS, "{found:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn watch(content: &str) -> (TempDir, PathBuf, Watched) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, content).unwrap();
    let mut watched = Watched::new(path.clone());
    assert_eq!(text(&mut watched).unwrap(), content);
    (folder, path, watched)
}

#[test]
fn a_file_that_is_truncated_and_written_in_slices_is_taken_when_it_is_closed() {
    let (_folder, path, mut watched) = watch("old");
    let mut file = File::create(&path).unwrap();
    for slice in ["rules: []\n", "# more\n", "never: [root]\n"] {
        file.write_all(slice.as_bytes()).unwrap();
        nothing_while_written(&mut watched);
    }
    drop(file);
    assert_eq!(next(&mut watched), "rules: []\n# more\nnever: [root]\n");
}

#[test]
fn a_file_that_is_removed_and_written_anew_in_slices_is_taken_when_it_is_closed() {
    let (_folder, path, mut watched) = watch("old");
    fs::remove_file(&path).unwrap();
    let mut file = File::create(&path).unwrap();
    nothing_while_written(&mut watched);
    file.write_all(b"new").unwrap();
    nothing_while_written(&mut watched);
    drop(file);
    assert_eq!(next(&mut watched), "new");
}

#[test]
fn a_file_that_a_script_appends_to_line_by_line_is_taken_once() {
    let (_folder, path, mut watched) = watch("old");
    let mut last_written = Instant::now();
    fs::write(&path, "").unwrap();
    for line in 0..10 {
        let before = Instant::now();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        writeln!(file, "{line}").unwrap();
        drop(file);
        // A busy machine may stop this test anywhere between two lines, for longer than a file must be left alone.
        assert!(text(&mut watched).is_none() || last_written.elapsed() >= Duration::from_millis(50));
        last_written = before;
    }
    assert_eq!(next(&mut watched).lines().count(), 10);
}

#[test]
fn an_event_wakes_who_waits_for_a_change() {
    let (_folder, path, mut watched) = watch("old");
    let wake = watched.wake();
    fs::write(&path, "new").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(wake.notified());
    assert_eq!(text(&mut watched).unwrap(), "new");
}

#[test]
fn a_file_that_is_replaced_again_and_again_is_taken_all_the_time() {
    let (folder, path, mut watched) = watch("first");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let new = folder.path().join("new");
            while !over.load(Ordering::SeqCst) {
                fs::write(&new, "whole content").unwrap();
                fs::rename(&new, &path).unwrap();
                thread::sleep(Duration::from_millis(5));
            }
        });
        for _ in 0..20 {
            assert_eq!(next(&mut watched), "whole content");
        }
        over.store(true, Ordering::SeqCst);
    });
}

#[test]
fn each_change_is_found_once_even_if_size_and_time_stay_the_same() {
    let (_folder, path, mut watched) = watch("old");
    let mut changed = Instant::now();
    for content in ["one", "two", "six"] {
        changed = Instant::now();
        fs::write(&path, content).unwrap();
        assert_eq!(next(&mut watched), content);
    }
    nothing_more(&mut watched, changed);
    changed = Instant::now();
    fs::remove_file(&path).unwrap();
    assert_eq!(next(&mut watched), "entity not found");
    nothing_more(&mut watched, changed);
}

#[test]
fn an_unchanged_file_is_not_read_again_whatever_happens_around_it() {
    // Older than this test, and no program writes it.
    let mut watched = Watched::new("/bin/sh".into());
    assert!(watched.changed(|_| ()).is_some());
    let (folder, path, mut other) = watch("old");
    let (_elsewhere, _, mut third) = watch("third");
    // The read that makes certain.
    assert_eq!(next(&mut third), "third");
    fs::write(folder.path().join("neighbour"), "x").unwrap();
    symlink(third.path(), folder.path().join("link")).unwrap();
    fs::remove_file(folder.path().join("link")).unwrap();
    fs::write(&path, "new").unwrap();
    assert_eq!(next(&mut other), "new");
    for _ in 0..100 {
        assert_eq!(text(&mut third), None);
        thread::sleep(Duration::from_millis(3));
    }
    assert!(watched.changed(|_| ()).is_none());
}

#[test]
fn links_are_followed_and_one_that_is_turned_is_a_change() {
    // As Kubernetes does: file -> ..data/file, ..data -> ..VERSION, replaced by a rename.
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for version in ["..1", "..2", "..3"] {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("file"), version).unwrap();
    }
    symlink("..1", at("..data")).unwrap();
    symlink("..data/file", at("file")).unwrap();
    let mut watched = Watched::new(at("file"));
    assert_eq!(text(&mut watched).unwrap(), "..1");
    for version in ["..2", "..3"] {
        symlink(version, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert_eq!(next(&mut watched), version);
    }
    // The folder of the last version is watched too.
    fs::write(at("..3").join("file"), "new").unwrap();
    assert_eq!(next(&mut watched), "new");
}

#[test]
fn a_change_without_an_event_is_found_by_equal_looks() {
    let folder = tempfile::tempdir().unwrap();
    let (_folder, path, mut watched) = watch("old");
    // The kernel reports a write under the name by which the file was opened.
    let other_name = folder.path().join("other");
    fs::hard_link(&path, &other_name).unwrap();
    let mut file = OpenOptions::new().append(true).open(&other_name).unwrap();
    // The change of the number of names is taken.
    next(&mut watched);
    let mut taken = None;
    for slice in ["1", "2", "3"] {
        let changed = Instant::now();
        file.write_all(slice.as_bytes()).unwrap();
        let end = changed + BETWEEN_LOOKS / 2;
        while Instant::now() < end {
            let found = text(&mut watched);
            // A busy machine may stop this test for the whole time between two equal looks.
            assert!(found.is_none() || changed.elapsed() >= BETWEEN_LOOKS, "{found:?}");
            taken = found.or(taken);
            thread::sleep(Duration::from_millis(1));
        }
    }
    until(|| {
        taken = text(&mut watched).or(taken.take());
        taken.as_deref() == Some("old123")
    });
}
