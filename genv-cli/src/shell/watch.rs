//! The check for changes of an environment before a shell's prompt, without a program: files that are newer than a stamp.
//!
//! Each shell has its own stamp, in a folder of its user. The stamp's modification time is that of the newest file,
//! taken before the files are read: a later write is newer.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use genv_core::enforcement::{ENFORCER_DIRECTORY, unread_file};
use genv_core::proc::own_uid;
use genv_core::state::{directory_path, is_on_network, watched_files};

/// The folder of stamps, in the login's runtime directory.
const FOLDER: &str = "genv-prompts";

/// Two changes within a tick of the kernel's clock (at least 100 Hz) have the same time. After such a recent change the prompt
/// checks once more.
const TICK: Duration = Duration::from_millis(20);

/// The check of one shell's prompt.
#[derive(Debug)]
pub(crate) struct Watch {
    stamp: PathBuf,
    files: Vec<PathBuf>,
    /// The stamp's time.
    seen: SystemTime,
}

impl Watch {
    /// Reads the times of the files. `None`: the prompt checks nothing, since the files are on a network or there is no folder
    /// for stamps.
    pub(crate) fn begin(pid: u32) -> Option<Self> {
        let state = directory_path(env::var_os("GENV_TMPDIR").as_deref());
        if is_on_network(&state) {
            return None;
        }
        let mut files = watched_files(&state);
        files.push(Path::new(ENFORCER_DIRECTORY).join(unread_file(own_uid())));
        let changed = |file: &PathBuf| fs::metadata(file).and_then(|it| it.modified()).ok();
        let newest = files.iter().filter_map(changed).max();
        let newest = newest.unwrap_or(SystemTime::UNIX_EPOCH);
        let is_recent = newest.elapsed().is_ok_and(|age| age < TICK);
        let seen = if is_recent { newest - TICK } else { newest };
        Some(Self { stamp: folder()?.join(pid.to_string()), files, seen })
    }

    /// Writes the stamp. Before the first write, removes the stamps of ended shells.
    pub(crate) fn keep(&self) -> io::Result<()> {
        if !self.stamp.exists() {
            remove_left(self.stamp.parent().unwrap_or(Path::new("/")));
        }
        File::create(&self.stamp)?.set_modified(self.seen)
    }

    /// Removes the stamp.
    pub(crate) fn forget(&self) {
        // After an error the next shell removes the stamp.
        let _ = fs::remove_file(&self.stamp);
    }

    /// The time of the last check; absent before the first one.
    pub(crate) fn since(&self) -> Option<SystemTime> {
        fs::metadata(&self.stamp).and_then(|it| it.modified()).ok()
    }

    /// The stamp and the files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = OsString> {
        let all = std::iter::once(&self.stamp).chain(&self.files);
        all.map(|path| path.clone().into_os_string())
    }
}

/// The user's folder of stamps. Created if necessary.
fn folder() -> Option<PathBuf> {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|it| it.is_absolute() && fs::symlink_metadata(it).is_ok_and(|it| is_own(&it)));
    let folder =
        runtime.map_or_else(|| env::temp_dir().join(format!("{FOLDER}-{}", own_uid())), |runtime| runtime.join(FOLDER));
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return None,
        _ => {}
    }
    let is_ours = fs::symlink_metadata(&folder).is_ok_and(|it| is_own(&it));
    (is_ours && !is_on_network(&folder)).then_some(folder)
}

/// Whether this is a folder of the user that no other user can write to.
fn is_own(found: &Metadata) -> bool {
    found.is_dir() && found.uid() == own_uid() && found.mode() & 0o022 == 0
}

/// Removes the stamps of ended shells.
fn remove_left(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let ended = !Path::new("/proc").join(&name).exists();
        if ended && name.to_str().is_some_and(|name| name.parse::<u32>().is_ok()) {
            // Another shell may remove it at the same time.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_other_users_can_write_to_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;

        let place = tempfile::tempdir().unwrap();
        let found = || fs::symlink_metadata(place.path()).unwrap();
        let allow = |mode| fs::set_permissions(place.path(), fs::Permissions::from_mode(mode));
        allow(0o755).unwrap();
        assert!(is_own(&found()));
        allow(0o777).unwrap();
        assert!(!is_own(&found()));
        let link = place.path().join("link");
        std::os::unix::fs::symlink(place.path(), &link).unwrap();
        assert!(!is_own(&fs::symlink_metadata(&link).unwrap()));
    }

    #[test]
    fn a_file_that_is_written_after_the_check_is_newer_than_the_stamp() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, "1").unwrap();
        let watch = Watch {
            stamp: place.path().join("stamp"),
            files: vec![file.clone()],
            seen: fs::metadata(&file).unwrap().modified().unwrap(),
        };
        watch.keep().unwrap();
        let newer = || fs::metadata(&file).unwrap().modified().unwrap() > watch.since().unwrap();
        assert!(!newer());
        std::thread::sleep(TICK);
        fs::write(&file, "2").unwrap();
        assert!(newer());
        watch.forget();
        assert_eq!(watch.since(), None);
    }
}
