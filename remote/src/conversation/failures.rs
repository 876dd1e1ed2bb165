//! Errors of a host without a greeting, with quotations from its other output.

use std::time::Duration;

use genv_core::text::{harmless, shortened};

use super::ServeOptions;
use crate::failure::{MAX_QUOTED_CHARACTERS, quoted, quoted_last_line};
use crate::protocol::{Hello, LONGEST_NOISE_BYTES, PROTOCOL_VERSION};
use crate::{FailureKind, HostFailure, sudo};

/// Why no greeting came.
pub(super) enum NoGreeting {
    /// The program ended.
    Ended,
    /// The wait of this duration is over.
    TimedOut(Duration),
}

impl NoGreeting {
    /// The error, with a quotation from stderr, or else from stdout.
    pub(super) fn failure(&self, options: &ServeOptions, noise: &[u8], stderr: &str) -> HostFailure {
        let noise = String::from_utf8_lossy(noise);
        let last_line = quoted_last_line(stderr).or_else(|| quoted_last_line(&noise));
        match self {
            Self::TimedOut(limit) => HostFailure::new(
                FailureKind::TimedOut,
                format!(
                    "cannot start genv there: connected, and no greeting within {} s{}: run 'ssh HOST true', and see \
                                         whether the user's shell or profile waits for something",
                    limit.as_secs_f64(),
                    last_line.map_or_else(String::new, |line| format!("; its last line: {line}"))
                ),
            ),
            Self::Ended => {
                let refusal = options.sudo.then(|| sudo::refusal(&noise, stderr));
                if let Some(message) = refusal.flatten() {
                    return HostFailure::new(FailureKind::Command, message);
                }
                HostFailure::new(
                    FailureKind::Command,
                    format!(
                        "cannot start genv there: the command ended without a greeting, and printed: {}: run 'ssh HOST \
                                                 true', and see that the user may run commands there",
                        last_line.unwrap_or_else(|| "nothing".to_owned())
                    ),
                )
            }
        }
    }
}

/// The error of a host with too much output before its greeting.
pub(super) fn too_noisy(noise: &[u8]) -> HostFailure {
    HostFailure::new(
        FailureKind::Protocol,
        format!(
            "cannot start genv there: it sent more than {} KiB before a greeting, beginning with {}: see what the user's \
                         shell prints there",
            LONGEST_NOISE_BYTES >> 10,
            quoted(noise)
        ),
    )
}

/// Parses a greeting.
pub(super) fn read_hello(line: &[u8]) -> Result<Hello, HostFailure> {
    // The version comes first: a greeting of another version can have other fields.
    #[derive(serde::Deserialize)]
    struct GreetingVersion {
        genv_remote: u32,
        #[serde(default)]
        version: Option<String>,
    }
    let damaged = |error: serde_json::Error| {
        HostFailure::new(
            FailureKind::Protocol,
            format!("its greeting is invalid ({error}): {}: see what answers there", quoted(line)),
        )
    };
    let GreetingVersion { genv_remote, version } = serde_json::from_slice(line).map_err(damaged)?;
    if genv_remote == PROTOCOL_VERSION {
        return serde_json::from_slice(line).map_err(damaged);
    }
    let ours = env!("CARGO_PKG_VERSION");
    let theirs =
        version.map_or_else(|| "unknown".to_owned(), |version| shortened(&harmless(&version), MAX_QUOTED_CHARACTERS));
    let remedy = if genv_remote > PROTOCOL_VERSION {
        format!("upgrade genv here to {theirs} or later")
    } else {
        format!("upgrade genv there to {ours} or later")
    };
    Err(HostFailure::new(
        FailureKind::Protocol,
        format!(
            "genv {theirs} there speaks version {genv_remote} of the protocol, and genv {ours} here \
                         version {PROTOCOL_VERSION}: {remedy}"
        ),
    ))
}

/// The error of a program that ended during a session.
pub(super) fn ended(stderr: &str) -> HostFailure {
    let last_line = quoted_last_line(stderr).unwrap_or_else(|| "nothing".to_owned());
    HostFailure::new(
        FailureKind::Disconnected,
        format!("genv ended there, and printed: {last_line}: it is started again"),
    )
}
