//! Why a host does not greet, as far as what it says instead tells.

use std::time::Duration;

use genv_core::text::{harmless, shortened};

use super::ServeOptions;
use crate::protocol::{Hello, LONGEST_NOISE_BYTES, PROTOCOL_VERSION};
use crate::said::{MOST_SHOWN_CHARACTERS, last_line, shown};
use crate::{FailureKind, HostFailure, sudo};

/// How a host did not greet.
pub(super) enum Silence {
    /// The program ended.
    Ended,
    /// Nothing came for so long.
    TooLong(Duration),
}

impl Silence {
    /// What to say of it, by what came before and on stderr.
    pub(super) fn failure(&self, options: &ServeOptions, noise: &[u8], stderr: &str) -> HostFailure {
        let noise = String::from_utf8_lossy(noise);
        let said = last_line(stderr).or_else(|| last_line(&noise));
        match self {
            Self::TooLong(patience) => HostFailure::new(
                FailureKind::TimedOut,
                format!(
                    "cannot ask it: connected, and no answer within {} s{}: see whether the user's shell or profile \
                     waits for something there, as 'ssh HOST true' does then",
                    patience.as_secs_f64(),
                    said.map_or_else(String::new, |said| format!("; it said last: {said}"))
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
                        "cannot ask it: what was started there ended without an answer, and said: {}: see that the \
                         user may run commands there, as 'ssh HOST true' does",
                        said.unwrap_or_else(|| "nothing".to_owned())
                    ),
                )
            }
        }
    }
}

/// It sends more than a profile would, and does not greet.
pub(super) fn too_noisy(noise: &[u8]) -> HostFailure {
    HostFailure::new(
        FailureKind::Protocol,
        format!(
            "cannot ask it: it sent more than {} KiB before any answer, beginning with {}: see what the user's shell \
             prints there",
            LONGEST_NOISE_BYTES >> 10,
            shown(noise)
        ),
    )
}

/// Reads what a host says first.
pub(super) fn read_hello(line: &[u8]) -> Result<Hello, HostFailure> {
    // Another version may say the rest in another way.
    #[derive(serde::Deserialize)]
    struct Version {
        genv_remote: u32,
        #[serde(default)]
        version: Option<String>,
    }
    let damaged = |error: serde_json::Error| {
        HostFailure::new(
            FailureKind::Protocol,
            format!("cannot understand what it says first ({error}): {}: see what answers there", shown(line)),
        )
    };
    let Version { genv_remote, version } = serde_json::from_slice(line).map_err(damaged)?;
    if genv_remote == PROTOCOL_VERSION {
        return serde_json::from_slice(line).map_err(damaged);
    }
    let ours = env!("CARGO_PKG_VERSION");
    let theirs =
        version.map_or_else(|| "unknown".to_owned(), |version| shortened(&harmless(&version), MOST_SHOWN_CHARACTERS));
    let remedy = if genv_remote > PROTOCOL_VERSION {
        format!("upgrade genv here to {theirs} or later")
    } else {
        format!("upgrade genv there to {ours} or later")
    };
    Err(HostFailure::new(
        FailureKind::Protocol,
        format!(
            "cannot ask it: genv {theirs} there speaks version {genv_remote} of the protocol, and genv {ours} here \
             version {PROTOCOL_VERSION}: {remedy}"
        ),
    ))
}

/// The program ended in the middle of it.
pub(super) fn ended(stderr: &str) -> HostFailure {
    let said = last_line(stderr).unwrap_or_else(|| "nothing".to_owned());
    HostFailure::new(FailureKind::Disconnected, format!("genv ended there, and said: {said}: it is started again"))
}
