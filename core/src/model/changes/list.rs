//! The difference between two lists: pieces. These are `[first, count]` for items of the list before, `[position, {…}]`
//! for an item of that list with the difference of its fields, and new items.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserializer, Serialize, Serializer};

use super::{Before, Differ, Difference};

/// An item of a list.
pub(super) trait Item: Differ + PartialEq + Serialize + DeserializeOwned {
    /// What tells it from all other items of a correct list.
    type Id<'a>: Eq + Hash
    where
        Self: 'a;

    fn id(&self) -> Self::Id<'_>;
}

impl<T: Item> Item for Arc<T> {
    type Id<'a>
        = T::Id<'a>
    where
        T: 'a;

    fn id(&self) -> T::Id<'_> {
        T::id(self)
    }
}

fn write_run<S: SerializeSeq>(pieces: &mut S, run: &Range<usize>) -> Result<(), S::Error> {
    if run.is_empty() { Ok(()) } else { pieces.serialize_element(&(run.start, run.len())) }
}

impl<T: Item> Differ for Vec<T> {
    fn write<S: Serializer>(&self, before: &Self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut pieces = serializer.serialize_seq(None)?;
        let mut taken = vec![false; before.len()];
        let mut positions = None;
        let mut expected = 0;
        // Unchanged items that are not written yet.
        let mut run = 0..0;
        for item in self {
            let id = item.id();
            let position = match before.get(expected) {
                Some(it) if it.id() == id => Some(expected),
                _ => {
                    let all = || before.iter().map(T::id).zip(0..);
                    let positions: &mut HashMap<T::Id<'_>, usize> = positions.get_or_insert_with(|| all().collect());
                    positions.get(&id).copied()
                }
            };
            let position = position.filter(|at| !std::mem::replace(&mut taken[*at], true));
            if let Some(at) = position {
                expected = at + 1;
            }
            let unchanged = position.filter(|at| before[*at] == *item);
            if unchanged == Some(run.end) {
                run.end += 1;
                continue;
            }
            write_run(&mut pieces, &run)?;
            run = match (position, unchanged) {
                (_, Some(at)) => at..at + 1,
                (Some(at), None) => {
                    pieces.serialize_element(&(at, Difference { before: &before[at], now: item }))?;
                    expected..expected
                }
                (None, None) => {
                    pieces.serialize_element(item)?;
                    expected..expected
                }
            };
        }
        write_run(&mut pieces, &run)?;
        pieces.end()
    }

    fn read<'de, D: Deserializer<'de>>(before: &Self, deserializer: D) -> Result<Option<Self>, D::Error> {
        let length = before.len();
        let list = List { before, taken: vec![false; length], items: Self::with_capacity(length) };
        deserializer.deserialize_seq(list).map(Some)
    }
}

/// A list that is read, as far as it has items.
struct List<'a, T> {
    before: &'a [T],
    /// The items of the list before that it has. None is taken twice, which could make a list of any size.
    taken: Vec<bool>,
    items: Vec<T>,
}

impl<'a, T> List<'a, T> {
    fn take(&mut self, first: usize, count: usize) -> Result<&'a [T], String> {
        let run = first..first.saturating_add(count);
        let (Some(items), Some(taken)) = (self.before.get(run.clone()), self.taken.get_mut(run)) else {
            return Err(format!("{count} items from number {first} on, of {}", self.before.len()));
        };
        if taken.contains(&true) {
            return Err(format!("{count} items from number {first} on, not all of them for the first time"));
        }
        taken.fill(true);
        Ok(items)
    }
}

impl<'de, T: Item> Visitor<'de> for List<'_, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pieces of a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut pieces: A) -> Result<Vec<T>, A::Error> {
        while pieces.next_element_seed(Seed(Piece(&mut self)))?.is_some() {}
        // Without spare room, as `exact.rs`.
        self.items.shrink_to_fit();
        Ok(self.items)
    }
}

/// Reads any value that the visitor accepts.
struct Seed<V>(V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Seed<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        deserializer.deserialize_any(self.0)
    }
}

/// Reads the next piece of a list.
struct Piece<'l, 'a, T>(&'l mut List<'a, T>);

impl<'de, T: Item> Visitor<'de> for Piece<'_, '_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a run [first, count], a changed item [position, {…}] or a new item")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut piece: A) -> Result<(), A::Error> {
        let Some(first) = piece.next_element()? else {
            return Err(A::Error::invalid_length(0, &self));
        };
        let list = self.0;
        let read = piece.next_element_seed(Seed(FromBefore { list: &mut *list, first }))?;
        read.ok_or_else(|| A::Error::invalid_length(1, &Piece(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, item: A) -> Result<(), A::Error> {
        self.0.items.push(T::deserialize(MapAccessDeserializer::new(item))?);
        Ok(())
    }
}

/// Reads what comes of the list before, from this position on.
struct FromBefore<'l, 'a, T> {
    list: &'l mut List<'a, T>,
    first: usize,
}

impl<'de, T: Item> Visitor<'de> for FromBefore<'_, '_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the number of items or changed fields")
    }

    fn visit_u64<E: serde::de::Error>(self, count: u64) -> Result<(), E> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let items = self.list.take(self.first, count).map_err(E::custom)?;
        self.list.items.extend_from_slice(items);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<(), A::Error> {
        let before = self.list.take(self.first, 1).map_err(A::Error::custom)?;
        self.list.items.push(Before(&before[0]).deserialize(MapAccessDeserializer::new(fields))?);
        Ok(())
    }
}
