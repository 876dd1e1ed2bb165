//! File systems of a user's own (FUSE): each shows its only file to that user alone, also not to root.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// The longest hang: longer than a test waits for anything, so that who waits for it waits in vain. All programs of the
/// machine that read the variables of all processes hang until the test has ended.
const MOST: Duration = Duration::from_secs(600);

const FILE: &str = "program";

const ROOT: u64 = 1;

/// A mounted file system with one file in it; it ends with the value.
pub struct OwnFileSystem {
    folder: tempfile::TempDir,
}

/// What happens at the first write: the first is told, and the second waited for.
pub(crate) type Hang = (Sender<()>, Receiver<()>);

impl OwnFileSystem {
    /// Mounts a copy of a program for a user; root alone can, on a thread with mounts of its own.
    pub fn with(program: &Path, uid: u32) -> Result<Self> {
        Self::mount(fs::read(program)?, uid, None)
    }

    /// With a file of this content. One that hangs ends with its first write.
    pub(crate) fn mount(content: Vec<u8>, uid: u32, hang: Option<Hang>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut device = OpenOptions::new();
        let device = device.read(true).write(true).open("/dev/fuse");
        let device = device.context("opening /dev/fuse, of the kernel's module fuse")?;
        let descriptor = device.as_raw_fd();
        let options = format!("fd={descriptor},rootmode=40000,user_id={uid},group_id={uid}");
        let options = std::ffi::CString::new(options)?;
        mount("own", folder.path(), "fuse", MountFlags::empty(), options.as_c_str())?;
        std::thread::spawn(move || serve(device, &content, uid, hang.as_ref()));
        Ok(Self { folder })
    }

    pub fn program(&self) -> PathBuf {
        self.folder.path().join(FILE)
    }
}

impl Drop for OwnFileSystem {
    fn drop(&mut self) {
        let _ = unmount(self.folder.path(), UnmountFlags::DETACH);
    }
}

/// Answers until the file system is unmounted, or to the first write of one that hangs, which the end of the file system
/// answers (`include/uapi/linux/fuse.h`).
fn serve(mut device: File, content: &[u8], uid: u32, hang: Option<&Hang>) {
    let mut request = vec![0; 1 << 17];
    let mut opened = 0_u32;
    while let Ok(length) = device.read(&mut request) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap_or_default());
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap_or_default());
        let (operation, unique, node) = (word(4), long(8), long(16));
        let body = &request[40..length.max(40)];
        let answer = match (operation, hang) {
            // FUSE_FORGET and FUSE_INTERRUPT want no answer.
            (2 | 36, _) => continue,
            // FUSE_LOOKUP
            (1, _) if body.split(|byte| *byte == 0).next() == Some(FILE.as_bytes()) => {
                let entry = [ROOT + 1, 0, 60, 60, 0].map(u64::to_ne_bytes).concat();
                Ok([entry, attributes(ROOT + 1, content, uid)].concat())
            }
            (1, _) => Err(libc_error::NOENT),
            // FUSE_GETATTR
            (3, _) => {
                let valid = [60, 0].map(u64::to_ne_bytes).concat();
                Ok([valid, attributes(node, content, uid)].concat())
            }
            // FUSE_READ
            (15, _) => {
                let from = usize::try_from(long(48)).unwrap_or_default().min(content.len());
                let to = from.saturating_add(word(56) as usize).min(content.len());
                Ok(content[from..to].to_vec())
            }
            // FUSE_WRITE
            (16, Some((hangs, ends))) => {
                let _ = hangs.send(());
                let _ = ends.recv_timeout(MOST);
                return;
            }
            // FUSE_INIT: version 7.31, and the smallest answer of all versions.
            (26, _) => {
                let words = [7, 31, 65_536, 0, 0x0001_0001, 4096, 1, 0, 0];
                Ok([words.map(u32::to_ne_bytes).concat(), vec![0; 28]].concat())
            }
            // FUSE_OPEN: of one that hangs, the second one is FOPEN_DIRECT_IO.
            (14, _) => {
                let flags = u32::from(hang.is_some() && opened > 0);
                opened += 1;
                Ok([vec![0; 8], flags.to_ne_bytes().to_vec(), vec![0; 4]].concat())
            }
            // FUSE_OPENDIR
            (27, _) => Ok(vec![0; 16]),
            // FUSE_RELEASE, FUSE_FLUSH, FUSE_RELEASEDIR and FUSE_ACCESS
            (18 | 25 | 29 | 34, _) => Ok(Vec::new()),
            _ => Err(libc_error::NOSYS),
        };
        let (error, answer) = answer.map_or_else(|error| (-error, Vec::new()), |it| (0, it));
        let length = 16 + u32::try_from(answer.len()).unwrap_or_default();
        let mut reply = [length.to_ne_bytes(), error.to_ne_bytes()].concat();
        reply.extend(unique.to_ne_bytes());
        reply.extend(answer);
        // A request that was interrupted takes no answer.
        let _ = device.write(&reply);
    }
}

fn attributes(node: u64, content: &[u8], uid: u32) -> Vec<u8> {
    let (size, mode) = if node == ROOT { (0, 0o040_777) } else { (content.len() as u64, 0o100_777) };
    let longs = [node, size, size.div_ceil(512), 0, 0, 0];
    let words = [0, 0, 0, mode, 1, uid, uid, 0, 4096, 0];
    let longs = longs.map(u64::to_ne_bytes).concat();
    [longs, words.map(u32::to_ne_bytes).concat()].concat()
}

mod libc_error {
    pub(super) const NOENT: i32 = 2;
    pub(super) const NOSYS: i32 = 38;
}
