//! Which hosts: the values of `-H` and `--host`, and host files.

use std::collections::HashMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use genv_core::hosts::{HostPatternError, MOST_HOSTS, expand};

/// A host file is not longer than this: it has room for [`MOST_HOSTS`] with comments.
pub const LONGEST_FILE_BYTES: u64 = 4 << 20;

/// A host, as somebody names it to `ssh`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostEntry {
    /// What `ssh` is given: a name of its configuration or of DNS, or an address. It names the host everywhere.
    pub name: String,
    /// Who logs in, where it is not left to the configuration.
    pub user: Option<String>,
    /// Where its server listens, where it is not left to the configuration.
    pub port: Option<u16>,
}

/// Hosts of different names, in the order in which they are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostList(Vec<HostEntry>);

/// A list of hosts that cannot be used. Its text has the place, the reason, and what to write instead.
#[derive(Debug, thiserror::Error)]
pub enum HostListError {
    /// A text that names no host.
    #[error("cannot read the host {place}: {problem}")]
    Entry {
        /// Where it is.
        place: Place,
        /// What is wrong with it.
        problem: EntryProblem,
    },
    /// A host is there twice: its numbers would count twice.
    #[error("cannot use the host {place}: '{name}' is already listed {first}. Remove one of the two")]
    Duplicate {
        /// Where it is again.
        place: Place,
        /// Its name.
        name: String,
        /// Where it is first.
        first: Place,
    },
    /// More hosts than [`MOST_HOSTS`].
    #[error("cannot use {source_name}: it lists more than {MOST_HOSTS} hosts. List fewer")]
    TooMany {
        /// The file or the flag.
        source_name: String,
    },
    /// No host at all.
    #[error("cannot use {source_name}: it lists no host. Write one host a line, such as alice@gpu01 or gpu[01-08]")]
    Empty {
        /// The file or the flag.
        source_name: String,
    },
    /// A file that is longer than [`LONGEST_FILE_BYTES`].
    #[error(
        "cannot read {source_name}: it is longer than {LONGEST_FILE_BYTES} bytes, and no list of hosts is. Name the right file"
    )]
    TooLong {
        /// The file.
        source_name: String,
    },
    /// A file that is not text.
    #[error("cannot read {source_name}:{line}: it is not UTF-8. Save the file as text in UTF-8")]
    NotText {
        /// The file.
        source_name: String,
        /// The first line that is not.
        line: usize,
    },
    /// A file that is no regular file.
    #[error("cannot read {source_name}: it is not a regular file. Name a file with one host a line")]
    NotAFile {
        /// The file.
        source_name: String,
    },
    /// A file that cannot be read.
    #[error("cannot read {source_name}: {error}. Name a file that exists and that you may read, with one host a line")]
    Unreadable {
        /// The file.
        source_name: String,
        /// Why.
        error: io::Error,
    },
}

/// Where an entry is: in a line of a file, or in a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the value of a flag.
    Flag,
    /// In a line of a file, from 1.
    Line(String, usize),
    /// Somewhere in a file or a flag.
    Within(String),
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => formatter.write_str("on the command line"),
            Self::Line(source_name, line) => write!(formatter, "at {source_name}:{line}"),
            Self::Within(source_name) => write!(formatter, "of {source_name}"),
        }
    }
}

/// What is wrong with one entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryProblem {
    /// Its name.
    #[error("{0}")]
    Pattern(#[from] HostPatternError),
    /// Its port.
    #[error("'{}' is not a port. Write a number from 1 to 65535, as in gpu01:2222", .0.escape_debug())]
    Port(String),
    /// Who logs in.
    #[error("'{}' is not a login name. Write one as in alice@gpu01", .0.escape_debug())]
    User(String),
    /// What `ssh` would take for one of its options.
    #[error("'{}' begins with a hyphen, as no host does. Write the host's name", .0.escape_debug())]
    Hyphen(String),
    /// An address in brackets that never end, or with more after them than a port.
    #[error("the brackets of '{}' do not match. Write an address of IPv6 with a port as [fe80::1]:22", .0.escape_debug())]
    Brackets(String),
}

impl HostList {
    /// The hosts of a flag's value: `gpu01,alice@gpu02:2222,gpu[03-08]`.
    ///
    /// # Errors
    /// One cannot be read, is there twice, or there is none.
    pub fn parse_flag(text: &str) -> Result<Self, HostListError> {
        let mut reader = Reader::new("the list of hosts");
        for entry in split_outside_brackets(text) {
            reader.add(&Place::Flag, entry)?;
        }
        reader.finish()
    }

    /// The hosts of a file's text: one entry a line, or several with commas between; `#` begins a comment.
    ///
    /// # Errors
    /// As [`HostList::parse_flag`], with the line.
    pub(crate) fn parse_file(source_name: &str, text: &str) -> Result<Self, HostListError> {
        let mut reader = Reader::new(source_name);
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (index, line) in text.lines().enumerate() {
            let line = line.split_once('#').map_or(line, |(entry, _)| entry).trim();
            if line.is_empty() {
                continue;
            }
            let place = Place::Line(source_name.to_owned(), index + 1);
            for entry in split_outside_brackets(line) {
                reader.add(&place, entry)?;
            }
        }
        reader.finish()
    }

    /// The hosts of a file.
    ///
    /// # Errors
    /// It cannot be read, is no text, or as [`HostList::parse_flag`], with the line.
    pub fn read(path: &Path) -> Result<Self, HostListError> {
        let source_name = path.display().to_string().escape_debug().to_string();
        let unreadable = |error| HostListError::Unreadable { source_name: source_name.clone(), error };
        // Opening a pipe would wait for its writer.
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path).map_err(unreadable)?;
        if !file.metadata().map_err(unreadable)?.is_file() {
            return Err(HostListError::NotAFile { source_name });
        }
        let mut bytes = Vec::new();
        file.take(LONGEST_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > LONGEST_FILE_BYTES {
            return Err(HostListError::TooLong { source_name });
        }
        match std::str::from_utf8(&bytes) {
            Ok(text) => Self::parse_file(&source_name, text),
            Err(error) => {
                let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
                let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
                Err(HostListError::NotText { source_name, line })
            }
        }
    }

    /// These hosts, and after them others of this source.
    ///
    /// # Errors
    /// One is in both, or they are too many.
    pub fn and(self, others: Self, source_name: &str) -> Result<Self, HostListError> {
        let mut reader = Reader::new(source_name);
        let parts = [(self, Place::Flag), (others, Place::Within(source_name.to_owned()))];
        for (entries, place) in parts {
            for entry in entries {
                reader.add_entry(&place, entry)?;
            }
        }
        reader.finish()
    }

    /// The hosts, in order.
    #[must_use]
    pub fn entries(&self) -> &[HostEntry] {
        &self.0
    }
}

impl IntoIterator for HostList {
    type Item = HostEntry;
    type IntoIter = std::vec::IntoIter<HostEntry>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Collects entries, and where each is.
struct Reader<'a> {
    source_name: &'a str,
    entries: Vec<HostEntry>,
    /// By name in lower case: DNS tells no case apart.
    places: HashMap<String, Place>,
}

impl<'a> Reader<'a> {
    fn new(source_name: &'a str) -> Self {
        Self { source_name, entries: Vec::new(), places: HashMap::new() }
    }

    fn add(&mut self, place: &Place, text: &str) -> Result<(), HostListError> {
        let entries =
            parse_entry(text.trim()).map_err(|problem| HostListError::Entry { place: place.clone(), problem })?;
        for entry in entries {
            self.add_entry(place, entry)?;
        }
        Ok(())
    }

    fn add_entry(&mut self, place: &Place, entry: HostEntry) -> Result<(), HostListError> {
        if let Some(first) = self.places.get(&entry.name.to_lowercase()) {
            return Err(HostListError::Duplicate { place: place.clone(), name: entry.name, first: first.clone() });
        }
        if self.entries.len() >= MOST_HOSTS {
            let source_name = self.source_name.to_owned();
            return Err(HostListError::TooMany { source_name });
        }
        self.places.insert(entry.name.to_lowercase(), place.clone());
        self.entries.push(entry);
        Ok(())
    }

    fn finish(self) -> Result<HostList, HostListError> {
        if self.entries.is_empty() {
            let source_name = self.source_name.to_owned();
            return Err(HostListError::Empty { source_name });
        }
        Ok(HostList(self.entries))
    }
}

/// The parts of `a,gpu[1,3]` between the commas that are in no brackets.
fn split_outside_brackets(text: &str) -> impl Iterator<Item = &str> {
    let mut within = false;
    text.split(move |character| {
        match character {
            '[' => within = true,
            ']' => within = false,
            _ => {}
        }
        character == ',' && !within
    })
}

/// The hosts of `[ssh://][user@]name-or-range[:port]`.
fn parse_entry(text: &str) -> Result<Vec<HostEntry>, EntryProblem> {
    let text = match text.strip_prefix("ssh://") {
        Some(rest) => rest.strip_suffix('/').unwrap_or(rest),
        None => text,
    };
    let (user, host) = match text.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, text),
    };
    // What a shell, or ssh's own configuration, could take for something else is in no login name.
    if let Some(user) = user
        && (user.is_empty()
            || user.starts_with('-')
            || user.contains(|c: char| c.is_whitespace() || c.is_control() || "'`\"\\;&<>|(){}$".contains(c)))
    {
        return Err(EntryProblem::User(user.to_owned()));
    }
    let (names, port) = split_port(host)?;
    if names.starts_with('-') {
        return Err(EntryProblem::Hyphen(names.to_owned()));
    }
    let port = port.map(parse_port).transpose()?;
    let names = expand(names)?;
    Ok(names.into_iter().map(|name| HostEntry { name, user: user.map(ToOwned::to_owned), port }).collect())
}

/// A host and its port: `gpu[01-08]:22`, `[fe80::1]:22`, or `fe80::1`, which has no port.
fn split_port(host: &str) -> Result<(&str, Option<&str>), EntryProblem> {
    if let Some((address, rest)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']'))
        && address.contains(':')
    {
        let port = match rest {
            "" => None,
            rest => Some(rest.strip_prefix(':').ok_or_else(|| EntryProblem::Brackets(host.to_owned()))?),
        };
        return Ok((address, port));
    }
    match host.split_once(':') {
        Some((name, port)) if !port.contains(':') => Ok((name, Some(port))),
        _ => Ok((host, None)),
    }
}

/// A port in digits, from 1.
pub(crate) fn parse_port(text: &str) -> Result<u16, EntryProblem> {
    let port = text.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.then(|| text.parse().ok()).flatten();
    port.filter(|port| *port != 0).ok_or_else(|| EntryProblem::Port(text.to_owned()))
}

#[cfg(test)]
mod tests;
