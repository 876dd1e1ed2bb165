//! State directories in the shape of genv 1.4.3.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

const TIME: &str = "20/11/2026 12:00:00";

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
    let envs: Vec<_> = environments
        .iter()
        .map(|environment| {
            json!({
                "eid": environment.eid, "uid": environment.uid, "creation": TIME, "username": "somebody",
                "config": {"name": null, "gpu_memory": environment.gpu_memory, "gpus": null},
                "pids": environment.pids, "kernel_ids": [],
            })
        })
        .collect();
    let devices: Vec<_> = (0..devices)
        .map(|index| {
            let attached = environments.iter().filter(|it| it.devices.contains(&index));
            let attachments: Vec<_> =
                attached.map(|it| json!({"eid": it.eid, "gpu_memory": it.gpu_memory, "time": TIME})).collect();
            json!({"index": index, "total_memory": "81920mi", "attachments": attachments})
        })
        .collect();
    std::fs::create_dir_all(folder).context("creating a state directory")?;
    // A reader between the two sees no new environment without its devices.
    for (name, content) in [("devices.json", json!({ "devices": devices })), ("envs.json", json!({ "envs": envs }))] {
        let temporary = folder.join(format!(".{name}.new"));
        std::fs::write(&temporary, serde_json::to_string_pretty(&content)?)?;
        std::fs::rename(temporary, folder.join(name))?;
    }
    Ok(())
}
