//! Tables of processes, environments, waiting processes and users.

use genv_core::duration::format_span;
use genv_core::lab::{USER_COLLECTORS, UserTotals, unknown_hosts};
use genv_core::model::{
    Attribution, DeviceIndex, Environment, HostSnapshot, Process, ProcessDevice, QueuedProcess, Snapshot,
};
use genv_core::text::counted;
use maud::{Markup, html};

use super::parts::{energy, host_link, hours, memory, percent, shown, since, user, user_link};

/// Rows of a table of processes: a host may have any number, and the snapshot has all.
const MOST_PROCESSES: usize = 500;

/// The processes of these snapshots, with a row for each GPU. The user is named where `of_user` does not say it already, and
/// then the host is not.
pub(super) fn processes<'a>(all: impl IntoIterator<Item = (&'a Snapshot, &'a Process)>, of_user: bool) -> Markup {
    let rows = all.into_iter().flat_map(|(snapshot, it)| it.devices.iter().map(move |usage| (snapshot, it, usage)));
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return html! { p.dim { "None is known." } };
    }
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        th scope="col" { "PID" }
                        th scope="col" { @if of_user { "Host" } @else { "User" } }
                        th scope="col" { "Command" }
                        th scope="col" { "Environment" }
                        th scope="col" { "GPU" }
                        th.n scope="col" { "Memory" }
                        th.n scope="col" { "Utilization" }
                    }
                }
                tbody {
                    @for (snapshot, it, usage) in rows.iter().take(MOST_PROCESSES) {
                        (process(snapshot, it, usage, of_user))
                    }
                }
            }
        }
        @if rows.len() > MOST_PROCESSES {
            p.dim { (rows.len() - MOST_PROCESSES) " more: the snapshot, linked below, has all." }
        }
    }
}

fn process(snapshot: &Snapshot, process: &Process, usage: &ProcessDevice, of_user: bool) -> Markup {
    html! {
        tr {
            th scope="row" { (process.pid) }
            td.name {
                @if of_user { (host_link(&snapshot.hostname)) } @else { (user(snapshot.user_of(process))) }
            }
            td.name { (shown(process.comm.as_deref().unwrap_or("?"))) }
            td.name { (attribution(snapshot, &process.attribution)) }
            td { (usage.index) }
            td.n { (memory(usage.memory_used_bytes.get())) }
            td.n { (percent(usage.utilization_ratio.get())) }
        }
    }
}

/// The environment of a process, or why it has none.
fn attribution(snapshot: &Snapshot, attribution: &Attribution) -> Markup {
    let words = |reason: &str| shown(&reason.replace('_', " "));
    html! {
        @match attribution {
            Attribution::Environment { eid } => {
                @let name = snapshot.environment(eid).and_then(|it| it.name.as_deref());
                (shown(name.unwrap_or(eid)))
            }
            Attribution::Outside { reason } => span.used { "▲ outside: " (words(reason)) },
            Attribution::Unknown { reason } => span.unknown { "? not known: " (words(reason)) },
        }
    }
}

/// The environments of these hosts that are meant; the user or the host as in [`processes`].
pub(super) fn environments(hosts: &[HostSnapshot], is_meant: impl Fn(&Environment) -> bool, of_user: bool) -> Markup {
    let snapshots = hosts.iter().filter_map(|host| host.snapshot.as_deref());
    let all = snapshots.flat_map(|snapshot| snapshot.environments.iter().map(move |it| (snapshot, &**it)));
    let mut all = all.filter(|(_, it)| is_meant(it)).peekable();
    if all.peek().is_none() {
        let are_known = unknown_hosts(hosts, &["state"]) == 0;
        return html! { p.dim { (if are_known { "None." } else { "None is known." }) } };
    }
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        th scope="col" { "Name" }
                        th scope="col" { @if of_user { "Host" } @else { "User" } }
                        th scope="col" { "Holds GPU" }
                        th scope="col" { "Uses without holding" }
                        th.n scope="col" { "Age" }
                        th scope="col" { "Lease" }
                    }
                }
                tbody {
                    @for (snapshot, it) in all {
                        tr {
                            th.name scope="row" { (shown(it.name.as_deref().unwrap_or(&it.eid))) }
                            td.name {
                                @if of_user { (host_link(&snapshot.hostname)) } @else { (user_link(&it.username)) }
                            }
                            td { (devices(it, true)) }
                            td { (devices(it, false)) }
                            td.n { (since(snapshot.timestamp_seconds, it.created_timestamp_seconds)) }
                            td { (lease(snapshot.timestamp_seconds, it)) }
                        }
                    }
                }
            }
        }
    }
}

fn devices(environment: &Environment, attached: bool) -> String {
    let devices = environment.devices.iter().filter(|it| it.attached == attached);
    let devices: Vec<String> = devices.map(|it| DeviceIndex::to_string(&it.index)).collect();
    if devices.is_empty() { "–".to_owned() } else { devices.join(", ") }
}

fn lease(now_seconds: f64, environment: &Environment) -> String {
    match environment.lease_end_timestamp_seconds {
        Some(end) if end >= now_seconds => format!("ends in {}", format_span(end - now_seconds)),
        Some(end) => format!("ended {} ago", format_span(now_seconds - end)),
        None => "–".to_owned(),
    }
}

/// The processes that wait for GPUs, in order; the user or the host as in [`processes`].
pub(super) fn queue<'a>(all: impl IntoIterator<Item = (&'a Snapshot, &'a QueuedProcess)>, of_user: bool) -> Markup {
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        th scope="col" { @if of_user { "Host" } @else { "User" } }
                        th.n scope="col" { "GPUs" }
                        th.n scope="col" { "Waits for" }
                    }
                }
                tbody {
                    @for (snapshot, it) in all {
                        tr {
                            th.name scope="row" {
                                @if of_user { (host_link(&snapshot.hostname)) } @else { (user_link(&it.username)) }
                            }
                            td.n { (it.gpus.map_or_else(|| "?".to_owned(), |it| it.to_string())) }
                            td.n { (since(snapshot.timestamp_seconds, it.since_timestamp_seconds)) }
                        }
                    }
                }
            }
        }
    }
}

/// A line about hosts with unknown values of [`users`].
pub(super) fn unknown_values(hosts: &[HostSnapshot]) -> Markup {
    let unknown = unknown_hosts(hosts, &USER_COLLECTORS);
    html! {
        @if unknown > 0 {
            p.unknown { "? Some values of " (counted(unknown, "host")) " are not known, and not counted." }
        }
    }
}

/// Users with what they hold now and did since the collection began.
pub(super) fn users(users: &[(&str, UserTotals)]) -> Markup {
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        th scope="col" { "User" }
                        th.n scope="col" { "Holds" }
                        th.n scope="col" { "Idle now" }
                        th.n scope="col" { "Held" }
                        th.n scope="col" { "Idle" }
                        th.n scope="col" { "Busy" }
                        th.n scope="col" { "Energy" }
                    }
                }
                tbody {
                    @for (name, it) in users {
                        tr data-key=(shown(name)) {
                            th.name scope="row" {
                                (user_link(name))
                                @if it.outside.known > 0 { " " small.used { "▲ " (it.outside) " outside" } }
                            }
                            td.n { (it.held) }
                            td.n class=[(it.idle.known > 0).then_some("idle")] { (it.idle) }
                            td.n { (hours(it.held_seconds())) }
                            td.n { (hours(it.idle_seconds())) }
                            td.n { (percent(it.busy_ratio())) }
                            td.n { (energy(it.energy_joules)) }
                        }
                    }
                }
            }
        }
    }
}
