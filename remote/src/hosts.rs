//! Lists of hosts: values of `-H` and `--host`, and host files.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use genv_core::files::open_through_links;
use genv_core::hosts::{HostPatternError, MOST_HOSTS, expand};
use genv_core::text::harmless;
use rustix::fs::{CWD, OFlags};

/// The largest size of a host file: enough for [`MOST_HOSTS`] with comments.
pub const LONGEST_FILE_BYTES: u64 = 4 << 20;

/// A host with the words of a command line of `ssh`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostEntry {
    /// A name in ssh's configuration or DNS, or an address. All output names the host by this text.
    pub name: String,
    /// The user to log in as; absent: by ssh's configuration.
    pub user: Option<String>,
    /// The port of the SSH server; absent: by ssh's configuration.
    pub port: Option<u16>,
}

/// Hosts with different names, in the order of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostList(Vec<HostEntry>);

/// Why a list of hosts cannot be used. The text has the position, the reason, and the correction.
#[derive(Debug, thiserror::Error)]
pub enum HostListError {
    /// An invalid entry.
    #[error("cannot read the host {position}: {problem}")]
    Entry {
        /// The position of the entry.
        position: EntryPosition,
        /// The reason.
        problem: EntryProblem,
    },
    /// A host is listed twice: its numbers would count twice.
    #[error("cannot use the host {position}: '{name}' is already listed {first}. Remove one of the two")]
    Duplicate {
        /// The position of the second entry.
        position: EntryPosition,
        /// The name of the host.
        name: String,
        /// The position of the first entry.
        first: EntryPosition,
    },
    /// More hosts than [`MOST_HOSTS`].
    #[error("cannot use {source_name}: it lists more than {MOST_HOSTS} hosts. List fewer")]
    TooMany {
        /// The file or the flag.
        source_name: String,
    },
    /// The list is empty.
    #[error("cannot use {source_name}: it lists no host. Write one host a line, such as alice@gpu01 or gpu[01-08]")]
    Empty {
        /// The file or the flag.
        source_name: String,
    },
    /// The file is larger than [`LONGEST_FILE_BYTES`].
    #[error(
        "cannot read {source_name}: it is longer than {LONGEST_FILE_BYTES} bytes, too long for a list of hosts. Name the right file"
    )]
    TooLong {
        /// The file.
        source_name: String,
    },
    /// The file is not UTF-8.
    #[error("cannot read {source_name}:{line}: it is not UTF-8. Save the file as text in UTF-8")]
    NotText {
        /// The file.
        source_name: String,
        /// The first line that is not UTF-8.
        line: usize,
    },
    /// The file is not a regular file.
    #[error("cannot read {source_name}: it is not a regular file. Name a file with one host a line")]
    NotAFile {
        /// The file.
        source_name: String,
    },
    /// The file cannot be read.
    #[error("cannot read {source_name}: {error}. Name a file that exists and that you may read, with one host a line")]
    Unreadable {
        /// The file.
        source_name: String,
        /// The reason.
        error: io::Error,
    },
}

/// The position of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryPosition {
    /// In the value of a flag.
    Flag,
    /// In a line of a file, from 1.
    Line(String, usize),
    /// In a file, at an unknown line.
    Within(String),
}

impl fmt::Display for EntryPosition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => formatter.write_str("on the command line"),
            Self::Line(source_name, line) => write!(formatter, "at {source_name}:{line}"),
            Self::Within(source_name) => write!(formatter, "of {source_name}"),
        }
    }
}

/// Why an entry is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryProblem {
    /// The name is invalid.
    #[error("{0}")]
    Pattern(#[from] HostPatternError),
    /// The port is invalid.
    #[error("'{}' is not a port. Write a number from 1 to 65535, as in gpu01:2222", .0.escape_debug())]
    Port(String),
    /// The login name is invalid.
    #[error(
        "'{}' is not a login name: ssh refuses it, or it has a % or a character that cannot be shown. Write it as in alice or CORP\\ann",
        .0.escape_debug()
    )]
    User(String),
    /// The name looks like an option of `ssh`.
    #[error("'{}' begins with a hyphen, as no host does. Write the host's name", .0.escape_debug())]
    Hyphen(String),
    /// A bracket is not closed, or a text other than a port follows the brackets.
    #[error("the brackets of '{}' do not match. Write an address of IPv6 with a port as [fe80::1]:22", .0.escape_debug())]
    Brackets(String),
}

impl HostList {
    /// Parses the value of a flag: `gpu01,alice@gpu02:2222,gpu[03-08]`.
    ///
    /// # Errors
    /// An entry is invalid or listed twice, or the list is empty.
    pub fn parse_flag(text: &str) -> Result<Self, HostListError> {
        let mut builder = ListBuilder::new("the list of hosts");
        for entry in split_entries(text) {
            builder.add(&EntryPosition::Flag, entry)?;
        }
        builder.finish()
    }

    /// Parses the text of a host file: one entry a line, or several entries with commas; `#` starts a comment.
    pub(crate) fn parse_file(source_name: &str, text: &str) -> Result<Self, HostListError> {
        let mut builder = ListBuilder::new(source_name);
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (index, line) in text.lines().enumerate() {
            let line = without_comment(line).trim();
            if line.is_empty() {
                continue;
            }
            let position = EntryPosition::Line(source_name.to_owned(), index + 1);
            for entry in split_entries(line) {
                builder.add(&position, entry)?;
            }
        }
        builder.finish()
    }

    /// Reads a host file.
    ///
    /// # Errors
    /// The file cannot be read or is not text, or as [`HostList::parse_flag`] with the line number.
    pub fn read(path: &Path) -> Result<Self, HostListError> {
        let source_name = path.display().to_string().escape_debug().to_string();
        let unreadable = |error| HostListError::Unreadable { source_name: source_name.clone(), error };
        let opened = open_through_links(CWD, path, OFlags::RDONLY);
        let file = File::from(opened.map_err(|errno| unreadable(errno.into()))?);
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

    /// The hosts of both lists: those of flags, and `others` from this file.
    ///
    /// # Errors
    /// Both lists have the same host, or the result has too many hosts.
    pub fn and(self, others: Self, source_name: &str) -> Result<Self, HostListError> {
        let mut builder = ListBuilder::new(source_name);
        let parts = [(self, EntryPosition::Flag), (others, EntryPosition::Within(source_name.to_owned()))];
        for (entries, position) in parts {
            for entry in entries {
                builder.add_entry(&position, entry)?;
            }
        }
        builder.finish()
    }

    /// The hosts, in the order of the list.
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

/// Collects entries with their positions.
struct ListBuilder<'a> {
    source_name: &'a str,
    entries: Vec<HostEntry>,
    /// By name in lower case, since DNS ignores case.
    positions: HashMap<String, EntryPosition>,
}

impl<'a> ListBuilder<'a> {
    fn new(source_name: &'a str) -> Self {
        Self { source_name, entries: Vec::new(), positions: HashMap::new() }
    }

    fn add(&mut self, position: &EntryPosition, text: &str) -> Result<(), HostListError> {
        let entries =
            parse_entry(text.trim()).map_err(|problem| HostListError::Entry { position: position.clone(), problem })?;
        for entry in entries {
            self.add_entry(position, entry)?;
        }
        Ok(())
    }

    fn add_entry(&mut self, position: &EntryPosition, entry: HostEntry) -> Result<(), HostListError> {
        if let Some(first) = self.positions.get(&entry.name.to_lowercase()) {
            return Err(HostListError::Duplicate {
                position: position.clone(),
                name: entry.name,
                first: first.clone(),
            });
        }
        if self.entries.len() >= MOST_HOSTS {
            let source_name = self.source_name.to_owned();
            return Err(HostListError::TooMany { source_name });
        }
        self.positions.insert(entry.name.to_lowercase(), position.clone());
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

/// Splits a text such as `a,gpu[1,3],"b,c"@d` at the commas outside of brackets and quotes.
fn split_entries(text: &str) -> impl Iterator<Item = &str> {
    let (mut bracketed, mut quoted) = (false, false);
    text.split(move |character: char| {
        match character {
            '"' => quoted = !quoted,
            '[' if !quoted => bracketed = true,
            ']' if !quoted => bracketed = false,
            _ => {}
        }
        character == ',' && !bracketed && !quoted
    })
}

/// A line of a host file without its comment, which begins at a `#` outside of quotes.
fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    let comment = line.find(|character: char| {
        quoted ^= character == '"';
        character == '#' && !quoted
    });
    comment.map_or(line, |position| line.split_at(position).0)
}

/// Parses `[ssh://][user@]name-or-range[:port]`. The last `@` ends the user, which may be in double quotes.
fn parse_entry(text: &str) -> Result<Vec<HostEntry>, EntryProblem> {
    let text = match text.strip_prefix("ssh://") {
        Some(rest) => rest.strip_suffix('/').unwrap_or(rest),
        None => text,
    };
    let (user, host) = match text.rsplit_once('@') {
        Some((user, host)) => {
            let quoted = user.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            (Some(login_name(quoted.unwrap_or(user))?), host)
        }
        None => (None, text),
    };
    let (names, port) = split_port(host)?;
    if names.starts_with('-') {
        return Err(EntryProblem::Hyphen(names.to_owned()));
    }
    let port = port.map(parse_port).transpose()?;
    let names = expand(names)?;
    Ok(names.into_iter().map(|name| HostEntry { name, user: user.clone(), port }).collect())
}

/// Parses a login name. `ssh` accepts the same names (`valid_ruser` of OpenSSH), also those of directory services such as
/// `CORP\ann` and `ben jones@corp.example.org`. In its configuration a `%` would stand for a token, and is refused too.
///
/// # Errors
/// [`EntryProblem::User`]: `ssh` would refuse the name, a shell or ssh's configuration could interpret it, it begins or
/// ends with a space, or it has a character that is not [`harmless`].
pub fn login_name(text: &str) -> Result<String, EntryProblem> {
    let meaningful = |c: char| "'`\";&<>|(){}%".contains(c);
    let shown = harmless(text) == text;
    let hyphen = text.split(char::is_whitespace).any(|word| word.starts_with('-'));
    if text.is_empty() || text.trim() != text || hyphen || text.ends_with('\\') || text.contains(meaningful) || !shown {
        return Err(EntryProblem::User(text.to_owned()));
    }
    Ok(text.to_owned())
}

/// Splits a host from its port: `gpu[01-08]:22`, `[fe80::1]:22`, or `fe80::1` without a port.
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

/// Parses a port from 1 to 65535, in digits only.
pub(crate) fn parse_port(text: &str) -> Result<u16, EntryProblem> {
    let port = text.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.then(|| text.parse().ok()).flatten();
    port.filter(|port| *port != 0).ok_or_else(|| EntryProblem::Port(text.to_owned()))
}

#[cfg(test)]
mod tests;
