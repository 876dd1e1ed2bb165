//! A file system of a user's own (FUSE): it shows its files to that user alone, also not to root.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// The name of the only file.
const PROGRAM: &str = "program";

const ROOT: u64 = 1;

/// A mounted file system with one program in it; it ends with the value.
#[derive(Debug)]
pub struct OwnFileSystem {
    folder: tempfile::TempDir,
}

impl OwnFileSystem {
    /// Mounts a copy of a program for a user; root alone can, on a thread with mounts of its own.
    pub fn with(program: &Path, uid: u32) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let content = fs::read(program)?;
        let mut device = OpenOptions::new();
        let device = device.read(true).write(true).open("/dev/fuse");
        let device = device.context("opening /dev/fuse, of the kernel's module fuse")?;
        let descriptor = device.as_raw_fd();
        let options = format!("fd={descriptor},rootmode=40000,user_id={uid},group_id={uid}");
        let options = std::ffi::CString::new(options)?;
        let path = folder.path();
        mount("own", path, "fuse", MountFlags::empty(), options.as_c_str())?;
        std::thread::spawn(move || serve(device, &content, uid));
        Ok(Self { folder })
    }

    pub fn program(&self) -> PathBuf {
        self.folder.path().join(PROGRAM)
    }
}

impl Drop for OwnFileSystem {
    fn drop(&mut self) {
        let _ = unmount(self.folder.path(), UnmountFlags::DETACH);
    }
}

/// Answers until the file system is unmounted (`include/uapi/linux/fuse.h`).
fn serve(mut device: File, content: &[u8], uid: u32) {
    let mut request = vec![0; 1 << 17];
    while let Ok(length) = device.read(&mut request) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap_or_default());
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap_or_default());
        let (operation, unique, node) = (word(4), long(8), long(16));
        let body = &request[40..length.max(40)];
        let answer = match operation {
            // FUSE_FORGET and FUSE_INTERRUPT want no answer.
            2 | 36 => continue,
            // FUSE_LOOKUP
            1 if body.split(|byte| *byte == 0).next() == Some(PROGRAM.as_bytes()) => {
                let entry = [ROOT + 1, 0, 60, 60, 0].map(u64::to_ne_bytes).concat();
                Ok([entry, attributes(ROOT + 1, content, uid)].concat())
            }
            1 => Err(libc_error::NOENT),
            // FUSE_GETATTR
            3 => {
                let valid = [60, 0].map(u64::to_ne_bytes).concat();
                Ok([valid, attributes(node, content, uid)].concat())
            }
            // FUSE_READ
            15 => {
                let from = usize::try_from(long(48)).unwrap_or_default().min(content.len());
                let to = from.saturating_add(word(56) as usize).min(content.len());
                Ok(content[from..to].to_vec())
            }
            // FUSE_INIT: version 7.31, and the smallest answer of all versions.
            26 => {
                let words = [7, 31, 65_536, 0, 0x0001_0001, 4096, 1, 0, 0];
                Ok([words.map(u32::to_ne_bytes).concat(), vec![0; 28]].concat())
            }
            // FUSE_OPEN and FUSE_OPENDIR
            14 | 27 => Ok(vec![0; 16]),
            // FUSE_RELEASE, FUSE_FLUSH, FUSE_RELEASEDIR and FUSE_ACCESS
            18 | 25 | 29 | 34 => Ok(Vec::new()),
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
    let (size, mode) = if node == ROOT { (0, 0o040_755) } else { (content.len() as u64, 0o100_755) };
    let longs = [node, size, size.div_ceil(512), 0, 0, 0];
    let words = [0, 0, 0, mode, 1, uid, uid, 0, 4096, 0];
    let longs = longs.map(u64::to_ne_bytes).concat();
    [longs, words.map(u32::to_ne_bytes).concat()].concat()
}

/// Errors as the kernel numbers them.
mod libc_error {
    pub(super) const NOENT: i32 = 2;
    pub(super) const NOSYS: i32 = 38;
}
