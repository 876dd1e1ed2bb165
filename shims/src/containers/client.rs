//! The differences between docker and podman.

use super::flags::Flags;
use super::names::AttachedDevices;
use crate::outcome::Refusal;

pub(crate) struct ContainerProgram {
    pub(super) name: &'static str,
    /// Its own flags, in front of the subcommand.
    pub(super) global: Flags,
    /// The flags of `run` and `create`.
    pub(super) container: Flags,
    /// Restricts a value of `--gpus` to the attached devices. `None`: it does not request NVIDIA devices.
    pub(super) restrict_gpus:
        fn(request: &str, attached: &AttachedDevices<'_>) -> Result<Option<RestrictedValue>, Refusal>,
}

/// A request that was restricted to an environment's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RestrictedValue {
    /// The new value.
    pub(super) value: String,
    /// Requested devices outside of the environment.
    pub(super) dropped: Vec<String>,
}
