//! Values as the state file has them.

use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

use crate::model::MemoryAmount;

/// The end of the year 9999, Unix time.
pub(super) const LATEST_SECONDS: f64 = 253_402_300_799.0;

/// A time in whole seconds: it is compared with times of processes, which are no more exact.
#[expect(clippy::ref_option, reason = "the signature is serde's")]
pub(super) fn whole_seconds<S: Serializer>(seconds: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    #[expect(clippy::cast_possible_truncation, reason = "clocks show less than the year 9999")]
    seconds.map(|it| it.floor() as i64).serialize(serializer)
}

/// Memory in the text of the person who claimed it.
#[expect(clippy::ref_option, reason = "the signature is serde's")]
pub(super) fn serialize<S: Serializer>(amount: &Option<MemoryAmount>, serializer: S) -> Result<S::Ok, S::Error> {
    amount.map(|it| it.to_string()).serialize(serializer)
}

/// As [`serialize`].
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MemoryAmount>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|it| MemoryAmount::from_file(&it).map_err(D::Error::custom)).transpose()
}
