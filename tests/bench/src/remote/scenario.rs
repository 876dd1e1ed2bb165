//! The devices and processes of each host under load.

use std::fmt::Write as _;

use anyhow::Result;

use crate::load::{Change, DEVICES, ENVIRONMENTS, PROCESSES};

/// Users of a host.
const USERS: usize = 20;

/// Placeholder of the host's number in names.
pub(crate) const HOST_MARK: &str = "zzhostzz";

/// The moment of the snapshot that moments replace.
pub(crate) const TIME_SECONDS: f64 = 1_234_567_890.125;
/// The same in JSON.
pub(crate) const TIME_MARK: &str = "1234567890.125";

/// The scenario: users have the same names everywhere, environments have not.
pub(crate) fn scenario(change: Change) -> Result<String> {
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
    writeln!(text, "  devices: [{{count: {DEVICES}, memory: 80gi, fans: [0.5]}}]\n  processes:")?;
    for number in 0..PROCESSES {
        let environment = number % ENVIRONMENTS;
        let uses = change.uses(number);
        writeln!(
            text,
            "  - {{pid: {}, user: user{}, environment: {HOST_MARK}{environment}, devices: [{uses}]}}",
            100_000 + number,
            environment % USERS
        )?;
    }
    Ok(text)
}
