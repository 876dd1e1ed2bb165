//! Which limit applies to whom, and why.

use std::fmt;

use super::facts::UserFacts;
use crate::config::{Limit, Limits};

/// A limit that applies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Applied<'a> {
    pub(super) value: u64,
    by: By<'a>,
    /// The host that has a limit of its own.
    pub(super) host: Option<&'a str>,
}

/// Whose limit it is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By<'a> {
    User(&'a str),
    Group(&'a str),
    Default,
}

impl fmt::Display for Applied<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            By::User(name) => write!(f, "for {}", name.escape_debug())?,
            By::Group(name) => write!(f, "for members of {}", name.escape_debug())?,
            By::Default => write!(f, "by default")?,
        }
        match self.host {
            Some(host) => write!(f, " on {}", host.escape_debug()),
            None => Ok(()),
        }
    }
}

/// The limit of a user, on a host or over all; absent: none.
pub(super) fn applied<'a>(
    limits: &'a Limits<u64>,
    user: &UserFacts<'a>,
    host: Option<&'a str>,
) -> Option<Applied<'a>> {
    let own = host.and_then(|host| {
        let mut overrides = limits.overrides.iter();
        let (_, limit) = overrides.find(|(hosts, _)| hosts.0.contains(host))?;
        Some((host, limit))
    });
    let base = &limits.base;
    let (own_host, own) = own.map_or((None, None), |(host, limit)| (Some(host), Some(limit)));
    let pick = |of: &dyn Fn(&'a Limit<u64>) -> Option<u64>| {
        if let Some(value) = own.and_then(of) {
            return Some((value, own_host));
        }
        of(base).map(|value| (value, None))
    };
    let with = |by, (value, host)| Applied { value, by, host };

    if let Some(found) = pick(&|limit| user.names().find_map(|name| limit.users.get(name).copied()))
    {
        return Some(with(By::User(user.name), found));
    }
    let own_groups = own.into_iter().flat_map(|limit| limit.groups.keys());
    let names = own_groups.chain(base.groups.keys());
    let largest = names
        .filter(|name| user.groups.is_none_or(|groups| groups.contains(*name)))
        .filter_map(|name| Some((name, pick(&|limit| limit.groups.get(name).copied())?)))
        .max_by(|(a_name, a), (b_name, b)| a.0.cmp(&b.0).then_with(|| b_name.cmp(a_name)));
    let default = pick(&|limit| limit.default).map(|found| with(By::Default, found));
    if let Some((name, found)) = largest {
        let of_group = with(By::Group(name), found);
        // Who may be a member, or not, has the larger one; who is no member and has none is not limited at all.
        return match user.groups {
            Some(_) => Some(of_group),
            None => default.map(|default| {
                if default.value > of_group.value {
                    default
                } else {
                    of_group
                }
            }),
        };
    }
    default
}
