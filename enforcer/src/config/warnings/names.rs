//! Users, groups and programs that are not there.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use genv_core::yaml::Located;

use super::{Found, written_limits};
use crate::config::format::{ConfigFile, LimitEntry, LimitTable};
use crate::config::{Accounts, Config, Limit};

type Names = Option<Located<Vec<Located<String>>>>;

pub(super) fn find(file: &ConfigFile, config: &Config, accounts: &dyn Accounts, found: &mut Found<'_>) {
    let mut looker = Looker { accounts, found };
    looker.users(&file.never.users);
    for path in file.never.executables.iter().flat_map(|paths| &paths.value) {
        let message = unprotected(Path::new(&path.value)).unwrap_or_else(|| protects_less(&path.value));
        looker.found.at(path.referenced, message);
    }
    for waiver in &file.waivers {
        waiver.value.users.value.iter().for_each(|name| looker.user(name));
    }
    for (entry, rule) in file.rules.iter().zip(&config.rules) {
        let entry = &entry.value;
        for (written, limit) in written_limits(entry, rule) {
            if let LimitEntry::Table(table) = &written.value {
                looker.limited(table, limit);
            }
        }
        if let Some(selector) = &entry.selector {
            let selector = &selector.value;
            looker.users(&selector.users);
            looker.groups(&selector.groups);
            looker.users(&selector.except_users);
            looker.groups(&selector.except_groups);
            looker.nobody_in_common(&selector.users, &selector.groups);
        }
    }
}

struct Looker<'l, 'f> {
    accounts: &'l dyn Accounts,
    found: &'l mut Found<'f>,
}

impl Looker<'_, '_> {
    fn users(&mut self, names: &Names) {
        names.iter().flat_map(|names| &names.value).for_each(|name| self.user(name));
    }

    fn groups(&mut self, names: &Names) {
        names.iter().flat_map(|names| &names.value).for_each(|name| self.group(name));
    }

    /// A user may be named and have the uid too, for times without a name service, but only with the same limit.
    fn limited(&mut self, table: &LimitTable, limit: &Limit<u64>) {
        table.groups.0.iter().for_each(|(name, _)| self.group(name));
        let mut limited = BTreeMap::new();
        for (name, _) in &table.users.0 {
            self.user(name);
            let amount = limit.users.get(&name.value);
            let Some(uid) = self.accounts.uid_of(&name.value) else {
                continue;
            };
            if let Some((other, first)) = limited.insert(uid, (name, amount))
                && first != amount
            {
                let message = format!(
                    "{} and {} are one user, uid {uid}, with two limits: leave one out",
                    other.value, name.value
                );
                self.found.mistake(name.referenced, message);
            }
        }
    }

    fn user(&mut self, name: &Located<String>) {
        // No account is that of root in a container.
        if !name.value.starts_with("container:") {
            let known = self.accounts.user_name(&name.value);
            let is_uid = name.value.starts_with("uid:");
            self.known("user", name, known.map(|known| if is_uid { name.value.clone() } else { known }));
        }
    }

    fn group(&mut self, name: &Located<String>) {
        let known = self.accounts.group_name(&name.value);
        self.known("group", name, known);
    }

    /// Rules compare names as they are written, and the name service may know another spelling.
    fn known(&mut self, what: &str, name: &Located<String>, known: Option<String>) {
        let written = &name.value;
        let message = match known {
            None => format!("this machine knows no {what} {written}: the rest holds as it stands"),
            Some(known) if known != *written => {
                format!(
                    "this machine calls the {what} {written} {known}, and rules compare names as written: write {known}"
                )
            }
            Some(_) => return,
        };
        self.found.at(name.referenced, message);
    }

    /// Users and groups must both hold, which people may take for either.
    fn nobody_in_common(&mut self, users: &Names, groups: &Names) {
        let (Some(users), Some(groups)) = (users, groups) else {
            return;
        };
        let is_member = |user: &Located<String>| {
            let of_user = self.accounts.groups_of(&user.value);
            of_user.is_none_or(|of_user| groups.value.iter().any(|group| of_user.contains(&group.value)))
        };
        if !users.value.iter().any(is_member) {
            let message = "none of these users is in these groups, and a rule looks at those for whom both hold: make it \
                           two rules";
            self.found.at(users.referenced, message);
        }
    }
}

/// Why an executable of `never` protects nobody, or the wrong one.
fn unprotected(path: &Path) -> Option<String> {
    let shown = path.display();
    let Ok(metadata) = fs::metadata(path) else {
        return Some(format!("there is no {shown} on this machine"));
    };
    if !metadata.is_file() {
        return Some(format!("{shown} is not a program"));
    }
    if metadata.uid() != 0 {
        return Some(format!(
            "{shown} is not root's, and the enforcer spares only programs that are: 'chown root' it, or leave it out"
        ));
    }
    if metadata.mode() & 0o022 != 0 {
        return Some(format!("others than root can write to {shown}, and so be spared by any rule: 'chmod go-w' it"));
    }
    None
}

/// What an executable under `never` protects since its user counts besides its file.
fn protects_less(path: &str) -> String {
    format!(
        "{path} protects less than before: the user who starts a program chooses what it loads, so that it is out of reach only as a process of root, of a user of the system, or of the user who sits at the machine, in that session. \
         Name other users whom no rule may reach under never: users"
    )
}
