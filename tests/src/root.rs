//! What only root can give a test: users, and mounts that nobody else sees.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The uid of the first of [`users`], and of nobody on any machine.
pub const FIRST_UID: u32 = 54_321;

pub fn require_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "cannot run the suite root: it starts processes of other users, and mounts file systems. Run it as root: sudo scripts/test root"
    );
}

/// Runs on a thread of its own, whose mounts and rights go with it.
pub fn apart<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let done = scope.spawn(run).join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Gives this thread, and what it starts, mounts of its own.
pub fn own_mounts() {
    // SAFETY: unsharing the file system makes no file descriptor invalid.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("a mount namespace can be made");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).expect("mounts can be made private");
}

/// Gives this thread, and what it starts, a network of its own, in which there is only 127.0.0.1.
pub fn own_network() -> Result<()> {
    // SAFETY: what is open stays open, in the network that it is of.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("a network namespace can be made");
    let mut ip = Command::new("ip");
    let status = ip.args(["link", "set", "lo", "up"]).status();
    let status = status.context("starting ip, of the Debian package iproute2")?;
    ensure!(status.success(), "ip ended with {status}");
    Ok(())
}

/// Users of these names, from [`FIRST_UID`] on, and Unix groups with their members, for a thread with [`own_mounts`] and
/// what it starts. `folder` takes the files.
pub fn users(folder: &Path, names: &[&str], groups: &[(&str, &[&str])]) -> Result<()> {
    users_from(FIRST_UID, folder, names, groups)
}

/// As [`users`], from another uid on.
pub fn users_from(first_uid: u32, folder: &Path, names: &[&str], groups: &[(&str, &[&str])]) -> Result<()> {
    let (mut passwd, mut group) = (fs::read_to_string("/etc/passwd")?, fs::read_to_string("/etc/group")?);
    // Of the machine's own users it tells nothing.
    let mut shadow = String::new();
    for (uid, name) in (first_uid..).zip(names) {
        shadow.push_str(&format!("{name}:*:20000:0:99999:7:::\n"));
        passwd.push_str(&format!("{name}:x:{uid}:{uid}::/nonexistent:/bin/sh\n"));
        group.push_str(&format!("{name}:x:{uid}:\n"));
    }
    for (gid, (name, members)) in (FIRST_UID + 1000..).zip(groups) {
        group.push_str(&format!("{name}:x:{gid}:{}\n", members.join(",")));
    }
    for (name, content) in [("passwd", passwd), ("shadow", shadow), ("group", group)] {
        show(folder, name, &content)?;
    }
    Ok(())
}

/// Names a directory service for subordinate uids in `/etc/nsswitch.conf`, for a thread with [`own_mounts`] and what it
/// starts.
pub fn subordinate_uids_of_a_directory(folder: &Path) -> Result<()> {
    let services = fs::read_to_string("/etc/nsswitch.conf")?;
    show(folder, "nsswitch.conf", &(services + "\nsubid: files sss\n"))
}

/// Ranges of subordinate uids, as lines of subuid(5), for a thread with [`own_mounts`] and what it starts.
pub fn subordinate_uids(folder: &Path, lines: &str) -> Result<()> {
    show(folder, "subuid", lines).context("it is of the Debian package passwd")
}

fn show(folder: &Path, name: &str, content: &str) -> Result<()> {
    let own = folder.join(name);
    fs::write(&own, content)?;
    mount_bind(&own, Path::new("/etc").join(name)).with_context(|| format!("showing another /etc/{name}"))
}
