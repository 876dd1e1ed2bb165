//! The cost of planning for a thousand hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use anyhow::{Result, ensure};
use genv_core::model::{CollectorStatus, HostSnapshot, SNAPSHOT_VERSION, Snapshot};
use genv_enforcer::config::{Config, KIND_WORDS};
use genv_enforcer::plan::{History, Input, Outcome, Plan, plan};
use serde_json::{Value, json};

use crate::table::{Table, mebibytes, median, thread_cpu_seconds};

const HOSTS: usize = 1000;
const DEVICES: usize = 8;
const PROCESSES_PER_HOST: usize = 20;
const ENVIRONMENTS_PER_HOST: usize = 10;
const USERS: usize = 500;
const GROUPS: usize = 20;
const RULES_PER_KIND: usize = 5;
const CYCLES: usize = 25;
/// Idle windows are full after these, and violations that last are known.
const CYCLES_BEFORE: usize = 10;
const INTERVAL_SECONDS: f64 = 10.0;
/// Friday, 20 November 2026, 12:00 UTC.
const NOON: f64 = 1_795_176_000.0;
const GIB: u64 = 1 << 30;
const BUDGET_SECONDS: f64 = 0.050;

pub(crate) fn table() -> Result<Table> {
    let config = Config::parse("rules.yaml", &rules())?;
    let groups = groups();
    let mut snapshots = (0..HOSTS).map(snapshot).collect::<Result<Vec<_>>>()?;
    let mut history = History::default();
    let (mut planning, mut following) = (Vec::new(), Vec::new());
    let mut last = Plan::default();
    for cycle in 0..CYCLES_BEFORE + CYCLES {
        let now_seconds = NOON + INTERVAL_SECONDS * cycle as f64;
        let hosts: Vec<HostSnapshot> = snapshots.iter_mut().map(|snapshot| published(snapshot, now_seconds)).collect();
        let input = Input {
            hosts: &hosts,
            config: &config,
            groups: &groups,
            waivers: &[],
            unconfirmed: None,
            paused_until_seconds: None,
            now_seconds,
        };
        let began = thread_cpu_seconds();
        drop(plan(&input, &history));
        let planned = thread_cpu_seconds();
        last = history.plan(&input);
        let both = thread_cpu_seconds() - planned;
        for step in &last.steps {
            history.settle(step, &Outcome::Would, now_seconds);
        }
        if cycle >= CYCLES_BEFORE {
            let planned = planned - began;
            planning.push(planned);
            following.push(both - planned);
        }
    }
    ensure!(last.missing_hosts.is_empty() && !last.violations.is_empty(), "nothing was planned");

    let json = history.to_json()?;
    let mut table = Table::new(&["what", "measured", "budget", "holds"]);
    let load = format!(
        "{HOSTS} hosts × {DEVICES} devices, {} environments of {USERS} users, {} processes, {} rules, {} violations",
        HOSTS * ENVIRONMENTS_PER_HOST,
        HOSTS * PROCESSES_PER_HOST,
        config.rules.len(),
        last.violations.len()
    );
    table.cost(&format!("CPU of one plan: {load}"), median(planning), Some(BUDGET_SECONDS));
    table.cost("CPU of noting what was seen", median(following), None);
    table.row(&[&"the history as JSON", &mebibytes(json.len() as u64), &"", &""]);
    Ok(table)
}

/// All kinds, each with several selectors, limits and hosts with their own.
fn rules() -> String {
    let mut text = String::from(
        "version: 1\ntimezone: UTC\nhost_groups: {teaching: [\"gpu[0000-0099]\"]}\n\
         defaults: {action: report, for: 5m}\n\
         waivers: [{users: [user007], until: \"2027-01-01\", reason: deadline}]\nrules:\n",
    );
    let limited = |limit: &str, own: &str| {
        format!(
            "limit: {{default: {limit}, groups: {{group01: {limit}, group02: {limit}}}, users: {{user001: {limit}}}}}, \
             overrides: [{{host_groups: [teaching], limit: {{default: {own}}}}}]"
        )
    };
    let kinds = [
        ("non-env-processes", String::new()),
        ("env-devices", String::new()),
        ("env-memory", String::new()),
        ("max-devices-per-user", limited("2", "1")),
        ("max-environments-per-user", limited("2", "1")),
        ("max-hosts-per-user", "limit: {default: 14}".to_owned()),
        ("max-processes-per-environment", limited("6", "5")),
        ("max-memory-per-user", limited("60gi", "50gi")),
        ("max-age", limited("7d", "6d")),
        ("idle", "below: 0.05, over: 1m".to_owned()),
        ("unknown-processes", "over: 1m".to_owned()),
    ];
    let matches = [
        "",
        "match: {groups: [group01, group03]}",
        "match: {except_groups: [group02], devices: [0, 1, 2, 3]}",
        "match: {host_groups: [teaching]}",
        "match: {except_users: [user003]}, when: {days: mon-fri, between: \"08:00-20:00\"}",
    ];
    assert_eq!(kinds.each_ref().map(|(kind, _)| *kind), KIND_WORDS, "a kind is missing here");
    for (kind, keys) in &kinds {
        for (number, selected) in matches.iter().take(RULES_PER_KIND).enumerate() {
            let keys: Vec<&str> = [keys.as_str(), selected].into_iter().filter(|keys| !keys.is_empty()).collect();
            let comma = if keys.is_empty() { "" } else { ", " };
            let keys = keys.join(", ");
            let _ = writeln!(text, "  - {{name: {kind}-{number}, kind: {kind}{comma}{keys}}}");
        }
    }
    text
}

fn username(number: usize) -> String {
    format!("user{:03}", number % USERS)
}

fn groups() -> BTreeMap<String, BTreeSet<String>> {
    let of = |user: usize| [user % GROUPS, user / GROUPS % GROUPS].map(|group| format!("group{group:02}"));
    let users = (0..USERS).map(|user| (username(user), of(user).into_iter().collect()));
    users.collect()
}

/// One host; most of its users keep the rules.
fn snapshot(host: usize) -> Result<Snapshot> {
    let owner = |environment: usize| host * 7 + environment / 2;
    let eid = |environment: usize| format!("{}", 10_000 + environment);
    let reserved_bytes = |environment: usize| environment.is_multiple_of(3).then_some(10 * GIB);
    let devices = (0..DEVICES).map(|gpu| {
        json!({
            "index": gpu.to_string(), "uuid": format!("GPU-{gpu}"), "up": true, "minor": gpu, "processes_measured": true,
            "attachments": [{
                "eid": eid(gpu), "memory_bytes": reserved_bytes(gpu), "share_ratio": 1.0,
                "attached_timestamp_seconds": NOON - 3600.0 - gpu as f64,
            }],
        })
    });
    let environments = (0..ENVIRONMENTS_PER_HOST).map(|number| {
        let device = json!({
            "index": number.to_string(), "attached": true, "memory_capacity_bytes": reserved_bytes(number),
        });
        json!({
            "eid": eid(number), "uid": 1000 + owner(number), "username": username(owner(number)),
            "created_timestamp_seconds": NOON - 86_400.0 * ((host + number) % 8) as f64,
            "devices": (number < DEVICES).then_some(device).as_slice(),
        })
    });
    let processes = (0..PROCESSES_PER_HOST).map(|number| {
        let environment = number % DEVICES;
        let outside = host.is_multiple_of(10) && number == 0;
        let attribution = match (outside, host % 10 == 1 && number == 1) {
            (true, _) => json!({"state": "outside", "reason": "no_claim"}),
            (_, true) => json!({"state": "unknown", "reason": "zombie"}),
            _ => json!({"state": "environment", "eid": eid(environment)}),
        };
        // A few are where they may not be, or use more than they reserved.
        let gpu = if host % 20 == 2 && number == 2 { 7 } else { environment };
        let gib = if host % 20 == 3 && number == 3 { 40 } else { 3 };
        let idle = (host + environment).is_multiple_of(10);
        json!({
            "pid": 1000 + number, "start_time_ticks": (1000 + number) * 100, "uid": 1000 + owner(environment),
            "username": username(owner(environment)), "comm": "python", "attribution": attribution,
            "devices": [{
                "index": gpu.to_string(), "type": "compute", "memory_used_bytes": gib * GIB,
                "utilization_ratio": if idle { 0.0 } else { 0.5 },
            }],
        })
    });
    Ok(serde_json::from_value(json!({
        "version": SNAPSHOT_VERSION, "hostname": format!("gpu{host:04}"), "timestamp_seconds": NOON,
        "interval_seconds": INTERVAL_SECONDS, "installed": true, "collectors": {}, "counters": {},
        "devices": devices.collect::<Vec<Value>>(),
        "environments": environments.collect::<Vec<Value>>(),
        "processes": processes.collect::<Vec<Value>>(),
    }))?)
}

fn published(snapshot: &mut Snapshot, now_seconds: f64) -> HostSnapshot {
    snapshot.timestamp_seconds = now_seconds;
    for collector in ["gpu", "processes", "state"] {
        let status = CollectorStatus {
            success: true,
            current: true,
            duration_seconds: Some(0.001),
            timestamp_seconds: Some(now_seconds),
            error: None,
            fault: None,
            withheld: Vec::new(),
        };
        snapshot.collectors.insert(collector.to_owned(), status);
    }
    HostSnapshot {
        hostname: snapshot.hostname.clone(),
        up: true,
        received_timestamp_seconds: Some(now_seconds),
        snapshot: Some(Arc::new(snapshot.clone())),
        ssh: None,
    }
}
