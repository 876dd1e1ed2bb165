//! `genv queue`

use std::collections::BTreeSet;

use clap::Args;
use genv_core::outside;
use genv_core::proc::username;
use genv_core::state::allocate::DeviceUsage;
use genv_core::state::{RequestedDevices, Waiting};
use serde::Serialize;

use crate::ago::{now_seconds, whole_units};
use crate::lease;
use crate::machine::Machine;
use crate::output::{Cell, Table, TableFlags, print, print_json, stdout};

/// List the processes that wait for devices, the next one first.
#[derive(Debug, Args)]
#[command(
    after_help = "EXPECTED is the time at which the leases of enough devices end ('genv activate --for'). Without such \
                      leases the time is unknown. A request passes the processes that it does not delay: for example a request \
                      with '--for' that ends before their devices become free."
)]
pub(crate) struct Queue {
    #[command(flatten)]
    output: TableFlags,
}

#[derive(Serialize)]
struct QueueReport {
    waiting: Vec<QueuePosition>,
}

/// A process in the queue.
#[derive(Serialize)]
struct QueuePosition {
    pid: u32,
    uid: u32,
    username: String,
    /// The request is unknown if it has no number and no index.
    #[serde(flatten)]
    request: RequestedDevices,
    since_timestamp_seconds: Option<i64>,
    /// By leases; absent: unknown.
    expected_timestamp_seconds: Option<f64>,
}

impl Queue {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut machine = Machine::here()?;
        let state = machine.state()?;
        let waiting = machine.waiting(&state);
        let usage = if waiting.is_empty() { DeviceUsage::default() } else { machine.brief_usage(&state) };
        let expectation = state.expectation(&usage, now_seconds());
        let expected = expectation.of_queue(&waiting);
        let waiting: Vec<QueuePosition> = waiting.iter().zip(expected).map(QueuePosition::of).collect();
        if self.output.json {
            return Ok(print_json(&QueueReport { waiting })?);
        }
        if waiting.is_empty() {
            return Ok(print(b"No process waits for devices.\n")?);
        }
        let header = &["PLACE", "USER", "PROCESS", "DEVICES", "TYPE", "MEMORY", "WAITS", "EXPECTED"];
        let mut table = Table::new(header).header(!self.output.no_header);
        for (position, number) in waiting.iter().zip(1..) {
            table.row(position.cells(number));
        }
        Ok(table.write(&mut stdout())?)
    }
}

impl QueuePosition {
    fn of((waiting, expected): (&Waiting, Option<f64>)) -> Self {
        Self {
            pid: waiting.pid,
            uid: waiting.uid,
            username: username(waiting.uid),
            request: waiting.request.clone().unwrap_or_default(),
            since_timestamp_seconds: waiting.since_timestamp_seconds,
            expected_timestamp_seconds: expected,
        }
    }

    fn cells(&self, number: u32) -> [Cell; 8] {
        let RequestedDevices { gpus, gpu_types, gpu_memory_at_least_bytes, gpu_memory_bytes, .. } = &self.request;
        let indices: BTreeSet<u32> = self.request.named().collect();
        let numbers = || indices.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let devices = match (gpus, indices.len()) {
            (Some(gpus), _) => gpus.to_string(),
            (None, 0) => "?".to_owned(),
            (None, 1) => format!("number {}", numbers()),
            (None, _) => format!("numbers {}", numbers()),
        };
        let is_known = gpus.is_some() || !indices.is_empty();
        let least = gpu_memory_at_least_bytes.map(outside::memory);
        let least = least.map(|it| format!("{it} or more"));
        let types: Vec<String> = gpu_types.iter().cloned().chain(least).collect();
        let kind = match types.is_empty() {
            false => Cell::foreign(&types.join(", ")),
            true if is_known => Cell::own("any".to_owned()),
            true => Cell::own("?".to_owned()),
        };
        let memory = match gpu_memory_bytes {
            Some(bytes) => outside::memory(*bytes),
            None if is_known => "all".to_owned(),
            None => "?".to_owned(),
        };
        [
            Cell::own(number.to_string()),
            Cell::foreign(&self.username),
            Cell::own(self.pid.to_string()),
            Cell::own(devices),
            kind,
            Cell::own(memory),
            Cell::own(self.waits(now_seconds())),
            Cell::own(self.expected_timestamp_seconds.map_or_else(|| "not known".to_owned(), lease::moment)),
        ]
    }

    /// The duration of the wait. If the clock was set back, the duration is 0.
    fn waits(&self, now_seconds: f64) -> String {
        let Some(since) = self.since_timestamp_seconds else {
            return "?".to_owned();
        };
        #[expect(clippy::cast_possible_truncation, reason = "the clock ends with the year 9999")]
        let now_seconds = now_seconds as i64;
        whole_units(now_seconds.saturating_sub(since).max(0))
    }
}
