//! The state directory, its files and its lock.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use genv_core::state::is_on_network;
use genv_core::state::{LockError, State, StateDirectory, StateSource as _, StoreError};
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};

use super::Check;
use crate::machine::Machine;
use crate::output::counted;

/// How long the lock may be held by another command: each takes milliseconds.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// All but the type of a mode.
const MODE: u32 = 0o7777;
const STICKY: u32 = 0o1000;
const EVERYBODY: u32 = 0o777;
const EVERYBODYS_FILE: u32 = 0o666;

/// Files that everybody changes.
const FILES: [&str; 4] = ["envs.json", "devices.json", "genv-members.json", "genv.lock"];

/// The directory.
pub(super) fn directory(path: &Path) -> Vec<Check> {
    const NAME: &str = "state directory";
    let shown = path.display();
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return vec![Check::ok(NAME, format!("{shown} is not there yet: the first environment makes it"))];
        }
        Err(error) => {
            let remedy = "set GENV_TMPDIR to a directory that everybody may use";
            return vec![Check::fail(NAME, format!("{shown}: {error}"), remedy)];
        }
    };
    if !found.is_dir() {
        let remedy = "move it away, and genv makes a directory";
        return vec![Check::fail(NAME, format!("{shown} is no directory"), remedy)];
    }
    let (mode, owner) = (found.mode() & MODE, found.uid());
    let described = format!("{shown}, mode {mode:04o}, of uid {owner}");
    let mut checks = vec![if mode & STICKY != 0 {
        Check::fail(
            NAME,
            format!("{described}: its sticky bit lets nobody replace what another user wrote"),
            format!("let its owner run 'chmod 0777 {shown}'"),
        )
    } else if access(path, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).is_err() {
        Check::fail(
            NAME,
            format!("{described}: you may not write to it"),
            format!("let its owner run 'chmod 0777 {shown}'"),
        )
    } else if mode & EVERYBODY != EVERYBODY {
        Check::warn(
            NAME,
            format!("{described}: not everybody may write to it"),
            format!("let its owner run 'chmod 0777 {shown}', unless only some are to use genv"),
        )
    } else {
        Check::ok(NAME, described)
    }];
    checks.push(mount(path));
    checks
}

fn mount(path: &Path) -> Check {
    const NAME: &str = "file system";
    let mount = match statvfs(path) {
        Ok(found) => found,
        Err(errno) => {
            return Check::fail(NAME, errno.to_string(), "see whether it is mounted and well");
        }
    };
    if mount.f_flag.contains(StatVfsMountFlags::RDONLY) {
        let remedy = "set GENV_TMPDIR to a directory on another one";
        return Check::fail(NAME, "it is mounted read-only", remedy);
    }
    if mount.f_blocks > 0 && (mount.f_bavail == 0 || mount.f_files > 0 && mount.f_favail == 0) {
        return Check::fail(NAME, "it is full", "make room on it");
    }
    if is_on_network(path) {
        let found = "it is shared with other machines, whose devices would be taken for this one's";
        return Check::fail(NAME, found, "set GENV_TMPDIR to a directory of this machine alone");
    }
    let free_mib = (mount.f_bavail * mount.f_frsize) >> 20;
    Check::ok(NAME, format!("{free_mib} MiB free"))
}

/// The lock.
pub(super) fn lock(machine: &Machine) -> Option<Check> {
    const NAME: &str = "lock";
    if !machine.state_directory().is_dir() {
        return None;
    }
    Some(match machine.try_lock(LOCK_PATIENCE) {
        Ok(()) => Check::ok(NAME, "nobody holds it"),
        Err(StoreError::Lock(LockError::TimedOut { holder, waited, .. })) => Check::fail(
            NAME,
            format!(
                "{} {} s or longer, so that no environment can be changed",
                holder.as_deref().unwrap_or("somebody has held it for"),
                waited.as_secs_f64()
            ),
            "see what that process does, and end it if it hangs",
        ),
        Err(error) => Check::fail(NAME, error.to_string(), "see above"),
    })
}

/// The files, and what they say.
pub(super) fn files(machine: &Machine) -> (Option<State>, Vec<Check>) {
    const NAME: &str = "state files";
    let directory = machine.state_directory().to_owned();
    let mut checks = Vec::new();
    for name in FILES {
        let path = directory.join(name);
        if let Ok(found) = fs::symlink_metadata(&path)
            && found.is_file()
            && found.mode() & EVERYBODYS_FILE != EVERYBODYS_FILE
        {
            let mode = found.mode() & MODE;
            checks.push(Check::warn(
                NAME,
                format!("{} has mode {mode:04o}: not everybody may read and write it", path.display()),
                format!("let its owner run 'chmod 0666 {}'", path.display()),
            ));
        }
    }
    let aside = set_aside(&directory);
    if !aside.is_empty() {
        checks.push(Check::warn(
            NAME,
            format!("damaged ones were kept: {}", aside.join(", ")),
            format!("see who damaged them, then remove them from {}", directory.display()),
        ));
    }
    // Read as it lies there: asking the machine would tell what is whole in a damaged file.
    let state = match StateDirectory::new(&directory).read() {
        Ok(state) => state,
        Err(error) => {
            let remedy = "see who damaged it";
            checks.push(Check::fail(NAME, error.to_string(), remedy));
            return (None, checks);
        }
    };
    checks.extend(state.warnings.iter().map(|warning| {
        let remedy = "the next change drops it, and keeps a copy of the file";
        Check::warn(NAME, warning, remedy)
    }));
    if checks.is_empty() {
        let environments = counted(state.environments.len(), "environment");
        let devices = counted(state.devices.len(), "device");
        let found = format!("{environments}, {devices}");
        checks.push(Check::ok(NAME, found));
    }
    (Some(state), checks)
}

/// Names of damaged files that were kept.
fn set_aside(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.contains(".corrupt-")).collect();
    names.sort_unstable();
    names
}
