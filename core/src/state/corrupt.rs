//! Keeping damaged files aside, so that commands work again and nothing is lost.

use std::os::fd::{AsFd, BorrowedFd};

use jiff::Zoned;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, statat};
use rustix::io::Errno;

use super::atomic::Disk;
use crate::model::local_time_zone;

/// How many damaged files are kept of each name: who damages them again and again shall not fill the disk.
const MOST_KEPT: usize = 10;

/// Keeps what has this name under another one, which is returned. It stays where it is too, unless only moving it is
/// allowed: of a folder there is one name, and of another user's link.
pub(super) fn keep_aside(disk: &dyn Disk, directory: BorrowedFd<'_>, name: &str) -> Result<String, Errno> {
    let aside = free_name(directory, name)?;
    if disk.link(directory, name, &aside).is_err() {
        disk.rename(directory, name, &aside)?;
    }
    forget_oldest(disk, directory, name);
    Ok(aside)
}

/// Moves the file `name` away, whatever its owner. Returns the new name.
pub(super) fn move_aside(disk: &dyn Disk, directory: BorrowedFd<'_>, name: &str) -> Result<String, Errno> {
    let aside = free_name(directory, name)?;
    disk.rename(directory, name, &aside)?;
    forget_oldest(disk, directory, name);
    Ok(aside)
}

/// `NAME.corrupt-YYYYmmdd-HHMMSS`, with a number if that is taken.
fn free_name(directory: BorrowedFd<'_>, name: &str) -> Result<String, Errno> {
    let now = Zoned::now().with_time_zone(local_time_zone());
    let aside = format!("{name}.corrupt-{}", now.strftime("%Y%m%d-%H%M%S"));
    let mut names = std::iter::once(aside.clone()).chain((2..100).map(|n| format!("{aside}-{n}")));
    names
        .find(|name| {
            let found = statat(directory, name.as_str(), AtFlags::SYMLINK_NOFOLLOW);
            matches!(found, Err(Errno::NOENT))
        })
        .ok_or(Errno::EXIST)
}

/// Removes the oldest of too many.
fn forget_oldest(disk: &dyn Disk, directory: BorrowedFd<'_>, name: &str) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Whoever cannot list them keeps them all.
    let Ok(list) = openat(directory, ".", flags, Mode::empty()) else {
        return;
    };
    let prefix = format!("{name}.corrupt-");
    let mut kept: Vec<String> = Dir::read_from(list.as_fd())
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned))
        .filter(|entry| entry.starts_with(&prefix))
        .collect();
    kept.sort_unstable();
    let excess = kept.len().saturating_sub(MOST_KEPT);
    for oldest in &kept[..excess] {
        let _ = disk.remove(directory, oldest);
    }
}
