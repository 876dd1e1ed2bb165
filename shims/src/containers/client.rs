//! What differs between the programs that make containers.

use super::flags::Flags;
use super::names::Attached;
use crate::outcome::Refusal;

/// A program that makes containers.
pub(crate) struct Client {
    /// Its name.
    pub(super) name: &'static str,
    /// Its own flags, in front of the subcommand.
    pub(super) global: Flags,
    /// The flags of `run` and `create`.
    pub(super) container: Flags,
    /// Restricts a value of `--gpus` to the attached devices; nothing if it is no request for NVIDIA's.
    pub(super) restrict_gpus: fn(request: &str, attached: &Attached<'_>) -> Result<Option<Restricted>, Refusal>,
}

/// A request that was restricted to an environment's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Restricted {
    /// The new value.
    pub(super) value: String,
    /// Devices that were asked for and are not the environment's.
    pub(super) dropped: Vec<String>,
}
