//! A process whose variables the kernel does not show for a while.

use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};

use anyhow::{Result, ensure};

use crate::own_file_system::OwnFileSystem;
use crate::patience::{PATIENCE, until};
use crate::process::Running;
use crate::victim::{as_victim, victim};

/// Maps a page, writes to it, and maps the file once more. The kernel first writes the page to the file, and holds the
/// lock of this process's memory meanwhile.
const HANGS: &str = "import mmap, os, sys
first = os.open(sys.argv[1], os.O_RDWR)
direct = os.open(sys.argv[1], os.O_RDWR)
page = mmap.mmap(first, 4096, mmap.MAP_SHARED)
page[0] = 1
mmap.mmap(direct, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)";

/// A process of the victim that waits for its own file system. It goes on, and ends, with the value.
pub struct Hanging {
    // The fields are dropped in this order.
    goes_on: Option<Sender<()>>,
    _file_system: OwnFileSystem,
    process: Running,
}

impl Hanging {
    /// Starts such a process with these variables. This needs root, and a thread with its own mounts.
    pub fn start(environment: &[(&str, &str)]) -> Result<Self> {
        let (hangs, hung) = channel();
        let (goes_on, ends) = channel();
        let file_system = OwnFileSystem::mount(vec![0; 4096], victim(), Some((hangs, ends)))?;
        let mut python = Command::new("python3");
        python.args(["-c", HANGS]).arg(file_system.program()).env_clear();
        python.env("PATH", "/usr/bin:/bin").envs(environment.iter().copied());
        let process = Running::spawn(as_victim(python.stdin(Stdio::null())))?;
        let hanging = Self { goes_on: Some(goes_on), _file_system: file_system, process };
        ensure!(hung.recv_timeout(PATIENCE).is_ok(), "it never hung");
        // The kernel asks the file system just before the process waits.
        let stat = format!("/proc/{}/stat", hanging.pid());
        until("it waits", || Ok(std::fs::read_to_string(&stat)?.contains(") D ")))?;
        Ok(hanging)
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn release(&mut self) {
        self.goes_on = None;
    }
}
