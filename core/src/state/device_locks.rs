//! Exclusive use of devices among those who share them by agreement: `devices/N.lock`, as genv 1.4.3's `genv lock`.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use super::directory;
use super::lock::{FileLock, LockError, LockFile};
use super::store::StoreError;

/// Locks of devices, released when the value is dropped or the process ends. Programs that it
/// starts do not inherit them, so that what they leave running in the background holds no device.
#[derive(Debug)]
pub struct DeviceLocks {
    _locks: Vec<FileLock>,
}

/// Locks devices of the state in this directory, in order of index, so that no two wait for each other. Waits as long
/// as it takes without a patience, and for each device as long as that otherwise.
///
/// # Errors
/// A lock cannot be had.
pub fn lock_devices(
    state_directory: &Path,
    indices: &BTreeSet<u32>,
    patience: Option<Duration>,
) -> Result<DeviceLocks, StoreError> {
    let path = state_directory.join("devices");
    directory::open_or_create(state_directory)?;
    let folder = directory::open_or_create(&path)?;
    let lock = |index: &u32| {
        let name = format!("{index}.lock");
        LockFile {
            directory: folder.as_fd(),
            name: &name,
            path: &path.join(&name),
            what: &format!("device {index}"),
        }
        .acquire(patience)
    };
    let locks: Result<Vec<FileLock>, LockError> = indices.iter().map(lock).collect();
    Ok(DeviceLocks { _locks: locks? })
}
