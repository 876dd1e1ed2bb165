//! `genv remote envs`

use std::io;

use clap::Args;
use genv_core::model::{Environment, MemoryAmount, Snapshot};
use genv_core::state::shape::Times;
use genv_remote::HostEntry;
use serde::Serialize;

use super::answers::{Answers, ask};
use super::devices::SummaryFlags;
use super::hosts::HostFlags;
use crate::ago::ago;
use crate::commands::devices::indices;
use crate::lease;
use crate::output::{Cell, Format, Table, csv_line, print_csv, print_json, stdout};

/// List the environments of all hosts.
#[derive(Debug, Args)]
pub(super) struct Envs {
    #[command(flatten)]
    list: SummaryFlags,

    /// Print times as they are written, not how long ago.
    #[arg(long)]
    timestamp: bool,
}

#[derive(Serialize)]
struct OfHost<'a> {
    hostname: &'a str,
    environments: Vec<OfEnvironment<'a>>,
}

#[derive(Serialize)]
struct OfEnvironment<'a> {
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
    pub(super) fn run(self, flags: &HostFlags) -> anyhow::Result<()> {
        let answers = ask(flags, &["state"])?;
        if self.list.json {
            print_json(&answers.document(of_host))?;
        } else {
            self.print(&answers)?;
        }
        Ok(answers.finish()?)
    }

    fn print(&self, answers: &Answers) -> io::Result<()> {
        let times = Times::here();
        // By the clock of the host, which wrote when it was.
        let created = |it: &Environment, host_seconds| match it.created_timestamp_seconds {
            Some(created) if !self.timestamp => ago(created, host_seconds),
            created => times.text(created),
        };
        let all: Vec<(&HostEntry, String, &Environment)> = answers
            .told
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
                    lease::cell(it.lease_end_timestamp_seconds),
                    Cell::own(indices(&attached(it))),
                ]);
            }
            table.drop_empty(5);
            table.write(&mut stdout())?;
        }
        self.list.summarize(&format!("{} environments on {} hosts", all.len(), answers.told.len()))
    }
}

fn of_host<'a>(host: &'a HostEntry, snapshot: &'a Snapshot) -> OfHost<'a> {
    let environments = snapshot.environments.iter();
    let environments = environments.map(|it| OfEnvironment {
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
    OfHost { hostname: &host.name, environments: environments.collect() }
}

/// Indices of the devices that it is attached to.
fn attached(environment: &Environment) -> Vec<u32> {
    let devices = environment.devices.iter();
    let attached = devices.filter(|device| device.attached && device.index.mig.is_none());
    attached.map(|device| device.index.gpu).collect()
}
