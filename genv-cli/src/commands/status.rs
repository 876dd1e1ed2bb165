//! `genv status`

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;

use clap::Args;
use genv_core::state::{EnvironmentState, State, waiting_phrase};
use serde_json::json;

use crate::announce::indices;
use crate::lease;
use crate::machine::Machine;
use crate::output::{JsonFlag, harmless, print, print_json};
use crate::own_environment;
use crate::shell::visible;

/// Show the environment of this shell and its devices.
#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    json: JsonFlag,
}

impl Status {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let claimed = own_environment::claimed_eid();
        let mut queue = None;
        let state = match &claimed {
            Some(eid) => {
                let mut machine = Machine::here()?;
                let state = machine.state_of(eid)?;
                queue = Some(machine.waiting(&state)).filter(|it| !it.is_empty());
                state
            }
            None => State::default(),
        };
        let found = state.environments.iter().find(|it| Some(&it.eid) == claimed.as_ref());
        if self.json.json {
            return Ok(print_json(&object(&state, found))?);
        }
        let mut text = text(&state, claimed.as_deref(), found);
        if let Some(waiting) = queue {
            let _ = writeln!(text, "Queue     {} in the queue: 'genv queue' lists them", waiting_phrase(&waiting));
        }
        Ok(print(text.as_bytes())?)
    }
}

fn object(state: &State, environment: Option<&EnvironmentState>) -> serde_json::Value {
    match environment {
        None => json!({ "active": false }),
        Some(environment) => json!({
            "active": true,
            "eid": environment.eid,
            "name": environment.name,
            "gpus": environment.gpus,
            "gpu_memory": environment.gpu_memory.map(|amount| amount.to_string()),
            "devices": state.attached(&environment.eid),
            "lease_end_timestamp_seconds": state.lease_end(&environment.eid),
            "stale": stale(&state.attached(&environment.eid)).is_some(),
            "pids": environment.pids().collect::<Vec<_>>(),
            "kernel_ids": environment.kernel_ids,
        }),
    }
}

fn text(state: &State, claimed: Option<&str>, environment: Option<&EnvironmentState>) -> String {
    let (Some(environment), Some(eid)) = (environment, claimed) else {
        return match claimed {
            None => "No environment is active. 'genv activate' starts one.\n".to_owned(),
            Some(eid) => format!(
                "Environment {} has ended. 'genv deactivate' clears this shell, 'genv activate' starts a new one.\n",
                harmless(eid)
            ),
        };
    };
    let devices = state.attached(eid);
    let stale = stale(&devices).map(|shown| {
        let shown = match shown {
            Some(shown) => format!("has CUDA_VISIBLE_DEVICES='{}'", harmless(&shown.to_string_lossy())),
            None => "has no CUDA_VISIBLE_DEVICES, and programs see all devices".to_owned(),
        };
        format!("Shell     {shown}: 'genv attach --refresh' sets it to the devices\n")
    });
    let attached = format!("to {}", indices(&devices));
    let none = || "not configured".to_owned();
    let name = environment.name.as_deref().map_or_else(none, harmless);
    let gpus = environment.gpus.map_or_else(none, |gpus| gpus.to_string());
    let memory =
        environment.gpu_memory.map_or_else(|| "not limited".to_owned(), |amount| format!("{amount} of each device"));
    let lease = state.lease_end(eid).map(lease::describe_end);
    let lease = lease.map(|until| format!("Lease     {until}\n"));
    format!(
        "Environment {} is active.\n\nAttached  {attached}\nName      {name}\nDevices   {gpus}\nMemory    {memory}\n{}{}",
        harmless(eid),
        lease.unwrap_or_default(),
        stale.unwrap_or_default()
    )
}

/// The shell's value of `CUDA_VISIBLE_DEVICES`, if it differs from the value for these devices. The inner `None`: not set.
fn stale(devices: &[u32]) -> Option<Option<OsString>> {
    let shown = env::var_os("CUDA_VISIBLE_DEVICES");
    (shown.as_ref() != Some(&visible(devices))).then_some(shown)
}
