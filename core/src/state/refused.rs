//! `genv-refused`: the number of refused requests for devices. The length of the file is the number: each refusal
//! appends one byte, so that no command waits for another one.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, OFlags, fchmod, fstat, openat, statat};
use rustix::io::{Errno, write};

use crate::files::{self, is_regular};

const NAME: &str = "genv-refused";

/// The number of refused requests.
pub(super) fn number(directory: BorrowedFd<'_>) -> u64 {
    let stat = statat(directory, NAME, AtFlags::SYMLINK_NOFOLLOW).ok();
    let stat = stat.filter(is_regular);
    stat.and_then(|it| u64::try_from(it.st_size).ok()).unwrap_or_default()
}

/// Counts one refused request.
///
/// # Errors
/// The file cannot be written, or another kind of file has its name.
pub(super) fn count(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    let append = OFlags::WRONLY | OFlags::APPEND;
    let file = match files::open(directory, NAME, append) {
        // The kernel may refuse O_CREAT for another user's file in a sticky directory (fs.protected_regular).
        Err(Errno::NOENT) => {
            let new = append | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let file = openat(directory, NAME, new, Mode::from_raw_mode(0o666))?;
            // The mode must not depend on the umask. If another user created the file, that user sets the mode.
            let _ = fchmod(&file, Mode::from_raw_mode(0o666));
            file
        }
        file => file?,
    };
    if !is_regular(&fstat(&file)?) {
        return Err(Errno::INVAL);
    }
    write(file.as_fd(), b".").map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use rustix::fs::{CWD, mkfifoat};

    use super::*;

    #[test]
    fn each_refusal_is_counted_in_a_file_that_all_users_may_write() {
        let folder = tempfile::tempdir().unwrap();
        let directory = File::open(folder.path()).unwrap();
        assert_eq!(number(directory.as_fd()), 0);
        for counted in 1..=3 {
            count(directory.as_fd()).unwrap();
            assert_eq!(number(directory.as_fd()), counted);
        }
        let file = fs::metadata(folder.path().join(NAME)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o666);
    }

    #[test]
    fn a_link_or_pipe_is_neither_read_nor_written() {
        let folder = tempfile::tempdir().unwrap();
        let directory = File::open(folder.path()).unwrap();
        let path = folder.path().join(NAME);
        let other = folder.path().join("other");
        fs::write(&other, "content").unwrap();
        symlink(&other, &path).unwrap();
        count(directory.as_fd()).unwrap_err();
        assert_eq!(number(directory.as_fd()), 0);
        assert_eq!(fs::read(&other).unwrap(), b"content");
        fs::remove_file(&path).unwrap();
        mkfifoat(CWD, &path, Mode::from_raw_mode(0o666)).unwrap();
        count(directory.as_fd()).unwrap_err();
        assert_eq!(number(directory.as_fd()), 0);
    }
}
