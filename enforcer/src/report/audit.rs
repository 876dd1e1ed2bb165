//! The audit's files: the one that is written, and those that logrotate made of it, also compressed.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;
use std::time::UNIX_EPOCH;

use anyhow::anyhow;
use flate2::bufread::MultiGzDecoder;
use rustix::fs::{CWD, OFlags};

use crate::execute::audit::AUDIT_FILE;

/// A line that is longer is none of the audit's.
const LONGEST_LINE_BYTES: u64 = 1 << 20;

/// One of them, open.
#[derive(Debug)]
pub(super) struct AuditFile {
    pub(super) name: String,
    file: File,
    /// When it was written last, Unix time.
    written_seconds: f64,
}

/// Those that were written since then, the oldest first. All are open, so that none is missed or read twice if they are
/// rotated now.
pub(super) fn files(folder: &Path, from_seconds: f64) -> anyhow::Result<Vec<AuditFile>> {
    let cannot = |path: &Path, error: &io::Error| {
        let path = path.display();
        anyhow!(
            "cannot read {path}: {error}. Run this as root or as the enforcer's user, or name the enforcer's folder with --state-directory"
        )
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| cannot(folder, &error))? {
        let entry = entry.map_err(|error| cannot(folder, &error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_of_the_audit(&name) {
            continue;
        }
        // A pipe must not be waited for, and a link is none of the enforcer's.
        let file = match genv_core::files::open(CWD, entry.path(), OFlags::RDONLY) {
            Ok(file) => File::from(file),
            // It was rotated, and is there under another name.
            Err(rustix::io::Errno::NOENT) => continue,
            Err(errno) => return Err(cannot(&entry.path(), &errno.into())),
        };
        let metadata = file.metadata().map_err(|error| cannot(&entry.path(), &error))?;
        let written = metadata.modified().ok().and_then(|it| it.duration_since(UNIX_EPOCH).ok());
        let written_seconds = written.unwrap_or_default().as_secs_f64();
        if metadata.is_file() && written_seconds >= from_seconds {
            files.push(AuditFile { name, file, written_seconds });
        }
    }
    files.sort_by(|a, b| a.written_seconds.total_cmp(&b.written_seconds));
    Ok(files)
}

/// `audit.jsonl`, `audit.jsonl.1`, `audit.jsonl-20261122.gz`.
fn is_of_the_audit(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(AUDIT_FILE) else {
        return false;
    };
    let rest = rest.strip_suffix(".gz").unwrap_or(rest);
    rest.is_empty()
        || rest.starts_with(['.', '-']) && rest[1..].bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

impl AuditFile {
    /// Shows each line that is not empty, or nothing in place of one without end.
    pub(super) fn read(self, mut look: impl FnMut(Option<&[u8]>)) -> io::Result<()> {
        let file = BufReader::new(self.file);
        let mut input: Box<dyn BufRead> = if self.name.ends_with(".gz") {
            Box::new(BufReader::new(MultiGzDecoder::new(file)))
        } else {
            Box::new(file)
        };
        let (mut line, mut is_too_long) = (Vec::new(), false);
        loop {
            line.clear();
            let read = (&mut input).take(LONGEST_LINE_BYTES).read_until(b'\n', &mut line)?;
            let is_whole = line.ends_with(b"\n");
            if read == 0 {
                return Ok(());
            }
            if read as u64 == LONGEST_LINE_BYTES && !is_whole {
                is_too_long = true;
                continue;
            }
            if is_too_long {
                look(None);
            } else if is_whole && !line.trim_ascii().is_empty() {
                look(Some(&line));
            }
            // What has no end yet is being written now.
            is_too_long = false;
        }
    }
}
