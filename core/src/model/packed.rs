//! Optional numbers in the size of the number.

use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The bits of an absent number. As an `f64` they are a NaN, which is no measurement; as a `u64` they are
/// `NVML_VALUE_NOT_AVAILABLE`, what NVML answers for a value that is not available.
const ABSENT: u64 = u64::MAX;

/// An `Option` of a number in 8 bytes instead of 16, for rows that a host has many of. Its JSON is that of the `Option`.
///
/// A NaN becomes absent, and [`u64::MAX`], also when it is read from JSON.
#[derive(Clone, Copy)]
pub struct PackedOption<T> {
    bits: u64,
    number: PhantomData<T>,
}

/// A number that [`PackedOption`] can hold.
pub trait PackedNumber: Copy {
    /// The number in 64 bits; all of them set if it counts as absent.
    fn bits(self) -> u64;
    /// The number of these bits, of which not all are set.
    fn from_bits(bits: u64) -> Self;
}

impl PackedNumber for u64 {
    fn bits(self) -> u64 {
        self
    }

    fn from_bits(bits: u64) -> Self {
        bits
    }
}

impl PackedNumber for f64 {
    fn bits(self) -> u64 {
        if self.is_nan() { ABSENT } else { self.to_bits() }
    }

    fn from_bits(bits: u64) -> Self {
        Self::from_bits(bits)
    }
}

impl<T: PackedNumber> PackedOption<T> {
    /// The number, if it is present.
    pub fn get(self) -> Option<T> {
        (self.bits != ABSENT).then(|| T::from_bits(self.bits))
    }
}

impl<T: PackedNumber> From<Option<T>> for PackedOption<T> {
    fn from(number: Option<T>) -> Self {
        Self { bits: number.map_or(ABSENT, T::bits), number: PhantomData }
    }
}

impl<T> Default for PackedOption<T> {
    /// An absent number.
    fn default() -> Self {
        Self { bits: ABSENT, number: PhantomData }
    }
}

impl<T: PackedNumber + PartialEq> PartialEq for PackedOption<T> {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl<T: PackedNumber + PartialEq> PartialEq<Option<T>> for PackedOption<T> {
    fn eq(&self, other: &Option<T>) -> bool {
        self.get() == *other
    }
}

impl<T: PackedNumber + fmt::Debug> fmt::Debug for PackedOption<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl<T: PackedNumber + Serialize> Serialize for PackedOption<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.get().serialize(serializer)
    }
}

impl<'de, T: PackedNumber + Deserialize<'de>> Deserialize<'de> for PackedOption<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::*;
    use crate::model::{EnvironmentDevice, ProcessDevice};

    fn read_back<T: PackedNumber + Serialize + serde::de::DeserializeOwned>(number: Option<T>) -> (String, Option<T>) {
        let json = serde_json::to_string(&PackedOption::from(number)).unwrap();
        assert_eq!(json, serde_json::to_string(&number).unwrap());
        let read: PackedOption<T> = serde_json::from_str(&json).unwrap();
        (json, read.get())
    }

    #[test]
    fn a_number_reads_back_from_the_json_of_an_option() {
        for number in [None, Some(0), Some(1), Some(u64::MAX - 1)] {
            assert_eq!(read_back(number).1, number);
        }
        for number in [None, Some(0.0), Some(0.25), Some(f64::MIN), Some(f64::MAX), Some(f64::MIN_POSITIVE)] {
            assert_eq!(read_back(number).1, number);
        }
        let (json, negative) = read_back(Some(-0.0));
        assert_eq!(json, "-0.0");
        assert!(negative.unwrap().is_sign_negative());
    }

    #[test]
    fn the_largest_integer_is_absent() {
        let read: PackedOption<u64> = serde_json::from_str("18446744073709551615").unwrap();
        assert_eq!(read.get(), None);
        assert_eq!(PackedOption::from(Some(u64::MAX)).get(), None);
    }

    #[test]
    fn nan_is_absent() {
        for nan in [f64::NAN, -f64::NAN, f64::from_bits(u64::MAX), f64::from_bits(u64::MAX - 1)] {
            assert_eq!(PackedOption::from(Some(nan)), PackedOption::default());
        }
        assert_eq!(PackedOption::from(Some(f64::INFINITY)).get(), Some(f64::INFINITY));
    }

    #[test]
    fn equal_numbers_are_equal() {
        assert_eq!(PackedOption::from(Some(0.0)), PackedOption::from(Some(-0.0)));
        assert_eq!(PackedOption::<f64>::default(), PackedOption::from(None));
        assert_ne!(PackedOption::from(Some(0_u64)), PackedOption::default());
        assert_eq!(
            format!("{:?} {:?}", PackedOption::from(Some(7_u64)), PackedOption::<f64>::default()),
            "Some(7) None"
        );
    }

    #[test]
    fn a_row_holds_no_tags() {
        assert_eq!(size_of::<ProcessDevice>(), 24);
        assert_eq!(size_of::<EnvironmentDevice>(), 40);
    }
}
