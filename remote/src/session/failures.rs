//! Errors of connections and sessions.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use genv_core::text::{harmless, shortened};
use russh::AlgorithmKind;

use super::guarded_stream::ReadLimit;
use super::{ConnectionEvents, MOST_BYTES_BEFORE_LOGIN};
use crate::known_hosts::KnownHost;
use crate::{FailureKind, HostFailure};

pub(super) fn unreachable(place: &str, why: &str) -> HostFailure {
    HostFailure::new(
        FailureKind::Unreachable,
        format!(
            "cannot connect to {place}: {why}. See whether it is up, its sshd runs, and no firewall blocks the port"
        ),
    )
}

pub(super) fn disconnected(why: &str) -> HostFailure {
    HostFailure::new(
        FailureKind::Disconnected,
        format!("the session ended: {why}. It is opened anew with the next request"),
    )
}

/// Why a connection ended, if known.
pub(super) fn ended(events: &Mutex<ConnectionEvents>, read_limit: &ReadLimit) -> Option<String> {
    if read_limit.is_exceeded() {
        return Some(format!("it sent more than {MOST_BYTES_BEFORE_LOGIN} bytes before the login"));
    }
    let events = events.lock().unwrap_or_else(PoisonError::into_inner);
    events.ended.clone()
}

/// Greetings of OpenSSH's server that refuses a connection, since too many are not signed in (`MaxStartups`), or, from 9.8 on,
/// since too many from this address have failed (`PerSourcePenalties`). OpenSSH 10 has one text for both.
const FULL: [&str; 2] = ["Exceeded MaxStartups", "Not allowed at this time"];

/// The error of a failed handshake.
pub(super) fn handshake_failure(
    error: &russh::Error,
    events: &Mutex<ConnectionEvents>,
    known: &KnownHost,
    read_limit: &ReadLimit,
) -> HostFailure {
    let events = std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(refused) = events.refused {
        return refused;
    }
    let first_line = read_limit.first_line();
    let protocol = |why: &str| {
        HostFailure::new(
            FailureKind::Protocol,
            format!("cannot connect: {why}. Correct the port, or see what listens there"),
        )
    };
    let other_greeting = |greeting: &str| {
        let shown = harmless(greeting);
        if FULL.iter().any(|full| greeting.starts_with(full)) {
            return HostFailure::new(
                FailureKind::Disconnected,
                format!(
                    "cannot connect: its sshd accepts no more connections now ('{shown}'). Raise MaxStartups in its \
                     sshd_config if many sign in at once. If connections from this address have failed before \
                     (PerSourcePenalties), mend that, and wait; PerSourcePenaltyExemptList exempts an address"
                ),
            );
        }
        protocol(&format!("its greeting is not of SSH: '{shown}'"))
    };
    match error {
        russh::Error::NoCommonAlgo { kind: AlgorithmKind::Key, .. } if known.is_known() => known.no_such_kind(),
        russh::Error::NoCommonAlgo { kind, theirs, .. } => HostFailure::new(
            FailureKind::Unsupported,
            format!(
                "cannot connect: none of its algorithms is supported here ({kind:?}: {}). Update its sshd, or allow \
                                 a newer algorithm in its sshd_config",
                shortened(&theirs.join(", "), 300)
            ),
        ),
        russh::Error::WrongServerSig => HostFailure::new(
            FailureKind::HostKey,
            "cannot trust it: it shows a key, and signs with another one. The network may have been attacked",
        ),
        _ if read_limit.is_exceeded() => {
            protocol(&format!("it sent more than {MOST_BYTES_BEFORE_LOGIN} bytes before it showed its key"))
        }
        russh::Error::Version => other_greeting(&first_line),
        russh::Error::Disconnect | russh::Error::HUP | russh::Error::IO(_)
            if !first_line.is_empty() && !first_line.starts_with("SSH-2.0-") =>
        {
            other_greeting(&first_line)
        }
        russh::Error::Disconnect | russh::Error::HUP | russh::Error::IO(_) => HostFailure::new(
            FailureKind::Disconnected,
            format!(
                "cannot connect: before it showed its key, {}. See the log of its sshd: it may have too many \
                 connections (MaxStartups), or refuse this address (PerSourcePenalties)",
                events.ended.unwrap_or_else(|| reason(error))
            ),
        ),
        error => protocol(&format!("it violates the protocol SSH ({error})")),
    }
}

/// The reason for the end of a connection, as a part of a sentence.
pub(super) fn reason(error: &russh::Error) -> String {
    match error {
        russh::Error::Disconnect | russh::Error::HUP | russh::Error::SendError | russh::Error::RecvError => {
            "it closed the connection".to_owned()
        }
        russh::Error::IO(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it closed the connection".to_owned()
        }
        russh::Error::IO(error) => format!("the connection failed: {error}"),
        russh::Error::KeepaliveTimeout => "it stopped answering".to_owned(),
        error => format!("it violated the protocol SSH ({error})"),
    }
}

pub(super) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
