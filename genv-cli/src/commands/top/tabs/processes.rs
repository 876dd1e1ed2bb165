//! The processes that use a device.

use genv_core::model::{Attribution, Process, ProcessType, Snapshot};

use super::{Facts, HOST, amount, attribution, percent};
use crate::commands::top::grid::{Column, Form, Grid, Key, Row, Value};
use crate::output::joined;

/// The column by which the view is sorted.
const MEMORY: &str = "MEM GiB";

const COLUMNS: [Column; 9] = [
    Column::new(1, HOST, Form::Text(5)),
    Column::new(1, "PID", Form::Text(3)),
    Column::new(0, "USER", Form::Text(8)),
    Column::new(0, "COMMAND", Form::Text(8)),
    Column::new(2, "ENVIRONMENT", Form::Text(11)),
    Column::new(1, "GPUS", Form::Text(4)),
    Column::new(2, "UTIL", Form::Number),
    Column::new(2, MEMORY, Form::Number),
    Column::new(3, "TYPE", Form::Text(4)),
];

pub(super) fn grid(facts: &Facts<'_>) -> Grid {
    let rows = facts.snapshots().flat_map(|(hostname, snapshot)| {
        let processes = snapshot.processes.iter();
        processes.map(move |process| row(facts, hostname, snapshot, process))
    });
    let mut grid = Grid { rows: rows.collect(), columns: COLUMNS.to_vec() };
    grid.sort(Some(MEMORY), false);
    grid
}

fn row(facts: &Facts<'_>, hostname: &str, snapshot: &Snapshot, process: &Process) -> Row {
    let usages = process.devices.iter();
    let indices: Vec<_> = usages.clone().map(|it| it.index).collect();
    let user = process.username.as_deref();
    let comm = process.comm.as_deref();
    let values = vec![
        Value::foreign(hostname),
        Value::number(process.pid.to_string(), process.pid.into()),
        user.map_or_else(Value::unknown, |user| facts.user(user)),
        comm.map_or_else(Value::unknown, Value::foreign),
        attribution(snapshot, &process.attribution),
        Value::foreign(&joined(&indices, ",")),
        percent(usages.clone().map(|it| it.utilization_ratio.get()).sum()),
        amount(usages.clone().map(|it| it.memory_used_bytes.get()).sum()),
        Value::foreign(process.devices.first().map_or("", |it| kind(it.process_type))),
    ];
    let host = || hostname.to_owned();
    let environment = process.attribution.eid().map(|eid| Key::Environment(host(), eid.to_owned()));
    let user = snapshot.user_of(process).map(|user| Key::User(user.to_owned()));
    let devices = indices.iter().flat_map(|it| [*it, it.whole()]).map(|it| Key::Device(host(), it));
    let of = devices.chain(environment).chain(user).chain([Key::Host(host())]).collect();
    let why = match &process.attribution {
        Attribution::Environment { eid } => eid,
        Attribution::Outside { reason } | Attribution::Unknown { reason } => reason,
    };
    let also = vec![host(), why.clone()];
    Row { key: Key::Process(host(), process.pid), values, of, leads: None, also }
}

const fn kind(kind: ProcessType) -> &'static str {
    match kind {
        ProcessType::Compute => "compute",
        ProcessType::Graphics => "graphics",
        ProcessType::ComputeAndGraphics => "both",
    }
}
