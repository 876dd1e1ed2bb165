//! From the file as written to a configuration that can be worked with.

mod limits;
mod rules;
mod selectors;
mod times;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use genv_core::duration::parse_interval;
use genv_core::yaml::{self, Located, Place};
use jiff::tz::TimeZone;

use super::accounts::is_name;
use super::format::{BreakerEntry, ConfigFile, DefaultsEntry, NeverEntry};
use super::load::hash;
use super::{BreakerLimits, Config, Maintenance, Never, Rule, Waiver, zone};
pub(crate) use rules::KindReader;

/// Between cycles, unless the file says.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);

type Checked<T> = Result<T, yaml::Error>;

/// What checking needs of the file besides the value at hand.
pub(super) struct Resolver<'a> {
    source_name: &'a str,
    text: &'a str,
    timezone: TimeZone,
    host_groups: BTreeMap<&'a str, BTreeSet<String>>,
    defaults: &'a DefaultsEntry,
    /// Counted as often as they are named.
    named_hosts: Cell<usize>,
}

/// Checks a file, of a machine in this time zone.
pub(super) fn config(source_name: &str, text: &str, file: &ConfigFile, machine: TimeZone) -> Checked<Config> {
    let mut resolver = Resolver {
        source_name,
        text,
        timezone: TimeZone::UTC,
        host_groups: BTreeMap::new(),
        defaults: &file.defaults,
        named_hosts: Cell::new(0),
    };
    if file.version.value.0 != 1 {
        let message = format!("version {} is not known: this program reads version 1", file.version.value.0);
        return resolver.refuse(file.version.referenced, message);
    }
    resolver.timezone = match &file.timezone {
        Some(name) => resolver.time_zone(name)?,
        None => machine,
    };
    resolver.host_groups = resolver.host_groups(file)?;
    let interval = match &file.interval {
        Some(text) => resolver.valid(text.referenced, parse_interval(&text.value))?,
        None => DEFAULT_INTERVAL,
    };
    let rules = resolver.rules(&file.rules, interval)?;
    Ok(Config {
        hash: hash(text.as_bytes()),
        mode: file.mode.unwrap_or_default(),
        interval,
        timezone: resolver.timezone.clone(),
        never: resolver.never(&file.never)?,
        breaker: resolver.breaker(&file.breaker)?,
        notify_socket: resolver.notify_socket(file)?,
        maintenance: resolver.maintenance(file)?,
        waivers: resolver.waivers(file, &rules)?,
        rules,
    })
}

impl Resolver<'_> {
    fn refuse<T>(&self, place: Place, message: impl Into<String>) -> Checked<T> {
        Err(yaml::Error::at(self.source_name, self.text, place, message))
    }

    /// What was read of a value, or why it cannot be.
    fn valid<T>(&self, place: Place, read: Result<T, impl ToString>) -> Checked<T> {
        read.or_else(|error| self.refuse(place, error.to_string()))
    }

    fn time_zone(&self, name: &Located<String>) -> Checked<TimeZone> {
        TimeZone::get(&name.value).or_else(|_| {
            let message = format!(
                "'{}' is not a time zone of this machine: write one of the IANA database, such as Europe/Berlin, and \
                 install the package tzdata",
                name.value.escape_debug()
            );
            self.refuse(name.referenced, message)
        })
    }

    /// Refuses a value whose meaning depends on the machine's zone, if that is unknown.
    fn needs_zone(&self, place: Place) -> Checked<()> {
        if !self.timezone.is_unknown() {
            return Ok(());
        }
        let message = format!(
            "the time zone of this machine is unknown: {}. Write 'timezone: Europe/Berlin', or the like, into this \
             file, and install the package tzdata",
            zone::why_unknown()
        );
        self.refuse(place, message)
    }

    /// A list that must have something in it, each once: an empty one could mean nothing or everything.
    fn set<T: Ord + Clone, U>(
        &self,
        list: &Located<Vec<Located<U>>>,
        what: &str,
        read: impl Fn(&Located<U>) -> Checked<T>,
    ) -> Checked<BTreeSet<T>> {
        if list.value.is_empty() {
            let message = format!("an empty list of {what} says nothing: name some, or leave the key out");
            return self.refuse(list.referenced, message);
        }
        list.value.iter().map(read).collect()
    }

    /// Users or groups, as the name service calls them.
    fn names(&self, list: &Located<Vec<Located<String>>>, what: &str) -> Checked<BTreeSet<String>> {
        self.set(list, what, |name| {
            self.check_name(name)?;
            Ok(name.value.clone())
        })
    }

    fn check_name(&self, name: &Located<String>) -> Checked<()> {
        // A uid is written in one way, as facts have it: `uid:01` would never be found.
        let is_canonical = |uid: &str| uid.parse::<u32>().is_ok_and(|number| number.to_string() == uid);
        let number_is_wrong = name.value.strip_prefix("uid:").is_some_and(|uid| !is_canonical(uid));
        if !is_name(&name.value) || number_is_wrong {
            let message = format!(
                "'{}' cannot be a name: write one as the machine knows it, such as alice, or uid:1234 for a user who \
                 has none",
                name.value.escape_debug()
            );
            return self.refuse(name.referenced, message);
        }
        Ok(())
    }

    fn never(&self, entry: &NeverEntry) -> Checked<Never> {
        let users = entry.users.as_ref().map(|users| self.names(users, "users"));
        let executables = entry.executables.as_ref().map(|paths| {
            self.set(paths, "executables", |path| {
                // As `/proc/PID/exe` shows it: nothing that a path can say in two ways.
                let plain = path.value.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."));
                if !path.value.starts_with('/') || !plain || path.value.contains(char::is_control) {
                    let message = format!(
                        "'{}' is not the whole path of a program: write it as 'readlink /proc/PID/exe' shows it, such \
                         as /usr/lib/xorg/Xorg. Names of processes protect nothing: anybody can take one",
                        path.value.escape_debug()
                    );
                    return self.refuse(path.referenced, message);
                }
                Ok(PathBuf::from(&path.value))
            })
        });
        Ok(Never {
            users: users.transpose()?.unwrap_or_default(),
            executables: executables.transpose()?.unwrap_or_default(),
        })
    }

    fn breaker(&self, entry: &BreakerEntry) -> Checked<BreakerLimits> {
        let standard = BreakerLimits::default();
        if let Some(share) = &entry.share_of_users
            && share.value.0 == 0.0
        {
            return self.refuse(
                share.referenced,
                "a share of 0 stops every action: write 0.5 for half of the users, or leave rules at action: report",
            );
        }
        if let Some(signals) = &entry.signals_per_minute
            && signals.value.0 == 0
        {
            return self.refuse(
                signals.referenced,
                "0 signals a minute stop every action: write 1 or more, or leave rules at action: report",
            );
        }
        let count = |entry: &Option<Located<super::format::Count>>| entry.as_ref().map(|entry| entry.value.0);
        Ok(BreakerLimits {
            signals_per_minute: count(&entry.signals_per_minute).unwrap_or(standard.signals_per_minute),
            share_of_users: entry.share_of_users.as_ref().map_or(standard.share_of_users, |share| share.value.0),
            at_least_users: count(&entry.at_least_users).unwrap_or(standard.at_least_users),
        })
    }

    fn notify_socket(&self, file: &ConfigFile) -> Checked<Option<PathBuf>> {
        let Some(entry) = &file.notify else {
            return Ok(None);
        };
        let socket = &entry.value.socket;
        // The kernel takes no longer one.
        if !socket.value.starts_with('/') || socket.value.len() > 107 || socket.value.contains('\0') {
            let message = format!(
                "'{}' is not the whole path of a socket: write that of genv-notify.socket, /run/genv/notify.sock",
                socket.value.escape_debug()
            );
            return self.refuse(socket.referenced, message);
        }
        Ok(Some(PathBuf::from(&socket.value)))
    }

    fn maintenance(&self, file: &ConfigFile) -> Checked<Vec<Maintenance>> {
        let windows = file.maintenance.iter().map(|window| {
            let entry = &window.value;
            let Some(hosts) = self.hosts(entry.hosts.as_ref(), entry.host_groups.as_ref())? else {
                return self.refuse(window.referenced, "maintenance of which hosts? Name hosts or host_groups");
            };
            let from_seconds = self.moment(&entry.from, times::Edge::Begin)?;
            let until_seconds = self.moment(&entry.until, times::Edge::End)?;
            if until_seconds <= from_seconds {
                return self.refuse(entry.until.referenced, "it ends before it begins: until must be after from");
            }
            Ok(Maintenance { hosts, from_seconds, until_seconds })
        });
        windows.collect()
    }

    fn waivers(&self, file: &ConfigFile, rules: &[Rule]) -> Checked<Vec<Waiver>> {
        let waivers = file.waivers.iter().map(|waiver| {
            let entry = &waiver.value;
            let of_rules = entry.rules.as_ref().map(|names| {
                self.set(names, "rules", |name| {
                    if rules.iter().any(|rule| rule.name == name.value) {
                        return Ok(name.value.clone());
                    }
                    let known: Vec<_> = rules.iter().map(|rule| rule.name.as_str()).collect();
                    let message = format!(
                        "there is no rule '{}': the rules are {}",
                        name.value.escape_debug(),
                        if known.is_empty() { "none".to_owned() } else { known.join(", ") }
                    );
                    self.refuse(name.referenced, message)
                })
            });
            Ok(Waiver {
                users: self.names(&entry.users, "users")?,
                rules: of_rules.transpose()?.unwrap_or_default(),
                until_seconds: self.moment(&entry.until, times::Edge::End)?,
                reason: entry.reason.value.0.clone(),
            })
        });
        waivers.collect()
    }
}
