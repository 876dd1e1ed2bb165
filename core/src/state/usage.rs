//! The output of `genv usage snapshot` of genv 1.x.

use jiff::tz::TimeZone;
use serde_json::Value;

use super::genv1::{self, integer};
use super::{State, StateError};

/// The use of a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// Environments and attachments.
    pub state: State,
    /// Processes with a compute context.
    pub processes: Vec<UsageProcess>,
}

/// A process with a compute context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageProcess {
    /// Process id.
    pub pid: u32,
    /// The environment that its environ names; absent also if its environ could not be read.
    pub eid: Option<String>,
}

/// Reads the output of `genv usage snapshot`. Its times are local to `time_zone`.
///
/// # Errors
/// The output has another form.
pub fn read_usage(content: &[u8], time_zone: &TimeZone) -> Result<Usage, StateError> {
    let error = |why: String| StateError {
        message: format!("cannot understand what 'genv usage snapshot' prints: {why}: run it there"),
    };
    let root = genv1::parse(content).map_err(error)?;
    let part = |name: &str| root.get(name).unwrap_or(&Value::Null);
    let environments = genv1::environments(part("envs"), time_zone).map_err(error)?;
    let devices = genv1::devices(part("devices"), time_zone).map_err(error)?;
    let processes = part("processes").get("processes").and_then(Value::as_array);
    let processes = processes.ok_or_else(|| error("it has no 'processes'".to_owned()))?;
    let process = |process: &Value| {
        Some(UsageProcess {
            pid: u32::try_from(integer(process.get("pid")?)?).ok()?,
            eid: process.get("eid").and_then(Value::as_str).map(str::to_owned),
        })
    };
    let mut warnings = environments.warnings;
    warnings.extend(devices.warnings);
    Ok(Usage {
        state: State {
            installed: true,
            environments: environments.records,
            devices: devices.records,
            incomplete: environments.left_out.is_some(),
            warnings,
            ..State::default()
        },
        processes: processes.iter().filter_map(process).collect(),
    })
}
