//! A recording, as `genv snapshot --follow` makes it: a snapshot a line, of one host or of several.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Seek as _};
use std::path::Path;

use anyhow::anyhow;
use flate2::bufread::MultiGzDecoder;
use genv_core::model::{SNAPSHOT_VERSION, Snapshot};
use genv_core::text::{harmless, shortened};
use serde::Deserialize;

/// A line that is longer is no snapshot, and would fill the memory.
const LONGEST_LINE_BYTES: u64 = 64 << 20;

/// What begins every file that gzip made.
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];

/// Characters that are shown of why a line cannot be read: serde repeats what it found.
const SHOWN_CHARACTERS: usize = 200;

/// The lines that are left.
pub(super) struct Recording {
    name: String,
    input: Box<dyn BufRead>,
    /// The file of the input, with the same position; absent for standard input.
    file: Option<File>,
    /// Number of the line that was read last, from 1.
    pub(super) line: u64,
}

#[derive(Debug)]
pub(super) enum RecordingLine {
    Snapshot(Box<Snapshot>),
    /// It is none, and why.
    Damaged(String),
}

impl Recording {
    /// Opens a file, also one that gzip made; `-` is standard input.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            let input = BufReader::new(io::stdin());
            return Self::new("standard input", Box::new(input));
        }
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| {
            anyhow!("cannot open {name}: {error}. Name a recording that 'genv snapshot --follow' made")
        })?;
        let same = file.try_clone().ok();
        let recording = Self::new(&name, Box::new(BufReader::new(file)))?;
        Ok(Self { file: same, ..recording })
    }

    pub(super) fn new(name: &str, mut input: Box<dyn BufRead>) -> anyhow::Result<Self> {
        let begin = input.fill_buf().map_err(|error| unreadable(name, 1, &error))?;
        let input =
            if begin.starts_with(GZIP_MAGIC) { Box::new(BufReader::new(MultiGzDecoder::new(input))) } else { input };
        Ok(Self { name: name.to_owned(), input, file: None, line: 0 })
    }

    /// What it is called.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// How much of the file was read, in percent of its bytes. Not known of standard input and of a pipe.
    pub(super) fn percent(&self) -> Option<u64> {
        let mut file = self.file.as_ref()?;
        let length = file.metadata().ok()?.len();
        let read = file.stream_position().ok()?.min(length);
        read.saturating_mul(100).checked_div(length)
    }

    /// The next line that is not empty; nothing at the end.
    ///
    /// # Errors
    /// Nothing more can be read, or a line does not end.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<RecordingLine>> {
        let mut text = Vec::new();
        loop {
            text.clear();
            self.line += 1;
            let mut input = (&mut self.input).take(LONGEST_LINE_BYTES);
            let read = input.read_until(b'\n', &mut text).map_err(|error| unreadable(&self.name, self.line, &error))?;
            if read as u64 == LONGEST_LINE_BYTES {
                let (name, line) = (&self.name, self.line);
                return Err(anyhow!(
                    "cannot read {name}: line {line} does not end within 64 MiB. Name a recording that 'genv snapshot --follow' made"
                ));
            }
            if read == 0 {
                return Ok(None);
            }
            if !text.trim_ascii().is_empty() {
                return Ok(Some(parse(&text)));
            }
        }
    }
}

fn unreadable(name: &str, line: u64, error: &io::Error) -> anyhow::Error {
    anyhow!(
        "cannot read {name} from line {line} on: {error}. Give a whole recording, as 'genv snapshot --follow' makes it"
    )
}

fn parse(text: &[u8]) -> RecordingLine {
    #[derive(Deserialize)]
    struct SnapshotVersion {
        version: u32,
    }
    let text = text.trim_ascii();
    let version = match serde_json::from_slice(text) {
        Ok(SnapshotVersion { version }) => version,
        Err(error) => return damaged(text, &error),
    };
    if version != SNAPSHOT_VERSION {
        return RecordingLine::Damaged(format!(
            "it has version {version} of snapshots, and this program knows {SNAPSHOT_VERSION}"
        ));
    }
    match serde_json::from_slice::<Snapshot>(text) {
        Ok(snapshot) if !snapshot.timestamp_seconds.is_finite() => {
            RecordingLine::Damaged("its time is no number".to_owned())
        }
        Ok(snapshot) => RecordingLine::Snapshot(Box::new(snapshot)),
        Err(error) => damaged(text, &error),
    }
}

/// Of one line the column is what places the damage.
fn damaged(text: &[u8], error: &serde_json::Error) -> RecordingLine {
    let said = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let why = said.strip_suffix(&place).unwrap_or(&said);
    let why = shortened(&harmless(why), SHOWN_CHARACTERS);
    let end = if error.is_eof() && !text.ends_with(b"}") { "; it was cut off" } else { "" };
    RecordingLine::Damaged(format!("column {}: {why}{end}", error.column()))
}
