//! The devices: who holds each, and what it does.

use genv_core::lab::{Gpu, GpuState, gpus_of, short_model};
use genv_core::model::{Device, DeviceMemory, Snapshot};

use super::{Facts, HOST, amount, environment_name, idle, listed, percent};
use crate::commands::top::grid::{Column, Form, Grid, Key, Row, Value};
use crate::commands::top::view::Tab;
use crate::output::{BAD, DOUBTFUL, GOOD, OWN, used_of_total};

const COLUMNS: [Column; 14] = [
    Column::new(1, HOST, Form::Text(5)),
    Column::new(0, "GPU", Form::Text(3)),
    Column::new(6, "MODEL", Form::Text(7)),
    Column::new(0, "HELD BY", Form::Text(10)),
    Column::new(4, "ENVIRONMENT", Form::Text(11)),
    Column::new(2, "UTIL", Form::Number),
    Column::new(5, "HISTORY", Form::Graph(8)),
    Column::new(3, "MEM GiB", Form::Number),
    Column::new(9, "MEMORY", Form::Graph(8)),
    Column::new(1, "IDLE", Form::Number),
    Column::new(3, "OUTSIDE", Form::Number),
    Column::new(7, "POWER", Form::Number),
    Column::new(8, "TEMP", Form::Number),
    Column::new(10, "UNTIL", Form::Text(5)),
];

pub(super) fn grid(facts: &Facts<'_>) -> Grid {
    let mut rows = Vec::new();
    for host in facts.hosts {
        let (Some(snapshot), hostname) = (host.snapshot.as_deref(), host.hostname.as_str()) else {
            continue;
        };
        for gpu in gpus_of(host) {
            rows.push(whole(facts, hostname, snapshot, &gpu));
            rows.extend(gpu.parts.iter().map(|part| mig_device(facts, hostname, snapshot, &gpu, part)));
        }
    }
    Grid { columns: COLUMNS.to_vec(), rows }
}

fn whole(facts: &Facts<'_>, hostname: &str, snapshot: &Snapshot, gpu: &Gpu<'_>) -> Row {
    let device = gpu.device;
    let measured = &device.measurements;
    let environments = listed(gpu.holds.iter().map(|it| it.name()));
    let ends = gpu.holds.iter().map(|it| it.environment.and_then(|it| it.lease_end_timestamp_seconds));
    let ends: Option<Vec<f64>> = ends.collect();
    let end = ends.and_then(|ends| ends.into_iter().max_by(f64::total_cmp));
    let watts = |watts: f64| format!("{watts:.0} W");
    let model = device.name.as_deref();
    let values = vec![
        Value::foreign(hostname),
        index(device),
        model.map_or_else(Value::unknown, |name| Value::foreign(&short_model(name))),
        held_by(facts, snapshot, gpu),
        Value::foreign(&environments),
        percent(measured.utilization_ratio),
        Value::graph(facts.history.utilization(hostname, device.index)),
        memory(measured.memory),
        Value::graph(facts.history.memory(hostname, device.index)),
        gpu.activity().map_or_else(Value::none, idle),
        outside(gpu),
        Value::known(measured.power_watts, watts),
        Value::known(measured.temperature_celsius, |celsius| format!("{celsius:.0}°C")),
        facts.end(end, snapshot.timestamp_seconds),
    ];
    let leads = match (gpu.holds.is_empty(), gpu.processes.is_empty()) {
        (false, _) => Some(Tab::Environments),
        (true, false) => Some(Tab::Processes),
        (true, true) => None,
    };
    let commands = gpu.processes.iter().filter_map(|(process, _)| process.comm.clone());
    let also = commands.chain(model.map(str::to_owned)).chain([hostname.to_owned()]).collect();
    row(hostname, device, values, leads, also)
}

/// A MIG device. It cannot be held, and drivers do not report its utilization.
fn mig_device(facts: &Facts<'_>, hostname: &str, snapshot: &Snapshot, gpu: &Gpu<'_>, part: &Device) -> Row {
    let profile = part.profile.as_deref();
    let on_it = || gpu.processes.iter().filter(|(_, usage)| usage.index == part.index);
    let users: Vec<&str> = on_it().filter_map(|(process, _)| snapshot.user_of(process)).collect();
    let environments = on_it().filter_map(|(process, _)| process.attribution.eid());
    let environments = listed(environments.map(|eid| environment_name(snapshot, eid)));
    // A holder whose name is not known may be any of the users.
    let holds = |user: &str| gpu.holds.iter().any(|it| it.username().is_none_or(|holder| holder == user));
    let held_by = match users.is_empty() || users.iter().any(|user| holds(user)) {
        true => Value::foreign(&listed(users)),
        false => not_held(users),
    };
    let values = vec![
        Value::foreign(hostname),
        index(part),
        profile.map_or_else(Value::unknown, |profile| Value::foreign(&format!("MIG {profile}"))),
        held_by,
        Value::foreign(&environments),
        part.measurements.utilization_ratio.map_or_else(Value::none, |ratio| percent(Some(ratio))),
        Value::none(),
        memory(part.measurements.memory),
        Value::graph(facts.history.memory(hostname, part.index)),
        Value::none(),
        Value::none(),
        Value::none(),
        Value::none(),
        Value::none(),
    ];
    let leads = on_it().next().is_some().then_some(Tab::Processes);
    let commands = on_it().filter_map(|(process, _)| process.comm.clone());
    row(hostname, part, values, leads, commands.chain([hostname.to_owned()]).collect())
}

fn row(hostname: &str, device: &Device, values: Vec<Value>, leads: Option<Tab>, also: Vec<String>) -> Row {
    let key = Key::Device(hostname.to_owned(), device.index);
    Row { key, values, of: vec![Key::Host(hostname.to_owned())], leads, also }
}

fn index(device: &Device) -> Value {
    let part = device.index.mig.map_or(0.0, |mig| f64::from(mig) + 1.0);
    Value::number(device.index.to_string(), f64::from(device.index.gpu) * 1000.0 + part)
}

/// Memory in use and in all.
fn memory(memory: Option<DeviceMemory>) -> Value {
    let mut value = amount(memory.map(|it| it.used_bytes));
    if let Some(memory) = memory {
        value.text = used_of_total(Some(memory.used_bytes), Some(memory.total_bytes));
    }
    value
}

/// The holders; without one the users, or the state.
fn held_by(facts: &Facts<'_>, snapshot: &Snapshot, gpu: &Gpu<'_>) -> Value {
    let state = Value::foreign(gpu.state.word());
    match gpu.state {
        GpuState::Free => state.style(GOOD),
        GpuState::Held => {
            let users = gpu.holds.iter().map(|it| it.username());
            let value = Value::foreign(&listed(users.clone().map(|it| it.unwrap_or("?"))));
            let is_own = users.flatten().any(|it| it == facts.own);
            if is_own { value.style(OWN) } else { value }
        }
        GpuState::Used => {
            let users = gpu.processes.iter().map(|(process, _)| snapshot.user_of(process).unwrap_or("?"));
            not_held(users)
        }
        GpuState::Unknown | GpuState::Unsplit => state.style(DOUBTFUL),
        // A GPU that is down may be held all the same.
        GpuState::Down => {
            let users: Vec<&str> = gpu.holds.iter().filter_map(|it| it.username()).collect();
            match &users[..] {
                [] => state.style(BAD),
                users => Value::foreign(&format!("down, {}", listed(users.iter().copied()))).style(BAD),
            }
        }
    }
}

/// The users of a device that none of them holds.
fn not_held<'a>(users: impl IntoIterator<Item = &'a str>) -> Value {
    Value::foreign(&format!("{}, not held", listed(users))).style(DOUBTFUL)
}

/// The processes outside of environments, and with `?` those that may be: `2`, `2+1?`; `2+?` if some are not known.
fn outside(gpu: &Gpu<'_>) -> Value {
    let (outside, unknown) = (gpu.outside(), gpu.unknown());
    let doubt = match (unknown, gpu.processes_known) {
        (0, true) => None,
        (0, false) => Some("?".to_owned()),
        (count, true) => Some(format!("{count}?")),
        (count, false) => Some(format!("{count}+?")),
    };
    let mut value = match outside + unknown {
        0 if doubt.is_some() => Value::unknown(),
        0 => Value::count(0),
        count => Value::count(count).style(DOUBTFUL),
    };
    value.text = match (outside, doubt) {
        (0, Some(doubt)) => doubt,
        (count, None) => count.to_string(),
        (count, Some(doubt)) => format!("{count}+{doubt}"),
    };
    value
}
