use std::fs::{File, Permissions};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, mknodat};
use tempfile::TempDir;

use super::*;
use crate::patience::{PATIENCE, until};

/// For a lock that nobody holds, or releases.
const LONG: Option<Duration> = Some(PATIENCE);

/// For a lock that is held as long as it is waited for.
const SHORT: Option<Duration> = Some(Duration::from_millis(50));

fn acquire(folder: &TempDir, patience: Option<Duration>) -> Result<FileLock, LockError> {
    let directory = File::open(folder.path()).unwrap();
    LockFile {
        directory: directory.as_fd(),
        name: "genv.lock",
        path: &folder.path().join("genv.lock"),
        what: "genv's state",
        next: None,
    }
    .acquire(patience)
}

/// How many wait for this lock, as the kernel's list shows them: behind an arrow, with the inode.
fn waiting_for(lock: &FileLock) -> usize {
    let inode = format!(":{} ", fstat(&lock.file).unwrap().st_ino);
    let locks = fs::read_to_string("/proc/locks").unwrap();
    locks.lines().filter(|line| line.contains("-> FLOCK") && line.contains(&inode)).count()
}

#[test]
fn a_new_lock_file_is_everybodys_and_an_old_one_stays_as_it_is() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("genv.lock");
    drop(acquire(&folder, LONG).unwrap());
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(), 0o666);
    fs::write(&path, "kept").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    drop(acquire(&folder, LONG).unwrap());
    assert_eq!(mode(), 0o644);
    assert_eq!(fs::read(&path).unwrap(), b"kept");
}

#[test]
fn who_holds_it_for_too_long_is_named() {
    let folder = TempDir::new().unwrap();
    let held = acquire(&folder, LONG).unwrap();
    let error = acquire(&folder, SHORT).unwrap_err();
    let LockError::TimedOut { waited, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*waited, Duration::from_millis(50));
    let comm = fs::read_to_string("/proc/self/comm").unwrap();
    let text = error
        .to_string()
        .replace(&folder.path().display().to_string(), "DIR")
        .replace(&std::process::id().to_string(), "PID")
        .replace(comm.trim(), "COMM");
    assert_eq!(
        text,
        "cannot lock genv's state with DIR/genv.lock: process PID (COMM) has held it for 0.05 s: \
         try again, or see what it does"
    );
    drop(held);
    acquire(&folder, LONG).unwrap();
}

#[test]
fn who_waits_gets_it_when_it_is_released_and_who_gave_up_does_not_keep_it() {
    let folder = TempDir::new().unwrap();
    let held = acquire(&folder, LONG).unwrap();
    acquire(&folder, SHORT).unwrap_err();
    let released = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let lock = acquire(&folder, None).unwrap();
            assert!(released.load(Ordering::SeqCst));
            drop(lock);
        });
        // Who gave up waits on, until the lock is released.
        until(|| waiting_for(&held) == 2);
        released.store(true, Ordering::SeqCst);
        drop(held);
        waiting.join().unwrap();
    });
    acquire(&folder, LONG).unwrap();
}

#[test]
fn a_lock_file_that_was_replaced_while_waiting_is_not_enough() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("genv.lock");
    let old = acquire(&folder, LONG).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| acquire(&folder, None).unwrap());
        until(|| waiting_for(&old) == 1);
        fs::remove_file(&path).unwrap();
        drop(old);
        let _new = waiting.join().unwrap();
        acquire(&folder, SHORT).unwrap_err();
    });
}

#[test]
fn nothing_else_than_a_file_of_its_own_is_locked_or_changed() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("genv.lock");
    let victim = folder.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    fs::set_permissions(&victim, Permissions::from_mode(0o600)).unwrap();
    let plants: [(&str, &dyn Fn()); 6] = [
        ("it is a symbolic link", &|| symlink(&victim, &path).unwrap()),
        ("it is a symbolic link", &|| {
            symlink(folder.path().join("absent"), &path).unwrap();
        }),
        ("it is a hard link to a file that has other names", &|| {
            fs::hard_link(&victim, &path).unwrap();
        }),
        ("it is not a regular file", &|| fs::create_dir(&path).unwrap()),
        ("it is not a regular file", &|| {
            mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
        }),
        ("it is not a regular file", &|| {
            UnixListener::bind(&path).unwrap();
        }),
    ];
    for (expected, plant) in plants {
        plant();
        let error = acquire(&folder, None).unwrap_err();
        assert!(matches!(error, LockError::Foreign { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        let mode = fs::metadata(&victim).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert!(!folder.path().join("absent").exists());
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            fs::remove_dir(&path).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
        drop(acquire(&folder, LONG).unwrap());
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn the_kernels_list_tells_who_holds_and_not_who_waits() {
    let locks = "1: FLOCK  ADVISORY  WRITE 41 fe:00:7 0 EOF\n\
                 1: -> FLOCK  ADVISORY  WRITE 42 fe:00:7 0 EOF\n\
                 2: POSIX  ADVISORY  WRITE 43 fe:00:8 0 EOF\n\
                 3: FLOCK  ADVISORY  WRITE 44 fe:00:8 0 EOF\n\
                 4: FLOCK  ADVISORY  READ 45 fe:00:a 0 EOF\n";
    assert_eq!(holder_pid(locks, "fe:00:7"), Some(41));
    assert_eq!(holder_pid(locks, "fe:00:8"), Some(44));
    assert_eq!(holder_pid(locks, "fe:00:a"), Some(45), "one that is shared");
    assert_eq!(holder_pid(locks, "fe:00:9"), None);
    assert_eq!(holder_pid("", "fe:00:9"), None);
}

#[test]
fn the_holder_is_named_unless_three_lists_lack_it() {
    const LIST: &str = "1: FLOCK  ADVISORY  WRITE 41 fe:00:7 0 EOF\n2: FLOCK  ADVISORY  WRITE 44 fe:00:8 0 EOF\n";
    for (lacking, next, expected) in [
        (0, None, Some(41)),
        (2, None, Some(41)),
        (3, None, None),
        // Who holds the lock waits for the next one, whose holder is named.
        (0, Some("fe:00:8"), Some(44)),
        (0, Some("fe:00:9"), Some(41)),
    ] {
        let mut asked = 0;
        let list = || {
            asked += 1;
            Ok(if asked > lacking { LIST } else { "" }.to_owned())
        };
        assert_eq!(holder_in(list, next, "fe:00:7"), expected, "{lacking} {next:?}");
    }
}
