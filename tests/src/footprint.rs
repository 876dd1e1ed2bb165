//! What a program holds that must not grow.

use std::fs;

use anyhow::Result;

use crate::process::{anonymous_bytes, children};

#[derive(Clone, Copy, Debug, Default)]
pub struct Footprint {
    pub anonymous_bytes: u64,
    pub descriptors: usize,
    pub threads: usize,
}

impl Footprint {
    /// Of a process and its children. A child that ends meanwhile does not count.
    pub fn of(pid: u32) -> Result<Self> {
        let mut all = Self::of_one(pid)?;
        for child in children(pid).into_iter().filter_map(|child| Self::of_one(child).ok()) {
            all.anonymous_bytes += child.anonymous_bytes;
            all.descriptors += child.descriptors;
            all.threads += child.threads;
        }
        Ok(all)
    }

    fn of_one(pid: u32) -> Result<Self> {
        let count = |folder: &str| -> Result<usize> { Ok(fs::read_dir(format!("/proc/{pid}/{folder}"))?.count()) };
        Ok(Self { anonymous_bytes: anonymous_bytes(pid)?, descriptors: count("fd")?, threads: count("task")? })
    }

    pub fn max(self, other: Self) -> Self {
        Self {
            anonymous_bytes: self.anonymous_bytes.max(other.anonymous_bytes),
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
        }
    }

    /// The middle one of each: what is open for a moment passes, what leaks stays.
    pub fn median(of: &[Self]) -> Self {
        fn middle<T: Ord>(values: impl Iterator<Item = T>) -> T {
            let mut values: Vec<T> = values.collect();
            values.sort_unstable();
            values.swap_remove(values.len() / 2)
        }
        Self {
            anonymous_bytes: middle(of.iter().map(|it| it.anonymous_bytes)),
            descriptors: middle(of.iter().map(|it| it.descriptors)),
            threads: middle(of.iter().map(|it| it.threads)),
        }
    }
}
