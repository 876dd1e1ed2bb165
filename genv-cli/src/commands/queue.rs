//! `genv queue`

use clap::Args;
use genv_core::outside;
use genv_core::proc::username;
use genv_core::state::Waiting;
use serde::Serialize;

use crate::ago::{now_seconds, whole_units};
use crate::machine::Machine;
use crate::output::{Cell, Table, TableFlags, print, print_json, stdout};

/// List the processes that wait for devices, in the order in which they get them.
#[derive(Debug, Args)]
#[command(
    after_help = "It is not known when devices come free: nobody says beforehand when an environment ends."
)]
pub(crate) struct Queue {
    #[command(flatten)]
    output: TableFlags,
}

#[derive(Serialize)]
struct Answer {
    waiting: Vec<Place>,
}

/// A place in the queue.
#[derive(Serialize)]
struct Place {
    pid: u32,
    uid: u32,
    username: String,
    /// The number of devices in all.
    gpus: Option<u32>,
    /// One particular device.
    index: Option<u32>,
    /// The memory of each device; absent: all of it.
    gpu_memory_bytes: Option<u64>,
    since_timestamp_seconds: Option<i64>,
}

impl Queue {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut machine = Machine::here()?;
        let state = machine.state()?;
        let waiting: Vec<Place> = machine.waiting(&state).iter().map(Place::of).collect();
        if self.output.json {
            return Ok(print_json(&Answer { waiting })?);
        }
        if waiting.is_empty() {
            return Ok(print(b"No process waits for devices.\n")?);
        }
        let header = &["PLACE", "USER", "PROCESS", "DEVICES", "MEMORY", "WAITS"];
        let mut table = Table::new(header).header(!self.output.no_header);
        for (place, number) in waiting.iter().zip(1..) {
            table.row(place.cells(number));
        }
        Ok(table.write(&mut stdout())?)
    }
}

impl Place {
    fn of(waiting: &Waiting) -> Self {
        let request = waiting.request.unwrap_or_default();
        Self {
            pid: waiting.pid,
            uid: waiting.uid,
            username: username(waiting.uid),
            gpus: request.gpus,
            index: request.index,
            gpu_memory_bytes: request.gpu_memory_bytes,
            since_timestamp_seconds: waiting.since_timestamp_seconds,
        }
    }

    fn cells(&self, number: u32) -> [Cell; 6] {
        let devices = match (self.gpus, self.index) {
            (Some(gpus), _) => gpus.to_string(),
            (None, Some(index)) => format!("number {index}"),
            (None, None) => "?".to_owned(),
        };
        let is_known = self.gpus.is_some() || self.index.is_some();
        let memory = match self.gpu_memory_bytes {
            Some(bytes) => outside::memory(bytes),
            None if is_known => "all".to_owned(),
            None => "?".to_owned(),
        };
        [
            Cell::own(number.to_string()),
            Cell::foreign(&self.username),
            Cell::own(self.pid.to_string()),
            Cell::own(devices),
            Cell::own(memory),
            Cell::own(self.waits(now_seconds())),
        ]
    }

    /// How long it has waited. A clock that was set back shows no time.
    fn waits(&self, now_seconds: f64) -> String {
        let Some(since) = self.since_timestamp_seconds else {
            return "?".to_owned();
        };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the clock ends with the year 9999"
        )]
        let now_seconds = now_seconds as i64;
        whole_units(now_seconds.saturating_sub(since).max(0))
    }
}
