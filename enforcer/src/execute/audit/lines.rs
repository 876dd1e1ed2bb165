//! Reading the audit.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;

use rustix::fs::fstat;
use rustix::io::{Errno, pread, retry_on_intr};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{AUDIT_FILE, AuditAction, AuditResult};
use crate::directory::{Audience, FileError, RuntimeDirectory};

/// The part of an audit line that shows the outcome of an action.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(in crate::execute) struct AuditLine {
    pub(in crate::execute) id: String,
    pub(in crate::execute) result: AuditResult,
    pub(in crate::execute) reason: Option<String>,
    pub(in crate::execute) action: AuditAction,
    pub(in crate::execute) rule: String,
    pub(in crate::execute) hostname: String,
    pub(in crate::execute) pid: Option<u32>,
    pub(in crate::execute) start_time_ticks: Option<u64>,
    pub(in crate::execute) eid: Option<String>,
    pub(in crate::execute) gpu: Option<u32>,
}

/// The lines of which the ids satisfy this, in their order. AuditLimit that are damaged are left out.
pub(in crate::execute) fn lines(
    directory: &RuntimeDirectory,
    is_meant: impl Fn(&str) -> bool,
) -> Result<Vec<AuditLine>, FileError> {
    let mut found = Vec::new();
    for_each_line(directory, |bytes| {
        let line = serde_json::from_slice::<AuditLine>(bytes);
        found.extend(line.ok().filter(|line| is_meant(&line.id)));
    })?;
    Ok(found)
}

pub(super) fn for_each_line(directory: &RuntimeDirectory, mut look: impl FnMut(&[u8])) -> Result<(), FileError> {
    let mut file = BufReader::new(File::from(directory.append(AUDIT_FILE, Audience::Own)?));
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let read = file.read_until(b'\n', &mut bytes).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            directory.failed("read", AUDIT_FILE, errno)
        })?;
        if read == 0 {
            return Ok(());
        }
        look(&bytes);
    }
}

/// The longest line.
const TAIL_BYTES: u64 = 1 << 20;

/// The last complete line.
pub(super) fn last_record(file: &OwnedFd) -> Result<Option<Map<String, Value>>, Errno> {
    let length = u64::try_from(fstat(file)?.st_size).unwrap_or_default();
    let from = length.saturating_sub(TAIL_BYTES);
    let mut tail = vec![0; usize::try_from(length - from).unwrap_or_default()];
    let mut filled = 0;
    while filled < tail.len() {
        let rest = &mut tail[filled..];
        match retry_on_intr(|| pread(file, &mut *rest, from + filled as u64))? {
            0 => break,
            read => filled += read,
        }
    }
    let mut lines = tail[..filled].rsplit(|byte| *byte == b'\n');
    Ok(lines.find_map(|line| serde_json::from_slice(line).ok()))
}
