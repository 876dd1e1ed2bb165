//! Values of a configuration that are more than a text.

use genv_core::yaml_scalar;
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use genv_core::duration::parse_duration;
use genv_core::yaml::Located;
use jiff::civil::Weekday;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A value that may be left out, but not be nothing: `users:` without users must not mean everybody.
pub(crate) fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    match Option::deserialize(deserializer)? {
        Some(value) => Ok(Some(value)),
        None => Err(de::Error::custom("the key has no value: give it one, or leave it out")),
    }
}

/// Longer times than this are typing errors.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

yaml_scalar!(
    /// A whole number, of devices, users and the like.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) Count(u32),
    count
);
yaml_scalar!(
    /// A time.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) Span(Duration),
    span
);
yaml_scalar!(
    /// A part, 0–1.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) Ratio(f64),
    |text| text
        .parse()
        .ok()
        .filter(|ratio| (0.0..=1.0).contains(ratio))
        .ok_or_else(|| format!("'{text}' is not a part from 0 to 1: write 0.05 for 5 %"))
);
yaml_scalar!(
    /// A text for people, of one line.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) Text(String),
    |text| match text.trim() {
        "" => Err("the text is empty".to_owned()),
        text if text.chars().count() > 200 => Err("the text has more than 200 characters".to_owned()),
        text if text.contains(char::is_control) => Err("the text has more than one line".to_owned()),
        text => Ok(text.to_owned()),
    }
);

/// Digits only: what other programs take for another number (`010`, `0x10`, `1e3`, `1_000`) is refused.
pub(in crate::config) fn count(text: &str) -> Result<u32, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits && text.len() > 1 && text.starts_with('0') {
        return Err(format!("'{text}' begins with a zero, which some programs take for another number: leave it out"));
    }
    digits
        .then(|| text.parse().ok())
        .flatten()
        .ok_or_else(|| format!("'{}' is not a whole number from 0 to {}", text.escape_debug(), u32::MAX))
}

pub(in crate::config) fn span(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).map_err(|error| error.to_string())?;
    if span > LONGEST {
        return Err(format!("{text} is more than a year: write a shorter time"));
    }
    Ok(span)
}

/// The pairs of a mapping, in its order, each with its places. Of two with one name, the first.
#[derive(Debug)]
pub(crate) struct Pairs<T>(pub(crate) Vec<(Located<String>, Located<T>)>);

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for PairsVisitor<T> {
            type Value = Pairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
                let (mut pairs, mut names) = (Vec::new(), HashSet::new());
                while let Some((name, value)) = map.next_entry::<Located<String>, _>()? {
                    // A key of a merge (`<<`) comes after the mapping's own. The library drops it only in the same spelling.
                    if names.insert(name.value.clone()) {
                        pairs.push((name, value));
                    }
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(PairsVisitor(PhantomData))
    }
}

/// The amount of a limit, as its text: what it counts depends on the kind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Amount(pub(in crate::config) String);

struct AmountVisitor;

impl Visitor<'_> for AmountVisitor {
    type Value = Amount;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an amount such as 2, 80gi or 7d")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Amount, E> {
        Ok(Amount(text.to_owned()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Amount, E> {
        Ok(Amount(value.to_string()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Amount, E> {
        Ok(Amount(value.to_string()))
    }

    // What was written is not known any more: `010` and `1e3` come as floats too.
    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Amount, E> {
        Err(E::custom(
            "a limit is a whole number, without a point, an exponent or a zero before it: write 2, 80gi or 7d",
        ))
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AmountVisitor)
    }
}

/// A limit, of all users or of each.
#[derive(Debug)]
pub(crate) enum LimitEntry {
    ForAll(Amount),
    Table(LimitTable),
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitTable {
    #[serde(default, deserialize_with = "given")]
    pub(in crate::config) default: Option<Located<Amount>>,
    #[serde(default)]
    pub(in crate::config) groups: Pairs<Amount>,
    #[serde(default)]
    pub(in crate::config) users: Pairs<Amount>,
}

impl<'de> Deserialize<'de> for LimitEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LimitVisitor;

        impl<'de> Visitor<'de> for LimitVisitor {
            type Value = LimitEntry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an amount, or {default: AMOUNT, groups: {GROUP: AMOUNT}, users: {USER: AMOUNT}}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<LimitEntry, E> {
                AmountVisitor.visit_str(text).map(LimitEntry::ForAll)
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<LimitEntry, E> {
                AmountVisitor.visit_u64(value).map(LimitEntry::ForAll)
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<LimitEntry, E> {
                AmountVisitor.visit_i64(value).map(LimitEntry::ForAll)
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<LimitEntry, E> {
                AmountVisitor.visit_f64(value).map(LimitEntry::ForAll)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LimitEntry, A::Error> {
                LimitTable::deserialize(MapAccessDeserializer::new(map)).map(LimitEntry::Table)
            }
        }

        deserializer.deserialize_any(LimitVisitor)
    }
}

/// Days of the week: `mon-fri`, or a list of days and spans; from Monday on, each once.
#[derive(Debug)]
pub(crate) struct Days(pub(in crate::config) Vec<Weekday>);

impl<'de> Deserialize<'de> for Days {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DaysVisitor;

        impl<'de> Visitor<'de> for DaysVisitor {
            type Value = Days;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("days such as mon-fri, or a list of them")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Days, E> {
                Ok(Days(sorted(days(text).map_err(E::custom)?)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Days, A::Error> {
                let mut all = Vec::new();
                while let Some(text) = list.next_element::<String>()? {
                    all.extend(days(&text).map_err(de::Error::custom)?);
                }
                Ok(Days(sorted(all)))
            }
        }

        deserializer.deserialize_any(DaysVisitor)
    }
}

fn sorted(mut days: Vec<Weekday>) -> Vec<Weekday> {
    days.sort_by_key(|day| day.to_monday_zero_offset());
    days.dedup();
    days
}

/// One day, or a span that may go over the week's end: `sat-mon`.
fn days(text: &str) -> Result<Vec<Weekday>, String> {
    let day = |name: &str| {
        Some(match name.trim().to_ascii_lowercase().as_str() {
            "mon" | "monday" => Weekday::Monday,
            "tue" | "tuesday" => Weekday::Tuesday,
            "wed" | "wednesday" => Weekday::Wednesday,
            "thu" | "thursday" => Weekday::Thursday,
            "fri" | "friday" => Weekday::Friday,
            "sat" | "saturday" => Weekday::Saturday,
            "sun" | "sunday" => Weekday::Sunday,
            _ => return None,
        })
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (Some(first), Some(last)) = (day(first), day(last)) else {
        return Err(format!(
            "'{text}' is not a day: write mon, tue, wed, thu, fri, sat or sun, or a span such as mon-fri"
        ));
    };
    let mut span: Vec<Weekday> = first.cycle_forward().take_while(|day| *day != last).collect();
    span.push(last);
    Ok(span)
}
