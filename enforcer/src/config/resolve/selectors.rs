//! Hosts by name, range and group, and whom and what a rule looks at.

use std::collections::{BTreeMap, BTreeSet};

use genv_core::hosts;
use genv_core::yaml::Located;

use super::{Checked, Resolver};
use crate::config::format::{ConfigFile, Count, MatchEntry};
use crate::config::{HostSet, Selector};

/// Named in all by one file, each as often as it is; more than any lab has.
const MOST_NAMED_HOSTS: usize = 200_000;

type Names = Located<Vec<Located<String>>>;

impl Resolver<'_> {
    pub(super) fn host_groups<'f>(&self, file: &'f ConfigFile) -> Checked<BTreeMap<&'f str, BTreeSet<String>>> {
        let mut groups = BTreeMap::new();
        for (name, patterns) in &file.host_groups.0 {
            self.check_name(name)?;
            groups.insert(name.value.as_str(), self.patterns(patterns)?);
        }
        Ok(groups)
    }

    fn patterns(&self, list: &Names) -> Checked<BTreeSet<String>> {
        let named = self.set(list, "hosts", |pattern| {
            let names = self.valid(pattern.referenced, hosts::expand(&pattern.value))?;
            self.count_hosts(pattern, names.len())?;
            Ok(names)
        })?;
        Ok(named.into_iter().flatten().collect())
    }

    /// Names are few where they are written, and could be billions where they are meant.
    fn count_hosts(&self, place: &Located<String>, more: usize) -> Checked<()> {
        let named = self.named_hosts.get().saturating_add(more);
        self.named_hosts.set(named);
        if named > MOST_NAMED_HOSTS {
            let message =
                format!("with these the file names more than {MOST_NAMED_HOSTS} hosts: make the ranges smaller");
            return self.refuse(place.referenced, message);
        }
        Ok(())
    }

    /// The hosts that are named themselves or by their group; nothing if neither key is there.
    pub(super) fn hosts(&self, names: Option<&Names>, groups: Option<&Names>) -> Checked<Option<HostSet>> {
        let mut all = BTreeSet::new();
        if let Some(names) = names {
            all.extend(self.patterns(names)?);
        }
        if let Some(groups) = groups {
            for hosts in self.set(groups, "host groups", |name| self.host_group(name))? {
                all.extend(hosts.iter().cloned());
            }
        }
        Ok((names.is_some() || groups.is_some()).then_some(HostSet(all)))
    }

    fn host_group(&self, name: &Located<String>) -> Checked<&BTreeSet<String>> {
        if let Some(hosts) = self.host_groups.get(name.value.as_str()) {
            self.count_hosts(name, hosts.len())?;
            return Ok(hosts);
        }
        let message =
            format!("there is no host group '{}': add it to host_groups, with its hosts", name.value.escape_debug());
        self.refuse(name.referenced, message)
    }

    pub(super) fn selector(&self, selector: &Located<MatchEntry>) -> Checked<Selector> {
        let entry = &selector.value;
        let names = |list: &Option<Names>, what| list.as_ref().map(|list| self.names(list, what)).transpose();
        let devices = |list: &Option<Located<Vec<Located<Count>>>>| {
            let list = list.as_ref();
            list.map(|list| self.set(list, "devices", |index| Ok(index.value.0))).transpose()
        };
        let selected = Selector {
            users: names(&entry.users, "users")?,
            groups: names(&entry.groups, "groups")?,
            hosts: self.hosts(entry.hosts.as_ref(), entry.host_groups.as_ref())?,
            devices: devices(&entry.devices)?,
            except_users: names(&entry.except_users, "users")?.unwrap_or_default(),
            except_groups: names(&entry.except_groups, "groups")?.unwrap_or_default(),
            except_hosts: self
                .hosts(entry.except_hosts.as_ref(), entry.except_host_groups.as_ref())?
                .unwrap_or_default(),
            except_devices: devices(&entry.except_devices)?.unwrap_or_default(),
        };
        if selected == Selector::default() {
            let message = "match whom or what? Name users, groups, hosts or devices, or leave the key out";
            return self.refuse(selector.referenced, message);
        }
        Ok(selected)
    }
}
