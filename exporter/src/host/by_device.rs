//! Values by device.

use genv_core::model::DeviceIndex;

/// A map from devices to values, in the order of indices.
///
/// Callers mostly go through the devices in this order, process after process, so the next one is found without a
/// search.
#[derive(Clone, Debug)]
pub(crate) struct ByDevice<T> {
    values: Vec<(DeviceIndex, T)>,
    /// The position at which the next call is expected.
    next: usize,
}

impl<T> Default for ByDevice<T> {
    fn default() -> Self {
        Self { values: Vec::new(), next: 0 }
    }
}

impl<T> ByDevice<T> {
    /// The value of a device; `new` makes it at first.
    pub(crate) fn of(&mut self, index: DeviceIndex, new: impl FnOnce() -> T) -> &mut T {
        let is_it = |at: &usize| self.values.get(*at).is_some_and(|(it, _)| *it == index);
        let expected = [self.next, 0].into_iter().find(is_it);
        let at = expected.unwrap_or_else(|| {
            let found = self.values.binary_search_by_key(&index, |(it, _)| *it);
            found.unwrap_or_else(|at| {
                self.values.insert(at, (index, new()));
                at
            })
        });
        self.next = at + 1;
        &mut self.values[at].1
    }

    /// The value of a device, if there is one.
    pub(crate) fn get(&self, index: DeviceIndex) -> Option<&T> {
        let found = self.values.binary_search_by_key(&index, |(it, _)| *it);
        found.ok().map(|at| &self.values[at].1)
    }

    /// All values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (DeviceIndex, &T)> {
        self.values.iter().map(|(index, value)| (*index, value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn index() -> impl Strategy<Value = DeviceIndex> {
        let mig = prop_oneof![Just(None), (0..3_u8).prop_map(Some)];
        (0..4_u32, mig).prop_map(|(gpu, mig)| DeviceIndex { gpu, mig })
    }

    proptest! {
        #[test]
        fn it_is_a_map_in_any_order_of_devices(indices in vec(index(), 0..40), asked in index()) {
            let (mut counts, mut expected) = (ByDevice::default(), BTreeMap::new());
            for index in indices {
                *counts.of(index, || 0) += 1;
                *expected.entry(index).or_insert(0) += 1;
            }
            prop_assert_eq!(counts.get(asked), expected.get(&asked));
            let counts: Vec<_> = counts.iter().map(|(index, count)| (index, *count)).collect();
            prop_assert_eq!(counts, expected.into_iter().collect::<Vec<_>>());
        }
    }
}
