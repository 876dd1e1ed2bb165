//! Flags that genv's daemons have in common, where they read other hosts.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use genv_core::duration::parse_duration;

use crate::conversation::ServeOptions;
use crate::follow::{FollowOptions, HostSource, SshDial};
use crate::hosts::{HostList, HostListError};
use crate::session::Timeouts;

/// Flags that name hosts, and say how to reach them.
#[derive(Clone, Debug, Args)]
pub struct HostFlags {
    /// Hosts to read over SSH instead of this machine: gpu01,admin@gpu02:2222,gpu[03-08]; may be repeated.
    #[arg(long = "host", value_name = "HOSTS", help_heading = HEADING)]
    hosts: Vec<String>,

    /// File with a host on each line, read again when it changes.
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    hostfile: Option<PathBuf>,

    /// User to log in as where neither the host nor ssh_config names one.
    #[arg(long = "ssh.login", value_name = "USER", help_heading = HEADING)]
    pub login: Option<String>,

    /// How long a host may take until it answers.
    #[arg(long = "ssh.connect-timeout", value_name = "DURATION", default_value = "10s", value_parser = parse_duration, help_heading = HEADING)]
    pub connect_timeout: Duration,

    /// Run genv there by 'sudo -n', to see the processes of all users.
    #[arg(long = "ssh.sudo", help_heading = HEADING)]
    pub sudo: bool,
}

/// Hosts that are connecting at the same time: each is some milliseconds of a processor, and an attempt at each host.
const CONCURRENCY: usize = 64;

const HEADING: &str = "Other hosts";

impl HostFlags {
    /// Whether hosts are named at all.
    #[must_use]
    pub fn name_hosts(&self) -> bool {
        !self.hosts.is_empty() || self.hostfile.is_some()
    }

    /// How the hosts are reached; `enforce`: to let them act too.
    #[must_use]
    pub fn dial(&self, enforce: bool) -> SshDial {
        let timeouts = Timeouts { connect: Some(self.connect_timeout), ..Timeouts::default() };
        SshDial {
            login: self.login.clone(),
            timeouts,
            serve: ServeOptions { sudo: self.sudo, enforce, answer_timeout: self.connect_timeout },
        }
    }

    /// How they are followed.
    #[must_use]
    pub fn follow_options(&self, interval: Duration, max_age: Duration) -> FollowOptions {
        FollowOptions { interval, max_age, connect_timeout: self.connect_timeout, concurrency: CONCURRENCY }
    }

    /// The hosts, and those that they are now.
    ///
    /// # Errors
    /// What is given names no hosts.
    pub fn open(&self) -> Result<(HostSource, HostList), HostListError> {
        let fixed = match self.hosts.is_empty() {
            true => HostList::default(),
            false => HostList::parse_flag(&self.hosts.join(","))?,
        };
        HostSource::open(fixed, self.hostfile.clone())
    }
}
