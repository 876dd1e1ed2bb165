//! A map by GPU.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A map by GPU as a sorted list. Each environment has such a map, in a history also each rule, and most maps have one GPU.
/// A node of a `BTreeMap` has room for eleven entries.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ByGpu<T>(Vec<(u32, T)>);

impl<T> ByGpu<T> {
    fn position(&self, gpu: u32) -> Result<usize, usize> {
        // In a list of all GPUs, each GPU is at its own index.
        let at = gpu as usize;
        let is_at = self.0.get(at).is_some_and(|(it, _)| *it == gpu);
        let search = || self.0.binary_search_by_key(&gpu, |(gpu, _)| *gpu);
        if is_at { Ok(at) } else { search() }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, gpu: u32) -> Option<&T> {
        self.position(gpu).ok().map(|position| &self.0[position].1)
    }

    pub(crate) fn get_mut(&mut self, gpu: u32) -> Option<&mut T> {
        let position = self.position(gpu);
        position.ok().map(|position| &mut self.0[position].1)
    }

    pub(crate) fn insert(&mut self, gpu: u32, value: T) {
        match self.position(gpu) {
            Ok(position) => self.0[position].1 = value,
            Err(position) => self.0.insert(position, (gpu, value)),
        }
    }

    /// The entry of a GPU, made if there is none.
    pub(crate) fn entry(&mut self, gpu: u32, make: impl FnOnce() -> T) -> &mut T {
        let position = self.position(gpu).unwrap_or_else(|position| {
            self.0.insert(position, (gpu, make()));
            position
        });
        &mut self.0[position].1
    }

    pub(crate) fn remove(&mut self, gpu: u32) -> Option<T> {
        let position = self.position(gpu).ok()?;
        Some(self.0.remove(position).1)
    }

    pub(crate) fn contains(&self, gpu: u32) -> bool {
        self.position(gpu).is_ok()
    }

    pub(crate) fn gpus(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|(gpu, _)| *gpu)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.0.iter().map(|(gpu, value)| (*gpu, value))
    }

    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(u32, &mut T) -> bool) {
        self.0.retain_mut(|(gpu, value)| keeps(*gpu, value));
    }
}

impl<T> Default for ByGpu<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> IntoIterator for ByGpu<T> {
    type Item = (u32, T);
    type IntoIter = std::vec::IntoIter<(u32, T)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// The later of two entries with one GPU replaces the earlier one.
impl<T> FromIterator<(u32, T)> for ByGpu<T> {
    fn from_iter<I: IntoIterator<Item = (u32, T)>>(all: I) -> Self {
        let all = all.into_iter();
        let mut map = Self(Vec::with_capacity(all.size_hint().1.unwrap_or_default()));
        all.for_each(|(gpu, value)| map.insert(gpu, value));
        map
    }
}

impl<T: Serialize> Serialize for ByGpu<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(gpu, value)| (gpu, value)))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ByGpu<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let sorted = BTreeMap::deserialize(deserializer)?;
        Ok(Self(sorted.into_iter().collect()))
    }
}
