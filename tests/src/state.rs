//! State directories.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The file of the state.
pub const FILE: &str = "state.json";
/// Its copy, which counts while the file is damaged or removed.
pub const COPY: &str = "state-copy.json";

/// When the environments were made: 2026-11-20 12:00:00 UTC.
pub const CREATED_SECONDS: i64 = 1_795_176_000;

#[derive(Clone, Debug)]
pub struct Environment {
    pub eid: String,
    pub uid: u32,
    /// Its members.
    pub pids: Vec<u32>,
    pub devices: Vec<usize>,
    /// Memory that it claims of each, as the file has it; none: all.
    pub gpu_memory: Option<&'static str>,
}

impl Environment {
    /// One with a member, which claims all memory of the devices that it is attached to.
    pub fn new(eid: &str, uid: u32, member: u32, devices: &[usize]) -> Self {
        Self { eid: eid.to_owned(), uid, pids: vec![member], devices: devices.to_vec(), gpu_memory: None }
    }
}

/// Writes the state of a machine with so many devices of 80 GiB.
pub fn write(folder: &Path, devices: usize, environments: &[Environment]) -> Result<()> {
    let amount = |amount: Option<&str>| amount.map_or_else(|| json!({}), |amount| json!({ "gpu_memory": amount }));
    let with = |mut record: Value, more: Value| {
        let fields = more.as_object().cloned().unwrap_or_default();
        record.as_object_mut().into_iter().for_each(|it| it.extend(fields.clone()));
        record
    };
    let environment = |it: &Environment| {
        let members: Vec<Value> = it.pids.iter().map(|pid| json!({ "pid": pid })).collect();
        let record = json!({
            "eid": it.eid, "uid": it.uid, "username": "somebody", "created_timestamp_seconds": CREATED_SECONDS,
            "members": members,
        });
        with(record, amount(it.gpu_memory))
    };
    let device = |index: usize| {
        let attached = environments.iter().filter(|it| it.devices.contains(&index));
        let attachment = |it: &Environment| {
            let record = json!({ "eid": it.eid, "attached_timestamp_seconds": CREATED_SECONDS });
            with(record, amount(it.gpu_memory))
        };
        json!({ "index": index, "total_memory": "81920mi", "attachments": attached.map(attachment).collect::<Vec<_>>() })
    };
    std::fs::create_dir_all(folder).context("creating a state directory")?;
    replace(
        folder,
        &json!({
            "version": 1,
            "boot_id": std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim(),
            "environments": environments.iter().map(environment).collect::<Vec<_>>(),
            "devices": (0..devices).map(device).collect::<Vec<_>>(),
        }),
    )
}

/// The state of a folder.
pub fn read(folder: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(folder.join(FILE)).context("reading a state")?;
    Ok(serde_json::from_str(&text)?)
}

/// Replaces the state of a folder, as a user can.
pub fn replace(folder: &Path, state: &Value) -> Result<()> {
    let temporary = folder.join(".state.new");
    std::fs::write(&temporary, state.to_string())?;
    std::fs::rename(temporary, folder.join(FILE)).context("replacing a state")
}

/// Changes the state of a folder, as a user can.
pub fn edit(folder: &Path, change: impl FnOnce(&mut Value) -> Result<()>) -> Result<()> {
    let mut state = read(folder)?;
    change(&mut state)?;
    replace(folder, &state)
}

/// The pids of the members of an environment of the state.
pub fn member_pids(environment: &Value) -> Vec<u64> {
    let members = environment["members"].as_array().into_iter().flatten();
    members.filter_map(|it| it["pid"].as_u64()).collect()
}
