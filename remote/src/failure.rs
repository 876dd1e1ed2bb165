//! What can go wrong with one host.

use std::fmt;

use genv_core::text::is_harmless;

/// Why a host does not answer, and what to do about it. Its text is one line, whatever the host has sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HostFailure {
    /// What kind of failure it is.
    pub kind: FailureKind,
    /// What could not be done, why, and what to do next, without the name of the host.
    pub message: String,
}

impl HostFailure {
    /// One of this kind. What a host sent is told without what could move a cursor or turn the direction of
    /// writing.
    #[must_use]
    pub fn new(kind: FailureKind, message: impl fmt::Display) -> Self {
        let message = message.to_string();
        let message = message.chars().map(|character| if is_harmless(character) { character } else { ' ' }).collect();
        Self { kind, message }
    }
}

/// Kinds of failures, which decide when a host is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The configuration asks for what the transport cannot do, as `ProxyCommand`: it is not tried.
    Unsupported,
    /// Its name means nothing, here or to `ssh -G`.
    Unresolved,
    /// Nobody answers at its address, or not in time.
    Unreachable,
    /// Its key is not known, or another one: nothing was sent.
    HostKey,
    /// It lets nobody in with the keys that there are.
    Authentication,
    /// The session or the channel ended.
    Disconnected,
    /// It did not answer in time, though connected.
    TimedOut,
    /// What it sent is not what was asked for, too long, or of a version that is not known here.
    Protocol,
    /// The command there failed, or is missing.
    Command,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_sent_stays_on_its_line() {
        let sent = "no \u{1b}[2J\nsuch\u{202e} \"h\u{f6}st'\u{9b}";
        let failure = HostFailure::new(FailureKind::Command, sent);
        assert_eq!(failure.to_string(), "no  [2J such  \"h\u{f6}st' ");
    }
}
