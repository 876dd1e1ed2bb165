//! The page of all hosts: what is free, what is broken, each GPU, and who holds without use.

use genv_core::lab::{Gpu, UserTotals, gpus_of, models, troubles, unknown_hosts, users};
use genv_core::model::HostSnapshot;
use genv_core::text::counted;
use maud::{Markup, html};

use super::parts::{folded, host_link, shown, strip, trouble_list};
use super::tables;
use super::tile::tiles;

/// Hosts that are shown open.
const MOST_OPEN: usize = 4;
/// Hosts whose GPUs have tiles here. Beyond, each host is a line, and its own page has the tiles.
const MOST_TILED: usize = 40;
const FIRST_TROUBLES: usize = 6;
const FIRST_USERS: usize = 12;

pub(super) fn facts(hosts: &[HostSnapshot]) -> Markup {
    let snapshots = hosts.iter().filter_map(|it| it.snapshot.as_deref());
    let gpus = snapshots.clone().flat_map(|it| &it.devices).filter(|it| it.index.mig.is_none()).count();
    let waiting: usize = snapshots.map(|it| it.queue.len()).sum();
    html! {
        p {
            (counted(hosts.len(), "host")) " · " (counted(gpus, "GPU"))
            @if unknown_hosts(hosts, &["gpu"]) > 0 { " known" }
        }
        @if waiting > 0 { p { (counted(waiting, "process")) " in the queue" } }
        @if all_simulated(hosts) { p { span.tag { "simulated" } } }
    }
}

fn all_simulated(hosts: &[HostSnapshot]) -> bool {
    hosts.iter().all(|host| host.snapshot.as_ref().is_some_and(|it| it.simulated))
}

pub(super) fn main(hosts: &[HostSnapshot]) -> Markup {
    html! {
        div.lab {
            section.now { h2 { "Free now" } (free(hosts)) }
            section.broken { h2 { "Broken" } (broken(hosts)) }
            section.all { h2 { "GPUs" } (all_hosts(hosts)) }
            section.people { (people(hosts)) }
        }
    }
}

/// Free GPUs by model, and those that may be free.
fn free(hosts: &[HostSnapshot]) -> Markup {
    let (models, unknown) = (models(hosts), unknown_hosts(hosts, &["gpu"]));
    html! {
        ul.models {
            @for (model, totals) in &models {
                li class=(if totals.free > 0 { "free" } else { "dim" }) {
                    b { (totals.free) } " free of " (totals.all) " "
                    span.model { (if model == "?" { "of unknown model".to_owned() } else { shown(model) }) }
                    @if totals.unknown > 0 { " " small { (totals.unknown) " not known" } }
                    @if totals.unusable > 0 { " " small { (totals.unusable) " not usable" } }
                }
            }
        }
        @if unknown > 0 {
            p.unknown { "? Not all GPUs of " (counted(unknown, "host")) " are known." }
        } @else if models.is_empty() {
            p.dim { "No host has a GPU." }
        }
    }
}

fn broken(hosts: &[HostSnapshot]) -> Markup {
    let troubles = troubles(hosts);
    html! {
        @if troubles.is_empty() { p.dim { "Nothing is known to be broken." } }
        (trouble_list(&troubles, FIRST_TROUBLES))
    }
}

fn all_hosts(hosts: &[HostSnapshot]) -> Markup {
    let mixed = !all_simulated(hosts);
    html! {
        @if hosts.len() > MOST_TILED {
            ul.hosts {
                @for host in hosts {
                    li data-key=(shown(&host.hostname)) { (host_link(&host.hostname)) " " (line(host, &gpus_of(host), mixed)) }
                }
            }
        } @else {
            @for host in hosts { (host_part(host, hosts.len() <= MOST_OPEN, mixed)) }
        }
    }
}

/// A host with its tiles, folded if there are many.
fn host_part(host: &HostSnapshot, open: bool, mixed: bool) -> Markup {
    let gpus = gpus_of(host);
    let line = line(host, &gpus, mixed);
    let body = html! {
        @if let Some(snapshot) = host.snapshot.as_deref() {
            (tiles(gpus.into_iter().map(|gpu| (snapshot, gpu)), false))
        }
    };
    html! {
        @if open {
            section.host data-key=(shown(&host.hostname)) {
                p.line { b { (host_link(&host.hostname)) } " " (line) }
                (body)
            }
        } @else {
            details.host data-key=(shown(&host.hostname)) {
                summary { b { (shown(&host.hostname)) } " " (line) }
                p { "Processes and environments: " (host_link(&host.hostname)) }
                (body)
            }
        }
    }
}

/// What a host has in one line. In a lab that is `mixed`, a simulated host is named so.
fn line(host: &HostSnapshot, gpus: &[Gpu<'_>], mixed: bool) -> Markup {
    let waiting = host.snapshot.as_ref().map_or(0, |it| it.queue.len());
    html! {
        (strip(host, gpus))
        @if !host.up { " " span.down { "✕ delivers no snapshot" } }
        @if waiting > 0 { " " span.dim { "· " (waiting) " waiting" } }
        @if mixed && host.snapshot.as_ref().is_some_and(|it| it.simulated) { " " span.tag { "simulated" } }
    }
}

/// Who holds most and uses least.
fn people(hosts: &[HostSnapshot]) -> Markup {
    let mut users: Vec<_> = users(hosts).into_iter().collect();
    // Rounded as shown, so that rows with the same hours stay in their order. An unknown time is the last.
    let idle = |it: &UserTotals| it.idle_seconds().map_or(-1.0, |seconds| (seconds / 360.0).round());
    users.sort_by(|(_, one), (_, other)| {
        idle(other).total_cmp(&idle(one)).then((other.idle, other.held).cmp(&(one.idle, one.held)))
    });
    html! {
        h2 { "Users " small { "most idle time first, since the collection began" } }
        (tables::unknown_values(hosts))
        @if users.is_empty() { p.dim { "None is known." } }
        @else { (folded(&users, FIRST_USERS, tables::users)) }
    }
}
