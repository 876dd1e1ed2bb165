//! What is said of a connection that does not come about, or ends.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use genv_core::text::{harmless, shortened};
use russh::AlgorithmKind;

use super::wire::Gate;
use super::{MOST_BYTES_BEFORE_LOGIN, Told};
use crate::known_hosts::KnownHost;
use crate::{FailureKind, HostFailure};

pub(super) fn unreachable(place: &str, why: &str) -> HostFailure {
    HostFailure::new(
        FailureKind::Unreachable,
        format!("cannot connect to {place}: {why}. Look whether it is up, its sshd runs, and no firewall is between"),
    )
}

pub(super) fn disconnected(why: &str) -> HostFailure {
    HostFailure::new(
        FailureKind::Disconnected,
        format!("the session ended: {why}. It is opened anew when the host is asked again"),
    )
}

/// Why a connection has ended; nothing where that is not told.
pub(super) fn ended(told: &Mutex<Told>, gate: &Gate) -> Option<String> {
    if gate.is_exceeded() {
        return Some(format!("it sent more than {MOST_BYTES_BEFORE_LOGIN} bytes before it let in"));
    }
    let told = told.lock().unwrap_or_else(PoisonError::into_inner);
    told.ended.clone()
}

/// What OpenSSH's server says instead of a greeting where it has too many connections, or had too many failures.
const FULL: [&str; 2] = ["Exceeded MaxStartups", "Not allowed at this time"];

/// Why no session began.
pub(super) fn handshake_failure(
    error: &russh::Error,
    told: &Mutex<Told>,
    known: &KnownHost,
    gate: &Gate,
) -> HostFailure {
    let told = std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(refused) = told.refused {
        return refused;
    }
    let first_line = gate.first_line();
    let protocol = |why: &str| {
        HostFailure::new(
            FailureKind::Protocol,
            format!("cannot connect: {why}. Correct the port, or look at what listens there"),
        )
    };
    let instead = |said: &str| {
        let shown = harmless(said);
        if FULL.iter().any(|full| said.starts_with(full)) {
            return HostFailure::new(
                FailureKind::Disconnected,
                format!(
                    "cannot connect: its sshd takes no more connections now ('{shown}'). Raise MaxStartups in its \
                     sshd_config"
                ),
            );
        }
        protocol(&format!("instead of SSH it says '{shown}'"))
    };
    match error {
        russh::Error::NoCommonAlgo { kind: AlgorithmKind::Key, .. } if known.is_known() => known.no_such_kind(),
        russh::Error::NoCommonAlgo { kind, theirs, .. } => HostFailure::new(
            FailureKind::Unsupported,
            format!(
                "cannot connect: it offers only what is not supported here ({kind:?}: {}). Update its sshd, or allow \
                 a newer algorithm in its sshd_config",
                shortened(&theirs.join(", "), 300)
            ),
        ),
        russh::Error::WrongServerSig => HostFailure::new(
            FailureKind::HostKey,
            "cannot trust it: it shows a key, and signs with another. Somebody may be between",
        ),
        _ if gate.is_exceeded() => {
            protocol(&format!("it sent more than {MOST_BYTES_BEFORE_LOGIN} bytes before it showed its key"))
        }
        russh::Error::Version => instead(&first_line),
        russh::Error::Disconnect | russh::Error::HUP | russh::Error::IO(_)
            if !first_line.is_empty() && !first_line.starts_with("SSH-2.0-") =>
        {
            instead(&first_line)
        }
        russh::Error::Disconnect | russh::Error::HUP | russh::Error::IO(_) => HostFailure::new(
            FailureKind::Disconnected,
            format!(
                "cannot connect: before it showed its key, {}. Look at the log of its sshd: it may have too many \
                 connections (MaxStartups), or refuse this address",
                told.ended.unwrap_or_else(|| reason(error))
            ),
        ),
        error => protocol(&format!("what it sends is not SSH as it should be ({error})")),
    }
}

/// Why a connection ended, as a part of a sentence.
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
        error => format!("what it sent is not SSH as it should be ({error})"),
    }
}

pub(super) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
