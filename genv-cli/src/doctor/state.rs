//! Checks of the state directory, its files and its lock.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use genv_core::proc::username;
use genv_core::state::is_on_network;
use genv_core::state::{LockError, State, StateDirectory, StateSource as _, StoreError};
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};

use super::Check;
use crate::machine::Machine;
use crate::output::counted;

/// Time limit for the lock: other commands hold it for milliseconds.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// The bits of a mode without the file type.
const MODE: u32 = 0o7777;
const STICKY: u32 = 0o1000;
const ALL_RIGHTS: u32 = 0o777;
const READ_WRITE_FOR_ALL: u32 = 0o666;

/// The most environments of genv 1.x that are named.
const MOST_NAMED: usize = 5;

/// Files that all users change.
const FILES: [&str; 3] = ["state.json", "state-copy.json", "genv.lock"];

pub(super) fn directory(path: &Path) -> Vec<Check> {
    const NAME: &str = "state directory";
    let shown = path.display();
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return vec![Check::ok(NAME, format!("{shown} does not exist yet: the first environment creates it"))];
        }
        Err(error) => {
            let remedy = "set GENV_TMPDIR to a directory that all users may use";
            return vec![Check::fail(NAME, format!("{shown}: {error}"), remedy)];
        }
    };
    if !found.is_dir() {
        let remedy = "move it away, and genv creates a directory";
        return vec![Check::fail(NAME, format!("{shown} is not a directory"), remedy)];
    }
    let (mode, owner) = (found.mode() & MODE, found.uid());
    let described = format!("{shown}, mode {mode:04o}, of uid {owner}");
    let mut checks = vec![if mode & STICKY != 0 {
        Check::fail(
            NAME,
            format!("{described}: with its sticky bit no user can replace files of other users"),
            format!("let its owner run 'chmod 0777 {shown}'"),
        )
    } else if access(path, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).is_err() {
        Check::fail(
            NAME,
            format!("{described}: you may not write to it"),
            format!("let its owner run 'chmod 0777 {shown}'"),
        )
    } else if mode & ALL_RIGHTS != ALL_RIGHTS {
        Check::warn(
            NAME,
            format!("{described}: some users may not write to it"),
            format!("let its owner run 'chmod 0777 {shown}', unless only some users should use genv"),
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
            return Check::fail(NAME, errno.to_string(), "see whether it is mounted and works");
        }
    };
    if mount.f_flag.contains(StatVfsMountFlags::RDONLY) {
        let remedy = "set GENV_TMPDIR to a directory on another file system";
        return Check::fail(NAME, "it is mounted read-only", remedy);
    }
    if mount.f_blocks > 0 && (mount.f_bavail == 0 || mount.f_files > 0 && mount.f_favail == 0) {
        return Check::fail(NAME, "it is full", "free some space on it");
    }
    if is_on_network(path) {
        let found = "it is shared with other machines, whose devices would be mixed up with this machine's";
        return Check::fail(NAME, found, "set GENV_TMPDIR to a local directory");
    }
    let free_mib = (mount.f_bavail * mount.f_frsize) >> 20;
    Check::ok(NAME, format!("{free_mib} MiB free"))
}

pub(super) fn lock(machine: &Machine) -> Option<Check> {
    const NAME: &str = "lock";
    if !machine.state_directory().is_dir() {
        return None;
    }
    Some(match machine.try_lock(LOCK_PATIENCE) {
        Ok(()) => Check::ok(NAME, "it is free"),
        Err(StoreError::Lock(LockError::TimedOut { holder, waited, .. })) => Check::fail(
            NAME,
            format!(
                "{} {} s or longer, so that no environment can be changed",
                holder.as_deref().unwrap_or("another process has held it for"),
                waited.as_secs_f64()
            ),
            "see what this process does, and end it if it hangs",
        ),
        Err(error) => Check::fail(NAME, error.to_string(), "see above"),
    })
}

/// Checks the files. Also returns the state, if it can be read.
pub(super) fn files(machine: &Machine) -> (Option<State>, Vec<Check>) {
    const NAME: &str = "state files";
    let directory = machine.state_directory().to_owned();
    let mut checks = Vec::new();
    for name in FILES {
        let path = directory.join(name);
        if let Ok(found) = fs::symlink_metadata(&path)
            && found.is_file()
            && found.mode() & READ_WRITE_FOR_ALL != READ_WRITE_FOR_ALL
        {
            let mode = found.mode() & MODE;
            checks.push(Check::warn(
                NAME,
                format!("{} has mode {mode:04o}: some users may not read and write it", path.display()),
                format!("let its owner run 'chmod 0666 {}'", path.display()),
            ));
        }
    }
    let aside = set_aside(&directory);
    if !aside.is_empty() {
        checks.push(Check::warn(
            NAME,
            format!("copies of damaged files: {}", aside.join(", ")),
            format!("find the cause of the damage, then remove them from {}", directory.display()),
        ));
    }
    // Reads the file directly: `Machine` would return the copy of a damaged file.
    let state = match StateDirectory::new(&directory).read() {
        Ok(state) => state,
        Err(error) => {
            let remedy = "find the cause of the damage";
            checks.push(Check::fail(NAME, error.to_string(), remedy));
            return (None, checks);
        }
    };
    checks.extend(state.warnings.iter().map(|warning| {
        let remedy = "the next change goes on without what is left out";
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

/// Names the environments of a genv 1.x that is still used here.
pub(super) fn earlier_genv(directory: &Path) -> Option<Check> {
    let environments = StateDirectory::new(directory).environments_of_genv1();
    let named = environments.iter().take(MOST_NAMED);
    let named: Vec<String> = named.map(|it| format!("{} of {}", it.eid.escape_debug(), username(it.uid))).collect();
    let more = environments.len() - named.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!named.is_empty()).then(|| {
        let found = format!(
            "genv 1.x has environments of its own here ({}{more}): the two programs may give out a device twice",
            named.join(", ")
        );
        Check::warn("genv 1.x", found, "remove genv 1.x ('pip uninstall genv'), and let its users open new shells")
    })
}

/// The names of copies of damaged files.
fn set_aside(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.contains(".corrupt-")).collect();
    names.sort_unstable();
    names
}
