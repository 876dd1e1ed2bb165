//! What each host of the load has.

use std::fmt::Write as _;

use anyhow::Result;

/// Devices of a host.
pub(crate) const DEVICES: usize = 8;
/// Environments of a host.
pub(crate) const ENVIRONMENTS: usize = 100;
/// Processes of a host, each on all devices.
pub(crate) const PROCESSES: usize = 200;
/// Users of a host.
const USERS: usize = 20;

/// Stands in names where hosts differ.
pub(crate) const HOST_MARK: &str = "zzhostzz";

/// The moment of the snapshot that moments replace.
pub(crate) const TIME_SECONDS: f64 = 1_234_567_890.125;
/// The same in JSON.
pub(crate) const TIME_MARK: &str = "1234567890.125";

/// The scenario: users have the same names everywhere, environments have not.
pub(crate) fn scenario() -> Result<String> {
    let mut text = "version: 1\nusers: {".to_owned();
    for user in 0..USERS {
        write!(text, "user{user}: {}, ", 2001 + user)?;
    }
    text.push_str("}\nhosts:\n- environments:\n");
    for number in 0..ENVIRONMENTS {
        writeln!(
            text,
            "  - {{eid: {HOST_MARK}{number}, user: user{}, devices: [{}], gpu_memory: 1gi}}",
            number % USERS,
            number % DEVICES
        )?;
    }
    writeln!(
        text,
        "  devices: [{{count: {DEVICES}, memory: 80gi, fans: [0.5]}}]\n  processes:"
    )?;
    let uses: Vec<_> = (0..DEVICES)
        .map(|index| format!("{{index: {index}, memory: 42mi, utilization: 0.004}}"))
        .collect();
    let uses = uses.join(", ");
    for number in 0..PROCESSES {
        let environment = number % ENVIRONMENTS;
        writeln!(
            text,
            "  - {{pid: {}, user: user{}, environment: {HOST_MARK}{environment}, devices: [{uses}]}}",
            100_000 + number,
            environment % USERS
        )?;
    }
    Ok(text)
}
