//! Flags of genv's daemons for other hosts.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use genv_core::duration::parse_duration;

use crate::conversation::ServeOptions;
use crate::follow::{FollowOptions, HostSource, SshDial};
use crate::hosts::{HostList, HostListError, login_name};
use crate::session::{LoginAttempts, Timeouts};

/// Flags that name hosts and configure the connections to them.
#[derive(Clone, Debug, Args)]
pub struct HostFlags {
    /// Hosts to read over SSH instead of this machine: gpu01,admin@gpu02:2222,gpu[03-08]; may be repeated.
    #[arg(long = "host", value_name = "HOSTS", help_heading = HEADING)]
    hosts: Vec<String>,

    /// File with a host on each line, read again when it changes.
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    hostfile: Option<PathBuf>,

    /// User to log in as, for a host without a user in its name or in ssh_config.
    #[arg(long = "ssh.login", value_name = "USER", value_parser = login_name, help_heading = HEADING)]
    pub login: Option<String>,

    /// Time limit for each step of connecting to a host.
    #[arg(long = "ssh.connect-timeout", value_name = "DURATION", default_value = "10s", value_parser = parse_duration, help_heading = HEADING)]
    pub connect_timeout: Duration,

    /// Run genv on the hosts by 'sudo -n', to see the processes of all users.
    #[arg(long = "ssh.sudo", help_heading = HEADING)]
    pub sudo: bool,
}

/// The number of hosts that connect at the same time. A connection costs some milliseconds of processor time at both ends.
const CONCURRENCY: usize = 64;

const HEADING: &str = "Other hosts";

impl HostFlags {
    /// Whether a flag names hosts.
    pub fn name_hosts(&self) -> bool {
        !self.hosts.is_empty() || self.hostfile.is_some()
    }

    /// How to connect to the hosts. `enforce`: the hosts also accept step requests.
    pub fn dial(&self, enforce: bool) -> SshDial {
        let timeouts = Timeouts { connect: Some(self.connect_timeout), ..Timeouts::default() };
        SshDial {
            login: self.login.clone(),
            timeouts,
            serve: ServeOptions { sudo: self.sudo, enforce, answer_timeout: self.connect_timeout },
            attempts: LoginAttempts::default(),
        }
    }

    /// How to follow the hosts.
    pub fn follow_options(&self, interval: Duration, max_age: Duration) -> FollowOptions {
        FollowOptions { interval, max_age, connect_timeout: self.connect_timeout, concurrency: CONCURRENCY }
    }

    /// The source of hosts, and the hosts that it names now.
    ///
    /// # Errors
    /// The flags name no hosts, or hosts that cannot be used.
    pub fn open(&self) -> Result<(HostSource, HostList), HostListError> {
        let fixed = match self.hosts.is_empty() {
            true => HostList::default(),
            false => HostList::parse_flag(&self.hosts.join(","))?,
        };
        HostSource::open(fixed, self.hostfile.clone())
    }
}
