//! The environments: what each holds, and for how long its devices are unused.

use std::collections::BTreeMap;

use genv_core::duration::format_span;
use genv_core::lab::{Activity, Count, Hold, gpus, is_known};
use genv_core::model::{DeviceIndex, Environment, HostSnapshot};

use super::{Facts, HOST, amount, count, idle, percent};
use crate::commands::top::grid::{Column, Form, Grid, Key, Row, Value};
use crate::commands::top::view::Tab;
use crate::output::joined;

const COLUMNS: [Column; 11] = [
    Column::new(1, HOST, Form::Text(5)),
    Column::new(0, "USER", Form::Text(8)),
    Column::new(0, "ENVIRONMENT", Form::Text(11)),
    Column::new(5, "ID", Form::Text(6)),
    Column::new(1, "GPUS", Form::Text(4)),
    Column::new(2, "UTIL", Form::Number),
    Column::new(3, "MEM GiB", Form::Number),
    Column::new(1, "IDLE", Form::Number),
    Column::new(3, "PROCESSES", Form::Number),
    Column::new(4, "AGE", Form::Number),
    Column::new(6, "UNTIL", Form::Text(5)),
];

pub(super) fn grid(facts: &Facts<'_>) -> Grid {
    let mut rows = Vec::new();
    for host in facts.hosts {
        let Some(snapshot) = host.snapshot.as_deref() else {
            continue;
        };
        let mut held = BTreeMap::<&str, Vec<(DeviceIndex, Hold<'_>)>>::new();
        for gpu in gpus(snapshot) {
            for hold in gpu.holds {
                held.entry(&hold.attachment.eid).or_default().push((gpu.device.index, hold));
            }
        }
        let mut processes = BTreeMap::<&str, usize>::new();
        for eid in snapshot.processes.iter().filter_map(|it| it.attribution.eid()) {
            *processes.entry(eid).or_default() += 1;
        }
        let are_known = is_known(host, &["gpu", "processes", "state"]);
        rows.extend(snapshot.environments.iter().map(|environment| {
            let held = held.remove(environment.eid.as_str()).unwrap_or_default();
            let known = processes.get(environment.eid.as_str()).copied().unwrap_or_default();
            let more = !are_known || held.iter().any(|(index, _)| !snapshot.processes_known(index.gpu));
            row(facts, host, snapshot.timestamp_seconds, environment, &held, Count { known, more })
        }));
    }
    Grid { columns: COLUMNS.to_vec(), rows }
}

fn row(
    facts: &Facts<'_>,
    host: &HostSnapshot,
    now_seconds: f64,
    environment: &Environment,
    held: &[(DeviceIndex, Hold<'_>)],
    processes: Count,
) -> Row {
    let hostname = host.hostname.as_str();
    let indices: Vec<DeviceIndex> = held.iter().map(|(index, _)| *index).collect();
    let usages = || held.iter().map(|(_, hold)| hold.usage);
    // Not known if one of them is not.
    let utilization: Option<f64> = usages().map(|it| it?.utilization_ratio.get()).sum();
    let memory: Option<u64> = usages().map(|it| it?.memory_used_bytes.get()).sum();
    #[expect(clippy::cast_precision_loss, reason = "a host has few devices")]
    let devices = held.len() as f64;
    let holds = !held.is_empty();
    // Without the list of the GPUs, the held ones are not known.
    let nothing = || if is_known(host, &["gpu"]) { Value::none() } else { Value::unknown() };
    let activity = Activity::of_all(held.iter().map(|(_, hold)| hold.activity));
    let age = environment.created_timestamp_seconds.map(|created| now_seconds - created);
    let name = environment.name.as_deref();
    let values = vec![
        Value::foreign(hostname),
        facts.user(&environment.username),
        Value::foreign(name.unwrap_or(&environment.eid)),
        Value::foreign(&environment.eid),
        if holds { Value::foreign(&joined(&indices, ",")) } else { nothing() },
        if holds { percent(utilization.map(|it| it / devices)) } else { nothing() },
        if holds { amount(memory) } else { nothing() },
        activity.map_or_else(nothing, idle),
        count(processes),
        Value::known(age, format_span),
        facts.end(environment.lease_end_timestamp_seconds, now_seconds),
    ];
    let owned = || hostname.to_owned();
    let of = [Key::Host(owned()), Key::User(environment.username.clone())].into_iter();
    let of = of.chain(indices.iter().map(|it| Key::Device(owned(), *it))).collect();
    let key = Key::Environment(owned(), environment.eid.clone());
    Row { key, values, of, leads: Some(Tab::Processes), also: vec![owned()] }
}
