//! Values that are withheld: a source failed to give them, or other answers contradict them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::DeviceIndex;

/// The most values that one text names.
const MOST_NAMED: usize = 16;

/// A value that a snapshot lacks, because its call failed or because other answers contradict it. A value that a device
/// or its driver does not have is not withheld.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Withheld {
    /// The device; absent for a value of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceIndex>,
    /// The name of the value, or the call that gives it. Distinct within a device and a collector.
    pub value: String,
    /// The error of the call, or the contradiction. It may differ in each snapshot.
    pub error: String,
}

impl Withheld {
    /// [`Withheld::value`] of the processes on a device, or of a host.
    pub const PROCESSES: &'static str = "processes";

    /// [`Withheld::value`] of a device that does not answer.
    pub const ALL: &'static str = "all values";

    /// A withheld value of a device.
    pub fn of(device: DeviceIndex, value: impl Into<String>, error: impl Into<String>) -> Self {
        Self { device: Some(device), value: value.into(), error: error.into() }
    }

    /// A withheld value of a host.
    pub fn of_host(value: impl Into<String>, error: impl Into<String>) -> Self {
        Self { device: None, value: value.into(), error: error.into() }
    }

    /// Adds this value to a list, unless the list has the value: the first error is kept.
    pub fn add_to(self, list: &mut Vec<Self>) {
        if !list.iter().any(|it| it.device == self.device && it.value == self.value) {
            list.push(self);
        }
    }
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(device) = self.device {
            write!(f, "device {device}: ")?;
        }
        write!(f, "{}: {}", self.value, self.error)
    }
}

/// These values in one text.
pub(super) fn text(withheld: &[Withheld]) -> String {
    let mut named: Vec<String> = withheld.iter().take(MOST_NAMED).map(ToString::to_string).collect();
    if withheld.len() > MOST_NAMED {
        named.push(format!("and {} more", withheld.len() - MOST_NAMED));
    }
    named.join("; ")
}
