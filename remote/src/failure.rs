//! Errors of one host, and quotations from its output.

use std::fmt;

use genv_core::text::{harmless, is_harmless, shortened};

/// Why a host has no answer, and a remedy. The text is always one line, even with quotations from the host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HostFailure {
    /// The kind of failure.
    pub kind: FailureKind,
    /// The failed task, the reason and the remedy, without the name of the host.
    pub message: String,
}

impl HostFailure {
    /// An error of this kind. Characters that could move a cursor or change the direction of writing become spaces.
    pub fn new(kind: FailureKind, message: impl fmt::Display) -> Self {
        let message = message.to_string();
        let message = message.chars().map(|character| if is_harmless(character) { character } else { ' ' }).collect();
        Self { kind, message }
    }
}

/// Kinds of errors. The kind determines the wait before the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// No attempt: the host's configuration has an option that this program does not support, such as `ProxyCommand`.
    Unsupported,
    /// This program or `ssh -G` cannot resolve the host's name.
    Unresolved,
    /// No connection to the host's address in time.
    Unreachable,
    /// The host's key is unknown or has changed. No data was sent.
    HostKey,
    /// The host refuses all keys of this user.
    Authentication,
    /// The session or the channel ended.
    Disconnected,
    /// The connected host did not answer in time.
    TimedOut,
    /// The host sent a line that is malformed, too long, or of an unknown version of the protocol.
    Protocol,
    /// The command on the host failed, or is missing.
    Command,
}

/// A quotation from the output of a host has at most this many characters.
pub(crate) const MAX_QUOTED_CHARACTERS: usize = 160;

/// The last line that is not blank, in quotes.
pub(crate) fn quoted_last_line(text: &str) -> Option<String> {
    let line = text.lines().rfind(|line| !line.trim().is_empty())?;
    Some(quoted(line.trim().as_bytes()))
}

/// The beginning of a text, in quotes and safe to print.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    let max_bytes = MAX_QUOTED_CHARACTERS * 4;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(max_bytes)]);
    format!("'{}'", shortened(&harmless(text.trim()), MAX_QUOTED_CHARACTERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_even_with_control_characters_from_the_host() {
        let sent = "no \u{1b}[2J\nsuch\u{202e} \"h\u{f6}st'\u{9b}";
        let failure = HostFailure::new(FailureKind::Command, sent);
        assert_eq!(failure.to_string(), "no  [2J such  \"h\u{f6}st' ");
    }
}
