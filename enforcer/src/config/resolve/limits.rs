//! Limits, of whatever they count.

use std::collections::BTreeMap;

use genv_core::model::MemoryAmount;
use genv_core::yaml::{Located, Place};

use super::{Checked, Resolver};
use crate::config::format::{Amount, LimitEntry, OverrideEntry, Pairs, count, span};
use crate::config::{Limit, Limits};
use crate::kinds::Quantity;

impl Quantity {
    /// Reads an amount.
    fn read(self, text: &str) -> Result<u64, String> {
        match self {
            Self::Number(_) => count(text).map(u64::from),
            Self::Memory => {
                let amount = MemoryAmount::from_file(text).and_then(|amount| match amount.bytes() {
                    0 => Ok(amount),
                    _ => MemoryAmount::from_person(text),
                });
                amount.map(MemoryAmount::bytes).map_err(|error| error.to_string())
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
        quantity: Quantity,
        base: &Located<LimitEntry>,
        overrides: Option<&Located<Vec<Located<OverrideEntry>>>>,
    ) -> Checked<Limits<u64>> {
        let mut limits = Limits { base: self.limit(quantity, base)?, overrides: Vec::new() };
        for entry in overrides.into_iter().flat_map(|list| &list.value) {
            let OverrideEntry { hosts, host_groups, limit } = &entry.value;
            let Some(hosts) = self.hosts(hosts.as_ref(), host_groups.as_ref())? else {
                return self.refuse(entry.referenced, "an override for which hosts? Name hosts or host_groups");
            };
            limits.overrides.push((hosts, self.limit(quantity, limit)?));
        }
        Ok(limits)
    }

    /// A number as it stands in the file: YAML has others that look like it, such as `0o10`, which is 8.
    fn number_as_written<'b>(&'b self, place: Place, number: &'b str) -> &'b str {
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let position = |n: u64| usize::try_from(n).ok()?.checked_sub(1);
        let written = position(place.line()).zip(position(place.column()));
        let written = written.and_then(|(line, column)| {
            let line = self.text.lines().nth(line)?;
            let (start, _) = line.char_indices().nth(column)?;
            let ends = |c: char| c.is_whitespace() || matches!(c, ',' | ']' | '}');
            line[start..].split(ends).next()
        });
        // What is quoted or stands elsewhere (`*alias`) is what it is.
        let is_plain = |text: &&str| text.starts_with(|c: char| c.is_ascii_digit() || c == '+');
        written.filter(is_plain).filter(|_| is_number).unwrap_or(number)
    }

    fn limit(&self, quantity: Quantity, entry: &Located<LimitEntry>) -> Checked<Limit<u64>> {
        let amount =
            |place: Place, Amount(text): &Amount| self.valid(place, quantity.read(self.number_as_written(place, text)));
        let amounts = |pairs: &Pairs<Amount>| -> Checked<BTreeMap<String, u64>> {
            let amounts = pairs.0.iter().map(|(name, text)| {
                self.check_name(name)?;
                Ok((name.value.clone(), amount(text.referenced, &text.value)?))
            });
            amounts.collect()
        };
        match &entry.value {
            LimitEntry::ForAll(text) => Ok(Limit {
                default: Some(amount(entry.referenced, text)?),
                groups: BTreeMap::new(),
                users: BTreeMap::new(),
            }),
            LimitEntry::Table(table) => {
                let default = table.default.as_ref().map(|text| amount(text.referenced, &text.value));
                let limit = Limit {
                    default: default.transpose()?,
                    groups: amounts(&table.groups)?,
                    users: amounts(&table.users)?,
                };
                if limit.default.is_none() && limit.groups.is_empty() && limit.users.is_empty() {
                    return self.refuse(entry.referenced, "a limit for nobody: say default, groups or users");
                }
                Ok(limit)
            }
        }
    }
}
