//! A process whose variables the kernel does not show for a while.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::patience::{PATIENCE, until};
use crate::process::Running;
use crate::victim::{as_victim, victim};

/// The longest hang: longer than a test waits for anything, so that who waits for it waits in vain. All programs of the
/// machine that read the variables of all processes hang until the test has ended.
const MOST: Duration = Duration::from_secs(600);

/// Maps a page, writes to it, and maps the file once more. The kernel first writes the page to the file, and holds the
/// lock of this process's memory meanwhile.
const HANGS: &str = "import mmap, os, sys
first = os.open(sys.argv[1], os.O_RDWR)
direct = os.open(sys.argv[1], os.O_RDWR)
page = mmap.mmap(first, 4096, mmap.MAP_SHARED)
page[0] = 1
mmap.mmap(direct, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)";

/// A process of the victim that waits for its own file system (FUSE). It goes on, and ends, with the value.
#[derive(Debug)]
pub struct Hanging {
    folder: tempfile::TempDir,
    goes_on: Option<Sender<()>>,
    process: Running,
}

impl Hanging {
    /// Starts such a process with these variables. This needs root, and a thread with its own mounts.
    pub fn start(environment: &[(&str, &str)]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.context("opening /dev/fuse, of the kernel's module fuse")?;
        let (descriptor, uid) = (device.as_raw_fd(), victim());
        let options = format!("fd={descriptor},rootmode=40000,user_id={uid},group_id={uid}");
        let options = std::ffi::CString::new(options)?;
        let path = folder.path();
        mount("hangs", path, "fuse", MountFlags::empty(), options.as_c_str())?;
        let (hangs, hung) = channel();
        let (goes_on, ends) = channel();
        std::thread::spawn(move || serve(device, uid, &hangs, &ends));
        let mut python = Command::new("python3");
        python.args(["-c", HANGS]).arg(path.join("file")).env_clear();
        python.env("PATH", "/usr/bin:/bin").envs(environment.iter().copied());
        let process = Running::spawn(as_victim(python.stdin(Stdio::null())))?;
        let hanging = Self { folder, goes_on: Some(goes_on), process };
        ensure!(hung.recv_timeout(PATIENCE).is_ok(), "it never hung");
        // The kernel asks the file system just before the process waits.
        let stat = format!("/proc/{}/stat", hanging.pid());
        until("it waits", || Ok(std::fs::read_to_string(&stat)?.contains(") D ")))?;
        Ok(hanging)
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Releases the process.
    pub fn release(&mut self) {
        self.goes_on = None;
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.release();
        let _ = unmount(self.folder.path(), UnmountFlags::DETACH);
    }
}

/// Answers requests up to the first write; the end of the file system answers the write (`include/uapi/linux/fuse.h`).
fn serve(mut device: File, uid: u32, hangs: &Sender<()>, ends: &Receiver<()>) {
    let mut request = vec![0; 1 << 17];
    let mut opened = 0_u32;
    while device.read(&mut request).is_ok() {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap_or_default());
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap_or_default());
        let answer = match word(4) {
            // FUSE_FORGET and FUSE_INTERRUPT want no answer.
            2 | 36 => continue,
            // FUSE_LOOKUP
            1 => [[2, 0, 60, 60, 0].map(u64::to_ne_bytes).concat(), attributes(2, uid)].concat(),
            // FUSE_GETATTR
            3 => [[60, 0].map(u64::to_ne_bytes).concat(), attributes(long(16), uid)].concat(),
            // FUSE_READ
            15 => vec![0; 4096],
            // FUSE_WRITE
            16 => {
                let _ = hangs.send(());
                let _ = ends.recv_timeout(MOST);
                return;
            }
            // FUSE_INIT: version 7.31
            26 => {
                let words = [7, 31, 4096, 0, 0x0001_0001, 4096, 1, 0, 0];
                [words.map(u32::to_ne_bytes).concat(), vec![0; 28]].concat()
            }
            // FUSE_OPEN: the second one is FOPEN_DIRECT_IO.
            14 => {
                let flags = u32::from(opened > 0);
                opened += 1;
                [vec![0; 8], flags.to_ne_bytes().to_vec(), vec![0; 4]].concat()
            }
            // FUSE_OPENDIR
            27 => vec![0; 16],
            _ => Vec::new(),
        };
        let length = 16 + u32::try_from(answer.len()).unwrap_or_default();
        let unique = long(8);
        let mut reply = [length.to_ne_bytes(), 0_i32.to_ne_bytes()].concat();
        reply.extend(unique.to_ne_bytes());
        reply.extend(answer);
        // An interrupted request takes no answer.
        let _ = device.write(&reply);
    }
}

fn attributes(node: u64, uid: u32) -> Vec<u8> {
    let (size, mode) = if node == 1 { (0, 0o040_777) } else { (4096, 0o100_666) };
    let longs = [node, size, 8, 0, 0, 0].map(u64::to_ne_bytes).concat();
    let words = [0, 0, 0, mode, 1, uid, uid, 0, 4096, 0].map(u32::to_ne_bytes);
    [longs, words.concat()].concat()
}
