//! The users of all hosts: who holds most, and uses least.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use genv_core::duration::format_span;
use genv_core::lab::{Count, UserTotals, users};

use super::{Facts, count, percent};
use crate::commands::top::grid::{Column, Form, Grid, Key, Row, Value};
use crate::commands::top::view::Tab;
use crate::output::DOUBTFUL;

const COLUMNS: [Column; 8] = [
    Column::new(0, "USER", Form::Text(8)),
    Column::new(0, "GPUS", Form::Number),
    Column::new(0, "IDLE", Form::Number),
    Column::new(1, "PROCESSES", Form::Number),
    Column::new(1, "OUTSIDE", Form::Number),
    Column::new(2, "BUSY", Form::Number),
    Column::new(3, "GPU TIME", Form::Number),
    Column::new(4, "ENERGY", Form::Number),
];

pub(super) fn grid(facts: &Facts<'_>) -> Grid {
    let environments = facts.snapshots().flat_map(|(_, snapshot)| &snapshot.environments);
    let with_environments: BTreeSet<&str> = environments.map(|it| it.username.as_str()).collect();
    let users = users(facts.hosts);
    let mut users: Vec<(&&str, &UserTotals)> = users.iter().collect();
    users.sort_by_key(|(_, totals)| (Reverse(totals.held), Reverse(totals.idle)));
    let rows = users.into_iter().map(|(username, totals)| {
        let leads = match with_environments.contains(username) {
            true => Some(Tab::Environments),
            false => (totals.processes.known > 0).then_some(Tab::Processes),
        };
        Row {
            key: Key::User((*username).to_owned()),
            values: values(facts, username, totals),
            of: Vec::new(),
            leads,
            also: Vec::new(),
        }
    });
    Grid { rows: rows.collect(), columns: COLUMNS.to_vec() }
}

fn values(facts: &Facts<'_>, username: &str, totals: &UserTotals) -> Vec<Value> {
    let doubtful = |it: Count| if it.known > 0 { count(it).style(DOUBTFUL) } else { count(it) };
    vec![
        facts.user(username),
        count(totals.held),
        doubtful(totals.idle),
        count(totals.processes),
        doubtful(totals.outside),
        percent(totals.busy_ratio()),
        Value::known(totals.held_seconds(), format_span),
        Value::known(totals.energy_joules, |joules| format!("{:.2} kWh", joules / 3.6e6)),
    ]
}
