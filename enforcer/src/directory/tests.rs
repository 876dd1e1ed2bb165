//! Files as they are written, and as others plant them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

fn directory() -> (tempfile::TempDir, RuntimeDirectory) {
    let folder = tempfile::tempdir().unwrap();
    let directory = RuntimeDirectory::open(folder.path()).unwrap();
    (folder, directory)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_written_file_has_its_content_and_mode() {
    let (folder, directory) = directory();
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
    let (_folder, directory) = directory();
    let held = directory.lock("lock", Duration::ZERO).unwrap();
    let error = directory.lock("lock", Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("another process"), "{error}");
    drop(held);
    directory.lock("lock", Duration::ZERO).unwrap();
}

#[test]
fn promise_16_planted_links_and_pipes_are_never_followed() {
    let (folder, directory) = directory();
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

/// A disk of a program that is killed before one of its steps.
#[derive(Debug)]
struct Crash {
    disk: OwnDisk,
    steps_left: std::sync::Mutex<usize>,
}

impl Crash {
    fn step(&self) -> Result<(), Errno> {
        let mut left = self.steps_left.lock().unwrap();
        *left = left.checked_sub(1).ok_or(Errno::INTR)?;
        Ok(())
    }
}

impl Disk for Crash {
    fn create(&self, directory: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
        self.step()?;
        self.disk.create(directory, name)
    }

    fn share(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        self.step()?;
        self.disk.share(file)
    }

    /// Two bytes at a time.
    fn write(&self, file: BorrowedFd<'_>, content: &[u8]) -> Result<usize, Errno> {
        self.step().map_err(|_| Errno::IO)?;
        self.disk.write(file, &content[..content.len().min(2)])
    }

    fn flush(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        self.step()?;
        self.disk.flush(file)
    }

    fn rename(&self, directory: BorrowedFd<'_>, from: &str, to: &str) -> Result<(), Errno> {
        self.step()?;
        self.disk.rename(directory, from, to)
    }

    fn remove(&self, directory: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        self.step()?;
        self.disk.remove(directory, name)
    }
}

#[test]
fn promise_15_a_crash_at_any_write_leaves_the_old_or_the_new_file() {
    let (_folder, directory) = directory();
    let mut steps = 0;
    loop {
        directory.replace("a", b"old file", Audience::Own).unwrap();
        let crash = Crash {
            disk: OwnDisk { audience: Audience::Own, owner: directory.owner },
            steps_left: std::sync::Mutex::new(steps),
        };
        let replaced = directory.replace_on(&crash, "a", b"new file");
        let found = directory.read("a").unwrap().unwrap();
        if replaced.is_ok() {
            assert_eq!(found, b"new file");
            break;
        }
        assert_eq!(found, b"old file");
        steps += 1;
    }
    // One to make the file, one to share it, four writes, one flush, one rename.
    assert_eq!(steps, 8);
}
