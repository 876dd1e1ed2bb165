//! Exclusive use of devices among users who agree to lock them: `devices/N.lock`, as `genv lock` of genv 1.4.3.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use super::directory;
use super::failure::StoreError;
use crate::files::{FileLock, LockError, LockFile};

/// Locks of devices, released when the value is dropped or the process ends. Programs that the process starts do not
/// inherit the locks, so that a program in the background holds no device.
#[derive(Debug)]
pub struct DeviceLocks {
    _locks: Vec<FileLock>,
}

/// Locks devices of the state in this directory, in order of index, so that two commands never wait for each other.
/// Waits at most `patience` for each device; without it, without a limit.
///
/// # Errors
/// A lock cannot be acquired.
pub fn lock_devices(
    state_directory: &Path,
    indices: &BTreeSet<u32>,
    patience: Option<Duration>,
) -> Result<DeviceLocks, StoreError> {
    let path = state_directory.join("devices");
    let directory = directory::open_or_create(state_directory)?;
    let folder = directory::open_or_create_within(directory.as_fd(), "devices", &path)?;
    let lock = |index: &u32| {
        let name = format!("{index}.lock");
        LockFile {
            directory: folder.as_fd(),
            name: &name,
            path: &path.join(&name),
            what: &format!("device {index}"),
            next: None,
        }
        .acquire(patience)
    };
    let locks: Result<Vec<FileLock>, LockError> = indices.iter().map(lock).collect();
    Ok(DeviceLocks { _locks: locks? })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    use tempfile::TempDir;

    use super::*;
    use crate::patience::PATIENCE;

    /// For locks that nobody holds, or only for a moment: who gave up gets the lock once, and releases it.
    const LONG: Option<Duration> = Some(PATIENCE);

    /// For a lock that is held as long as it is waited for.
    const SHORT: Option<Duration> = Some(Duration::from_millis(50));

    #[test]
    fn each_device_is_locked_by_one_process_and_its_children_do_not_keep_the_lock() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("genv");
        let held = lock_devices(&path, &[0, 2].into(), LONG).unwrap();
        for (name, mode) in [("devices", 0o777), ("devices/0.lock", 0o666), ("devices/2.lock", 0o666)] {
            let found = std::fs::metadata(path.join(name)).unwrap();
            assert_eq!(found.permissions().mode() & 0o7777, mode, "{name}");
        }
        lock_devices(&path, &[1].into(), LONG).unwrap();
        let error = lock_devices(&path, &[1, 2].into(), SHORT).unwrap_err();
        assert!(matches!(&error, StoreError::Lock(LockError::TimedOut { what, .. }) if what == "device 2"));
        // Locks of the failed call are released.
        lock_devices(&path, &[1].into(), LONG).unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        drop(held);
        let locked = lock_devices(&path, &[0, 1, 2].into(), LONG);
        child.kill().unwrap();
        child.wait().unwrap();
        locked.unwrap();
    }

    #[test]
    fn a_link_in_the_folders_place_is_not_followed() {
        let folder = TempDir::new().unwrap();
        let elsewhere = TempDir::new().unwrap();
        symlink(elsewhere.path(), folder.path().join("devices")).unwrap();
        let error = lock_devices(folder.path(), &[0].into(), SHORT).unwrap_err();
        assert!(error.to_string().contains("it is a symbolic link"), "{error}");
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}
