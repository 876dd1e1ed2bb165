//! Copies of damaged files, so that commands work again and no data is lost.

use std::os::fd::{AsFd, BorrowedFd};

use jiff::Zoned;
use rustix::fs::{AtFlags, Dir, statat};
use rustix::io::Errno;

use crate::files::{Disk, open_folder};
use crate::model::local_time_zone;

/// The most kept copies of each file name, so that repeated damage does not fill the disk.
const MOST_KEPT: usize = 10;

/// Links the file `name` to a second name, which is returned. If a link is impossible, as for a folder or another
/// user's symbolic link, the file is renamed.
pub(super) fn keep_aside(disk: &dyn Disk, directory: BorrowedFd<'_>, name: &str) -> Result<String, Errno> {
    let aside = free_name(directory, &dated(name))?;
    if disk.link(directory, name, &aside).is_err() {
        disk.rename(directory, name, &aside)?;
    }
    forget_oldest(disk, directory, name);
    Ok(aside)
}

/// Moves the file `name` away, whatever its owner. Returns the new name.
pub(super) fn move_aside(disk: &dyn Disk, directory: BorrowedFd<'_>, name: &str) -> Result<String, Errno> {
    let aside = free_name(directory, &dated(name))?;
    disk.rename(directory, name, &aside)?;
    forget_oldest(disk, directory, name);
    Ok(aside)
}

/// `NAME.corrupt-YYYYmmdd-HHMMSS`.
fn dated(name: &str) -> String {
    let now = Zoned::now().with_time_zone(local_time_zone());
    format!("{name}.corrupt-{}", now.strftime("%Y%m%d-%H%M%S"))
}

/// The name, with a number if it is taken.
pub(super) fn free_name(directory: BorrowedFd<'_>, name: &str) -> Result<String, Errno> {
    let mut names = std::iter::once(name.to_owned()).chain((2..100).map(|number| format!("{name}-{number}")));
    names
        .find(|name| {
            let found = statat(directory, name.as_str(), AtFlags::SYMLINK_NOFOLLOW);
            matches!(found, Err(Errno::NOENT))
        })
        .ok_or(Errno::EXIST)
}

/// Removes the oldest copies beyond the limit.
fn forget_oldest(disk: &dyn Disk, directory: BorrowedFd<'_>, name: &str) {
    // A program that cannot list the copies removes none.
    let Ok(list) = open_folder(directory, ".") else {
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
