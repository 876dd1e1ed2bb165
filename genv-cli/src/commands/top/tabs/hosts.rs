//! The hosts: what each offers, and what is wrong with it.

use genv_core::lab::{Count, GpuState, gpus_of, is_known, troubles};
use genv_core::model::HostSnapshot;

use super::{Facts, HOST};
use crate::commands::top::grid::{Column, Form, Grid, Key, Row, Value};
use crate::commands::top::view::Tab;
use crate::output::{BAD, DOUBTFUL, GOOD};

const COLUMNS: [Column; 10] = [
    Column::new(0, HOST, Form::Text(8)),
    Column::new(0, "STATE", Form::Text(4)),
    Column::new(1, "GPUS", Form::Number),
    Column::new(0, "FREE", Form::Number),
    Column::new(2, "HELD", Form::Number),
    Column::new(3, "USED", Form::Number),
    Column::new(3, "NOT KNOWN", Form::Number),
    Column::new(3, "UNUSABLE", Form::Number),
    Column::new(4, "DRIVER", Form::Text(6)),
    Column::new(1, "TROUBLE", Form::Text(7)),
];

pub(super) fn grid(facts: &Facts<'_>) -> Grid {
    Grid { columns: COLUMNS.to_vec(), rows: facts.hosts.iter().map(row).collect() }
}

fn row(host: &HostSnapshot) -> Row {
    let snapshot = host.snapshot.as_deref();
    // Before the first list of the GPUs, no number of them is known.
    let listed = snapshot.filter(|it| !it.devices.is_empty() || is_known(host, &["gpu"]));
    let states = listed.map(|_| gpus_of(host).iter().map(|gpu| gpu.state).collect::<Vec<_>>());
    let number = |is_meant: fn(GpuState) -> bool| {
        states.as_ref().map(|states| states.iter().filter(|it| is_meant(**it)).count())
    };
    let count = |is_meant: fn(GpuState) -> bool| number(is_meant).map_or_else(Value::unknown, Value::count);
    let not_known = number(|it| it == GpuState::Unknown);
    let free = number(|it| it == GpuState::Free).map(|known| Count { known, more: not_known != Some(0) });
    let troubles = troubles(std::slice::from_ref(host));
    let trouble = troubles.first().map_or_else(Value::none, |it| Value::foreign(&it.words).style(DOUBTFUL));
    let driver = snapshot.and_then(|it| it.driver_version.as_deref());
    let (state, style) = if host.up { ("up", GOOD) } else { ("down", BAD) };
    let values = vec![
        Value::foreign(&host.hostname),
        Value::foreign(state).style(style),
        count(|_| true),
        free.map_or_else(Value::unknown, super::count),
        count(|it| it == GpuState::Held),
        count(|it| it == GpuState::Used),
        not_known.map_or_else(Value::unknown, Value::count),
        count(|it| matches!(it, GpuState::Down | GpuState::Unsplit)),
        driver.map_or_else(Value::unknown, Value::foreign),
        trouble,
    ];
    Row {
        key: Key::Host(host.hostname.clone()),
        values,
        of: Vec::new(),
        leads: snapshot.is_some().then_some(Tab::Devices),
        also: Vec::new(),
    }
}
