//! Rules by the flags of genv 1.4.3.

use std::time::Duration;

use clap::{ArgAction, Args};

use crate::config::{PeerFlags, UserMaximum};

/// Flags of genv 1.4.3's 'genv enforce'.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rules of genv 1.4.3, instead of --config: enforced at once, without a warning")]
pub(super) struct PeerArguments {
    /// Apply the rules that genv 1.4.3 applies without flags: --env-devices and --env-memory.
    #[arg(long, conflicts_with = "config")]
    genv_1: bool,

    /// End processes outside of any environment.
    #[arg(long, overrides_with = "no_non_env_processes", conflicts_with = "config", action = ArgAction::SetTrue)]
    non_env_processes: bool,
    /// Leave them alone (the default).
    #[arg(long, overrides_with = "non_env_processes", conflicts_with = "config", action = ArgAction::SetTrue)]
    no_non_env_processes: bool,

    /// End processes on devices that their environment is not attached to (the default).
    #[arg(long, overrides_with = "no_env_devices", conflicts_with = "config", action = ArgAction::SetTrue)]
    env_devices: bool,
    /// Leave them alone.
    #[arg(long, overrides_with = "env_devices", conflicts_with = "config", action = ArgAction::SetTrue)]
    no_env_devices: bool,

    /// End processes of environments that use more memory than they have (the default).
    #[arg(long, overrides_with = "no_env_memory", conflicts_with = "config", action = ArgAction::SetTrue)]
    env_memory: bool,
    /// Leave them alone.
    #[arg(long, overrides_with = "env_memory", conflicts_with = "config", action = ArgAction::SetTrue)]
    no_env_memory: bool,

    /// Devices that each user may have attached, on all hosts together.
    #[arg(long, value_name = "NUMBER", conflicts_with = "config")]
    max_devices_per_user: Option<u32>,

    /// The same for single users.
    #[arg(long, value_name = "USER=NUMBER", num_args = 1.., conflicts_with = "config")]
    max_devices_for_user: Vec<UserMaximum>,
}

impl PeerArguments {
    /// The chosen rules; absent if the command line names none.
    pub(super) fn flags(&self, interval: Option<Duration>) -> Option<PeerFlags> {
        let given = self.genv_1
            || self.non_env_processes
            || self.no_non_env_processes
            || self.env_devices
            || self.no_env_devices
            || self.env_memory
            || self.no_env_memory
            || self.max_devices_per_user.is_some()
            || !self.max_devices_for_user.is_empty();
        given.then(|| PeerFlags {
            non_env_processes: self.non_env_processes,
            env_devices: !self.no_env_devices,
            env_memory: !self.no_env_memory,
            max_devices_per_user: self.max_devices_per_user,
            max_devices_for_user: self.max_devices_for_user.clone(),
            interval: interval.unwrap_or(PeerFlags::default().interval),
        })
    }
}
