//! A configuration from the flags of genv 1.4.3's `genv enforce`.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use genv_core::model::system_time_zone;
use serde::{Deserialize, Serialize};

use super::accounts::is_name;
use super::load::hash;
use super::{
    Action, BreakerLimits, Config, DetachedProcesses, Limit, Limits, Mode, Never, Rule, Scope, Selector, Undelivered,
};
use crate::kinds::{EnvDevices, EnvMemory, MaxDevicesPerUser, NonEnvProcesses, RuleKind};

/// What the flags of genv 1.4.3 say; its defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerFlags {
    /// `--[no-]non-env-processes`.
    pub non_env_processes: bool,
    /// `--[no-]env-devices`.
    pub env_devices: bool,
    /// `--[no-]env-memory`.
    pub env_memory: bool,
    /// `--max-devices-per-user N`.
    pub max_devices_per_user: Option<u32>,
    /// `--max-devices-for-user USER=N…`; of a user given twice, the last.
    pub max_devices_for_user: Vec<UserMaximum>,
    /// `--interval S`, in seconds there; zero is one cycle.
    pub interval: Duration,
}

impl Default for PeerFlags {
    fn default() -> Self {
        Self {
            non_env_processes: false,
            env_devices: true,
            env_memory: true,
            max_devices_per_user: None,
            max_devices_for_user: Vec::new(),
            interval: Duration::from_secs(10),
        }
    }
}

/// One user's maximum: `alice=2`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserMaximum {
    /// The user.
    pub username: String,
    /// Devices.
    pub devices: u32,
}

/// A text that is not a user's maximum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{}' is not a user's maximum: write USER=N, such as alice=2", .0.escape_debug())]
pub struct ParseUserMaximumError(String);

impl FromStr for UserMaximum {
    type Err = ParseUserMaximumError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let maximum = text.split_once('=').and_then(|(username, devices)| {
            let digits = devices.bytes().all(|b| b.is_ascii_digit());
            (is_name(username) && digits).then_some(())?;
            Some(Self { username: username.to_owned(), devices: devices.parse().ok()? })
        });
        maximum.ok_or_else(|| ParseUserMaximumError(text.to_owned()))
    }
}

impl Config {
    /// What genv 1.4.3 does with these flags: at once, without a warning, and really. Two things differ: a maximum for
    /// a user counts without one for all, and what nobody may end is not ended.
    pub fn from_flags(flags: &PeerFlags) -> Self {
        let rule = |kind: RuleKind, action: Action| Rule {
            name: kind.word().to_owned(),
            kind,
            action,
            for_duration: Duration::ZERO,
            warn: Vec::new(),
            undelivered: Undelivered::Act,
            grace: Duration::ZERO,
            processes: DetachedProcesses::Terminate,
            selector: Selector::default(),
            schedule: None,
            remember: Duration::ZERO,
        };
        let maximum = Limit {
            default: flags.max_devices_per_user.map(u64::from),
            groups: BTreeMap::new(),
            users: flags.max_devices_for_user.iter().map(|it| (it.username.clone(), u64::from(it.devices))).collect(),
        };
        let limited = maximum.default.is_some() || !maximum.users.is_empty();
        let rules = [
            flags.non_env_processes.then(|| rule(NonEnvProcesses.into(), Action::Terminate)),
            flags.env_devices.then(|| rule(EnvDevices.into(), Action::Terminate)),
            flags.env_memory.then(|| rule(EnvMemory.into(), Action::Terminate)),
            limited.then(|| {
                let kind = MaxDevicesPerUser {
                    limits: Limits { base: maximum, overrides: Vec::new() },
                    scope: Scope::AllHosts,
                };
                rule(kind.into(), Action::Detach)
            }),
        ];
        Self {
            hash: hash(format!("{flags:?}").as_bytes()),
            mode: Mode::Enforce,
            interval: flags.interval,
            timezone: system_time_zone(),
            never: Never::default(),
            breaker: BreakerLimits::default(),
            notify_socket: None,
            maintenance: Vec::new(),
            waivers: Vec::new(),
            rules: rules.into_iter().flatten().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_is_a_rule() {
        let flags = PeerFlags {
            non_env_processes: true,
            env_devices: false,
            env_memory: false,
            max_devices_per_user: Some(2),
            max_devices_for_user: vec!["alice=4".parse().unwrap(), "bob=0".parse().unwrap()],
            interval: Duration::ZERO,
        };
        let config = Config::from_flags(&flags);
        assert_eq!(config.interval, Duration::ZERO);
        let rules: Vec<_> = config.rules.iter().map(|rule| (rule.name.as_str(), rule.action)).collect();
        assert_eq!(rules, [("non-env-processes", Action::Terminate), ("max-devices-per-user", Action::Detach)]);
        let kind = &config.rules[1].kind;
        let limits = kind.limits().unwrap();
        assert_eq!(kind.scope(), Scope::AllHosts);
        assert_eq!(limits.base.default, Some(2));
        assert_eq!(limits.base.users, BTreeMap::from([("alice".to_owned(), 4), ("bob".to_owned(), 0)]));
        assert_eq!(config.rules[1].processes, DetachedProcesses::Terminate);
    }

    #[test]
    fn a_maximum_for_a_user_needs_none_for_all() {
        let flags =
            PeerFlags { max_devices_for_user: vec![r"CORP\ann lee=1".parse().unwrap()], ..PeerFlags::default() };
        let config = Config::from_flags(&flags);
        let limits = config.rules[2].kind.limits().unwrap();
        assert_eq!(limits.base.default, None);
        assert_eq!(limits.base.users, BTreeMap::from([(r"CORP\ann lee".to_owned(), 1)]));
    }

    #[test]
    fn what_is_no_maximum_of_a_user_is_refused() {
        for text in ["", "alice", "=1", "alice=", "alice=-1", "alice=+1", "alice=two", "alice=1=2", "alice =1"] {
            let error = text.parse::<UserMaximum>().unwrap_err().to_string();
            assert!(error.contains("write USER=N"), "{error}");
        }
    }

    #[test]
    fn other_flags_have_another_hash() {
        let other = PeerFlags { env_memory: false, ..PeerFlags::default() };
        let hash = |flags: &PeerFlags| Config::from_flags(flags).hash;
        assert_eq!(hash(&PeerFlags::default()), hash(&PeerFlags::default()));
        assert_ne!(hash(&PeerFlags::default()), hash(&other));
    }
}
