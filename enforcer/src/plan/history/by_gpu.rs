//! A map by GPU.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A map by GPU as a sorted list. A history has one map for each environment and rule, mostly with one GPU, and a node
/// of a `BTreeMap` has room for eleven.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::plan) struct ByGpu<T>(Vec<(u32, T)>);

impl<T> ByGpu<T> {
    fn position(&self, gpu: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&gpu, |(gpu, _)| *gpu)
    }

    pub(in crate::plan) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(in crate::plan) fn get(&self, gpu: u32) -> Option<&T> {
        self.position(gpu).ok().map(|position| &self.0[position].1)
    }

    pub(super) fn get_mut(&mut self, gpu: u32) -> Option<&mut T> {
        let position = self.position(gpu);
        position.ok().map(|position| &mut self.0[position].1)
    }

    pub(super) fn insert(&mut self, gpu: u32, value: T) {
        match self.position(gpu) {
            Ok(position) => self.0[position].1 = value,
            Err(position) => self.0.insert(position, (gpu, value)),
        }
    }

    pub(super) fn remove(&mut self, gpu: u32) -> Option<T> {
        let position = self.position(gpu).ok()?;
        Some(self.0.remove(position).1)
    }

    pub(super) fn retain(&mut self, mut keeps: impl FnMut(u32, &mut T) -> bool) {
        self.0.retain_mut(|(gpu, value)| keeps(*gpu, value));
    }
}

impl<T: Default> ByGpu<T> {
    /// The entry of a GPU; a new entry is empty.
    pub(super) fn entry(&mut self, gpu: u32) -> &mut T {
        let position = self.position(gpu).unwrap_or_else(|position| {
            self.0.insert(position, (gpu, T::default()));
            position
        });
        &mut self.0[position].1
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
