//! Limits, of whatever they count.

use std::collections::BTreeMap;

use genv_core::model::MemoryAmount;
use genv_core::yaml::Located;

use super::{Checked, Resolver};
use crate::config::format::{LimitEntry, OverrideEntry, Pairs, span};
use crate::config::{Limit, Limits};

/// What a limit is an amount of.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    /// Devices, environments, hosts, processes.
    Count,
    /// Bytes.
    Memory,
    /// Seconds.
    Time,
}

impl Unit {
    pub(super) const fn example(self) -> &'static str {
        match self {
            Self::Count => "2",
            Self::Memory => "40gi",
            Self::Time => "7d",
        }
    }

    fn amount(self, text: &str) -> Result<u64, String> {
        match self {
            Self::Count => {
                let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                digits
                    .then(|| text.parse::<u32>().ok())
                    .flatten()
                    .map(u64::from)
                    .ok_or_else(|| {
                        format!(
                            "'{}' is not a whole number from 0 to {}",
                            text.escape_debug(),
                            u32::MAX
                        )
                    })
            }
            Self::Memory => {
                let amount =
                    MemoryAmount::from_file(text).and_then(|amount| match amount.bytes() {
                        0 => Ok(amount),
                        _ => MemoryAmount::from_person(text),
                    });
                amount
                    .map(MemoryAmount::bytes)
                    .map_err(|error| error.to_string())
            }
            Self::Time => {
                let time = span(text)?;
                if time.subsec_nanos() > 0 {
                    return Err(format!("{text} is no number of whole seconds"));
                }
                Ok(time.as_secs())
            }
        }
    }
}

impl Resolver<'_> {
    pub(super) fn limits(
        &self,
        unit: Unit,
        base: &Located<LimitEntry>,
        overrides: Option<&Located<Vec<Located<OverrideEntry>>>>,
    ) -> Checked<Limits<u64>> {
        let mut limits = Limits {
            base: self.limit(unit, base)?,
            overrides: Vec::new(),
        };
        for entry in overrides.into_iter().flat_map(|list| &list.value) {
            let OverrideEntry {
                hosts,
                host_groups,
                limit,
            } = &entry.value;
            let Some(hosts) = self.hosts(hosts.as_ref(), host_groups.as_ref())? else {
                return self.refuse(
                    entry.referenced,
                    "an override for which hosts? Name hosts or host_groups",
                );
            };
            limits.overrides.push((hosts, self.limit(unit, limit)?));
        }
        Ok(limits)
    }

    fn limit(&self, unit: Unit, entry: &Located<LimitEntry>) -> Checked<Limit<u64>> {
        let amounts = |pairs: &Pairs<String>| -> Checked<BTreeMap<String, u64>> {
            let amounts = pairs.0.iter().map(|(name, text)| {
                self.check_name(name)?;
                let amount = self.valid(text.referenced, unit.amount(&text.value))?;
                Ok((name.value.clone(), amount))
            });
            amounts.collect()
        };
        match &entry.value {
            LimitEntry::ForAll(text) => Ok(Limit {
                default: Some(self.valid(entry.referenced, unit.amount(text))?),
                groups: BTreeMap::new(),
                users: BTreeMap::new(),
            }),
            LimitEntry::Table(table) => {
                let limit = Limit {
                    default: table
                        .default
                        .as_ref()
                        .map(|text| self.valid(text.referenced, unit.amount(&text.value)))
                        .transpose()?,
                    groups: amounts(&table.groups)?,
                    users: amounts(&table.users)?,
                };
                if limit.default.is_none() && limit.groups.is_empty() && limit.users.is_empty() {
                    return self.refuse(
                        entry.referenced,
                        "a limit for nobody: say default, groups or users",
                    );
                }
                Ok(limit)
            }
        }
    }
}
