//! Flags for the hosts and the connections to them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use genv_remote::conversation::ServeOptions;
use genv_remote::follow::{FollowOptions, HostSource, SshDial};
use genv_remote::{HostList, HostListError, LoginAttempts, Timeouts, login_name};

use crate::completion;
use crate::failure::Failure;

/// Default time limit for each step of a connection.
const CONNECT_SECONDS: u32 = 10;

/// The number of hosts that connect at the same time.
pub(super) const CONCURRENCY: usize = 64;

#[derive(Debug, Args)]
#[group(skip)]
pub(in crate::commands) struct HostFlags {
    /// Hosts to query: gpu01,alice@gpu02:2222,gpu[03-08]; may be repeated.
    #[arg(
        short = 'H',
        long = "host",
        value_name = "HOSTS",
        add = completion::hosts()
    )]
    hosts: Vec<String>,

    /// File with a host on each line.
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,

    /// User to log in as, for a host without a user in its name.
    #[arg(short = 'l', long, value_name = "USER", value_parser = login_name)]
    username: Option<String>,

    /// Time limit for each step of connecting to a host, in seconds.
    #[arg(short, long, value_name = "SECONDS", default_value_t = CONNECT_SECONDS, value_parser = clap::value_parser!(u32).range(1..=3600))]
    timeout: u32,

    /// Run genv on the hosts by 'sudo -n', to see the processes of all users.
    #[arg(long)]
    sudo: bool,
}

#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct RemoteFlags {
    #[command(flatten)]
    pub(super) hosts: HostFlags,

    /// End at the first failed host, without output about the others.
    #[arg(short, long)]
    pub(super) exit_on_error: bool,

    /// Do not print the errors of failed hosts.
    #[arg(short, long)]
    pub(super) quiet: bool,
}

impl HostFlags {
    /// Whether a flag names hosts.
    pub(in crate::commands) fn name_hosts(&self) -> bool {
        !self.hosts.is_empty() || self.hostfile.is_some()
    }

    /// Whether a flag says how other hosts are asked.
    pub(in crate::commands) const fn need_hosts(&self) -> bool {
        self.username.is_some() || self.sudo
    }

    /// The hosts, in the order of the flags.
    ///
    /// # Errors
    /// The flags name no hosts, or an invalid list.
    pub(super) fn list(&self) -> Result<HostList, Failure> {
        if !self.name_hosts() {
            return Err(Failure::Usage(
                "no hosts are named: name them, as in 'genv remote -H gpu[01-08] devices', or name a file that lists \
                 them by --hostfile"
                    .to_owned(),
            ));
        }
        Ok(self.open()?.1)
    }

    /// The source of hosts, and the hosts that it names now.
    ///
    /// # Errors
    /// The flags name no hosts, or an invalid list.
    pub(in crate::commands) fn open(&self) -> Result<(HostSource, HostList), Failure> {
        let usage = |error: HostListError| Failure::Usage(error.to_string());
        let fixed = match self.hosts.is_empty() {
            true => HostList::default(),
            false => HostList::parse_flag(&self.hosts.join(",")).map_err(usage)?,
        };
        HostSource::open(fixed, self.hostfile.clone()).map_err(usage)
    }

    /// How to follow the hosts.
    pub(in crate::commands) fn follow_options(&self, interval: Duration, max_age: Duration) -> FollowOptions {
        FollowOptions { interval, max_age, connect_timeout: self.connect_timeout(), concurrency: CONCURRENCY }
    }

    /// Time limit for each step of a connection.
    pub(super) fn connect_timeout(&self) -> Duration {
        Duration::from_secs(self.timeout.into())
    }

    /// How to connect to the hosts.
    pub(in crate::commands) fn dial(&self) -> SshDial {
        let timeouts = Timeouts { connect: Some(self.connect_timeout()), ..Timeouts::default() };
        SshDial {
            login: self.username.clone(),
            timeouts,
            serve: ServeOptions { sudo: self.sudo, enforce: false, answer_timeout: timeouts.answer },
            attempts: LoginAttempts::default(),
        }
    }

    /// The user to log in as, for a host without a user in its name.
    pub(super) fn login(&self) -> Option<&str> {
        self.username.as_deref()
    }
}

impl RemoteFlags {
    /// The equivalent flags of genv's daemons.
    pub(super) fn daemon_flags(&self) -> Vec<OsString> {
        let mut flags: Vec<OsString> = Vec::new();
        for hosts in &self.hosts.hosts {
            flags.push(format!("--host={hosts}").into());
        }
        if let Some(file) = &self.hosts.hostfile {
            let mut flag = OsString::from("--hostfile=");
            flag.push(file);
            flags.push(flag);
        }
        if let Some(login) = &self.hosts.username {
            flags.push(format!("--ssh.login={login}").into());
        }
        flags.push(format!("--ssh.connect-timeout={}s", self.hosts.timeout).into());
        if self.hosts.sudo {
            flags.push("--ssh.sudo".into());
        }
        if self.quiet {
            flags.push("--log.level=error".into());
        }
        flags
    }
}
