//! `genv remote envs`

use std::io;

use clap::Args;
use genv_core::model::{Environment, MemoryAmount, Snapshot};
use genv_core::state::shape::Times;
use genv_remote::HostEntry;
use serde::Serialize;

use super::devices::SummaryFlags;
use super::hosts::RemoteFlags;
use super::results::{HostResults, fetch_all};
use crate::ago::ago;
use crate::lease;
use crate::output::{Cell, Format, Table, csv_line, joined, print_csv, print_json, stdout};

/// List the environments of all hosts.
#[derive(Debug, Args)]
pub(super) struct Envs {
    #[command(flatten)]
    list: SummaryFlags,

    /// Print times instead of ages.
    #[arg(long)]
    timestamp: bool,
}

#[derive(Serialize)]
struct HostEnvironments<'a> {
    hostname: &'a str,
    environments: Vec<EnvironmentEntry<'a>>,
}

#[derive(Serialize)]
struct EnvironmentEntry<'a> {
    eid: &'a str,
    uid: Option<u32>,
    username: &'a str,
    name: Option<&'a str>,
    created_timestamp_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_end_timestamp_seconds: Option<f64>,
    gpus: Option<u32>,
    gpu_memory: Option<String>,
    devices: Vec<u32>,
    pids: Vec<u32>,
    kernel_ids: &'a [String],
}

impl Envs {
    pub(super) fn run(self, flags: &RemoteFlags) -> anyhow::Result<()> {
        let results = fetch_all(flags, &["state"])?;
        if self.list.json {
            print_json(&results.document(host_environments))?;
        } else {
            self.print(&results)?;
        }
        Ok(results.finish()?)
    }

    fn print(&self, results: &HostResults) -> io::Result<()> {
        let times = Times::here();
        // The age counts by the clock of the host, which wrote the time.
        let created = |it: &Environment, host_seconds| match it.created_timestamp_seconds {
            Some(created) if !self.timestamp => ago(created, host_seconds),
            created => times.text(created),
        };
        let all: Vec<(&HostEntry, String, &Environment)> = results
            .fetched
            .iter()
            .flat_map(|(host, answer)| {
                let Snapshot { environments, timestamp_seconds, .. } = &answer.snapshot;
                let created = &created;
                environments.iter().map(move |it| (host, created(it, *timestamp_seconds), it.as_ref()))
            })
            .collect();
        if self.list.format == Format::Csv {
            let lines = all.iter().map(|(host, created, it)| {
                let name = it.name.as_deref().unwrap_or_default();
                csv_line([&host.name, &it.eid, &it.username, name, created])
            });
            print_csv("HOST,ID,USER,NAME,CREATED", !self.list.no_header, lines)?;
        } else {
            let header = &["HOST", "ID", "USER", "NAME", "CREATED", "UNTIL", "DEVICES"];
            let mut table = Table::new(header).header(!self.list.no_header);
            for (host, created, it) in &all {
                table.row([
                    Cell::foreign(&host.name),
                    Cell::foreign(&it.eid),
                    Cell::foreign(&it.username),
                    Cell::foreign(it.name.as_deref().unwrap_or_default()),
                    Cell::own(created.clone()),
                    lease::table_cell(it.lease_end_timestamp_seconds),
                    Cell::own(joined(&attached(it), ",")),
                ]);
            }
            table.drop_empty(5);
            table.write(&mut stdout())?;
        }
        self.list.summarize(&format!("{} environments on {} hosts", all.len(), results.fetched.len()))
    }
}

fn host_environments<'a>(host: &'a HostEntry, snapshot: &'a Snapshot) -> HostEnvironments<'a> {
    let environments = snapshot.environments.iter();
    let environments = environments.map(|it| EnvironmentEntry {
        eid: &it.eid,
        uid: it.uid,
        username: &it.username,
        name: it.name.as_deref(),
        created_timestamp_seconds: it.created_timestamp_seconds,
        lease_end_timestamp_seconds: it.lease_end_timestamp_seconds,
        gpus: it.gpus,
        gpu_memory: it.gpu_memory_bytes.map(|bytes| MemoryAmount::in_largest_unit(bytes).to_string()),
        devices: attached(it),
        pids: it.members.iter().map(|member| member.pid).collect(),
        kernel_ids: &it.kernel_ids,
    });
    HostEnvironments { hostname: &host.name, environments: environments.collect() }
}

/// The indices of an environment's devices.
fn attached(environment: &Environment) -> Vec<u32> {
    let devices = environment.devices.iter();
    let attached = devices.filter(|device| device.attached && device.index.mig.is_none());
    attached.map(|device| device.index.gpu).collect()
}
