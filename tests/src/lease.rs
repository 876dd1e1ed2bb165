//! A user's lease on a file: no other program can open the file without waiting meanwhile.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use crate::patience::Lines;
use crate::process::Running;

/// Makes a file with this content, takes a write lease on it (fcntl(2)), renames it over another file, and keeps the
/// lease when the kernel asks for it (SIGIO).
const HOLDS: &str = "import fcntl, os, signal, sys
path, content = sys.argv[1:]
signal.signal(signal.SIGIO, signal.SIG_IGN)
new = path + '.leased'
file = os.open(new, os.O_RDWR | os.O_CREAT, 0o666)
os.write(file, content.encode())
os.fchmod(file, 0o666)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
os.rename(new, path)
print('leased', flush=True)
while True: signal.pause()";

/// Replaces a file by a copy with a lease. The lease lasts as long as the value, but at most as long as the kernel
/// allows (45 s).
pub fn lease(path: &Path) -> Result<Running> {
    let content = fs::read_to_string(path).unwrap_or_default();
    let mut python = Command::new("python3");
    python.args(["-c", HOLDS]).arg(path).arg(content);
    let python = python.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut holder = Running::spawn(python)?;
    let out = holder.stdout.take();
    let line = out.map(|out| Lines::of(out).next_line()).transpose()?;
    ensure!(line.as_deref() == Some("leased"), "{line:?}");
    Ok(holder)
}
