//! The entries of a state file, one after another.

use std::fmt;

use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Calls `take` for each item of the list `key`, or each value of the object `key`, with its key and its text. Returns
/// whether the source has such a list or object.
///
/// # Errors
/// The source is damaged, or has the key twice, or `take` fails.
pub(super) fn for_each<'de, D: Deserializer<'de>>(
    source: D,
    key: &'static str,
    take: impl FnMut(Option<&str>, &RawValue) -> Result<(), serde_json::Error>,
) -> Result<bool, D::Error> {
    source.deserialize_any(Root { key, take })
}

/// Visits of values other than lists and objects: they have no entries.
macro_rules! nothing {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E>(self, _: $type) -> Result<bool, E> {
            Ok(false)
        })*
    };
}

struct Root<F> {
    key: &'static str,
    take: F,
}

impl<'de, F: FnMut(Option<&str>, &RawValue) -> Result<(), serde_json::Error>> Visitor<'de> for Root<F> {
    type Value = bool;

    nothing!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(false)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<bool, A::Error> {
        let mut found = None;
        while let Some(name) = fields.next_key::<String>()? {
            if name != self.key {
                fields.next_value::<IgnoredAny>()?;
            } else if found.is_some() {
                return Err(A::Error::custom(format!("it has '{name}' twice")));
            } else {
                found = Some(fields.next_value_seed(Entries(&mut self.take))?);
            }
        }
        Ok(found.unwrap_or_default())
    }
}

struct Entries<'f, F>(&'f mut F);

impl<'de, F: FnMut(Option<&str>, &RawValue) -> Result<(), serde_json::Error>> serde::de::DeserializeSeed<'de>
    for Entries<'_, F>
{
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<bool, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de, F: FnMut(Option<&str>, &RawValue) -> Result<(), serde_json::Error>> Visitor<'de> for Entries<'_, F> {
    type Value = bool;

    nothing!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list or an object")
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        while let Some(item) = items.next_element::<Box<RawValue>>()? {
            (self.0)(None, &item).map_err(A::Error::custom)?;
        }
        Ok(true)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<bool, A::Error> {
        while let Some((key, value)) = fields.next_entry::<String, Box<RawValue>>()? {
            (self.0)(Some(&key), &value).map_err(A::Error::custom)?;
        }
        Ok(true)
    }
}
