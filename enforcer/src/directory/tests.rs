use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

impl RuntimeDirectory {
    pub(crate) fn temporary() -> (tempfile::TempDir, Self) {
        let folder = tempfile::tempdir().unwrap();
        let directory = Self::open(folder.path()).unwrap();
        (folder, directory)
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_written_file_has_its_content_and_mode() {
    let (folder, directory) = RuntimeDirectory::temporary();
    assert_eq!(directory.read("a").unwrap(), None);
    for (audience, expected) in [(Audience::Own, 0o640), (Audience::Everybody, 0o644)] {
        directory.replace("a", b"text", audience).unwrap();
        assert_eq!(directory.read("a").unwrap().unwrap(), b"text");
        assert_eq!(mode(&folder.path().join("a")), expected);
    }
}

#[test]
fn a_directory_where_others_may_write_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = RuntimeDirectory::open(folder.path()).unwrap_err();
    assert!(error.to_string().contains("others may write there"), "{error}");
    let made = tempfile::tempdir().unwrap();
    RuntimeDirectory::open(made.path().join("new")).unwrap();
    let error = RuntimeDirectory::open(made.path().join("a/b")).unwrap_err();
    assert!(error.to_string().contains("--state-directory"), "{error}");
}

#[test]
fn a_lock_has_one_holder() {
    let (_folder, directory) = RuntimeDirectory::temporary();
    let held = directory.lock("lock", Duration::ZERO).unwrap();
    let error = directory.lock("lock", Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("another process"), "{error}");
    drop(held);
    directory.lock("lock", Duration::ZERO).unwrap();
}

#[test]
fn promise_16_planted_links_and_pipes_are_never_followed() {
    let (folder, directory) = RuntimeDirectory::temporary();
    let other = folder.path().join("other");
    let path = folder.path().join("planted");
    let pipe = |path: &Path| {
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    };
    let plants: [(&str, &dyn Fn()); 3] = [
        ("a symbolic link", &|| symlink(&other, &path).unwrap()),
        ("a hard link", &|| fs::hard_link(&other, &path).unwrap()),
        ("not a regular file", &|| pipe(&path)),
    ];
    for (what, plant) in plants {
        fs::write(&other, "kept").unwrap();
        plant();
        let error = directory.read("planted").unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
        let appended = directory.append("planted", Audience::Own);
        assert!(appended.unwrap_err().to_string().contains(what));
        let locked = directory.lock("planted", Duration::ZERO);
        assert!(locked.unwrap_err().to_string().contains(what));
        // Replacing takes the name and leaves alone what it led to.
        directory.replace("planted", b"new", Audience::Own).unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"kept");
        assert_eq!(fs::read(&path).unwrap(), b"new");
        fs::remove_file(&path).unwrap();
    }
}
