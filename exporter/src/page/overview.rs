//! The page of all hosts: what is free, what is broken, each GPU, and who holds without use.

use genv_core::lab::{Gpu, gpus, models, troubles, users};
use genv_core::model::{HostSnapshot, Snapshot};
use maud::{Markup, html};

use super::parts::{folded, host_link, plural, shown, strip, trouble_list};
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
    let waiting: usize = snapshots.clone().map(|it| it.queue.len()).sum();
    let simulated = snapshots.filter(|it| it.simulated).count();
    html! {
        p { (plural(hosts.len(), "host", "hosts")) " · " (plural(gpus, "GPU", "GPUs")) }
        @if waiting > 0 { p { (plural(waiting, "process waits", "processes wait")) " for GPUs" } }
        @if simulated > 0 && simulated == hosts.len() { p { span.tag { "simulated" } } }
    }
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
    let silent = hosts.iter().filter(|it| it.snapshot.is_none()).count();
    html! {
        ul.models {
            @for (model, totals) in models(hosts) {
                li class=(if totals.free > 0 { "free" } else { "dim" }) {
                    b { (totals.free) } " free of " (totals.all) " "
                    span.model { (if model == "?" { "of unknown model".to_owned() } else { shown(&model) }) }
                    @if totals.unknown > 0 { " " small { (totals.unknown) " not known" } }
                    @if totals.unusable > 0 { " " small { (totals.unusable) " not usable" } }
                }
            }
        }
        @if silent > 0 {
            p.unknown { "? " (plural(silent, "host delivers", "hosts deliver")) " no snapshot: their GPUs are not counted" }
        }
    }
}

fn broken(hosts: &[HostSnapshot]) -> Markup {
    let troubles = troubles(hosts);
    html! {
        @if troubles.is_empty() { p.dim { "Nothing is known to be broken." } }
        (folded(&troubles, FIRST_TROUBLES, trouble_list))
    }
}

fn all_hosts(hosts: &[HostSnapshot]) -> Markup {
    html! {
        @if hosts.len() > MOST_TILED {
            ul.hosts {
                @for host in hosts {
                    li data-key=(shown(&host.hostname)) { (host_link(&host.hostname)) " " (line(host, &gpus_of(host))) }
                }
            }
        } @else {
            @for host in hosts { (host_part(host, hosts.len() <= MOST_OPEN)) }
        }
    }
}

/// A host with its tiles, folded if there are many.
fn host_part(host: &HostSnapshot, open: bool) -> Markup {
    let gpus = gpus_of(host);
    let line = line(host, &gpus);
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

/// What a host has in one line.
fn line(host: &HostSnapshot, gpus: &[Gpu<'_>]) -> Markup {
    let waiting = host.snapshot.as_ref().map_or(0, |it| it.queue.len());
    html! {
        @if host.snapshot.is_some() { (strip(gpus)) }
        @if !host.up { " " span.down { "✕ delivers no snapshot" } }
        @if waiting > 0 { " " span.dim { "· " (waiting) " waiting" } }
        @if host.snapshot.as_ref().is_some_and(|it| it.simulated) { " " span.tag { "simulated" } }
    }
}

fn gpus_of(host: &HostSnapshot) -> Vec<Gpu<'_>> {
    host.snapshot.as_deref().map(|snapshot: &Snapshot| gpus(snapshot)).unwrap_or_default()
}

/// Who holds most and uses least.
fn people(hosts: &[HostSnapshot]) -> Markup {
    let mut users: Vec<_> = users(hosts).into_iter().collect();
    let idle = |seconds: f64| std::cmp::Reverse(seconds.max(0.0).to_bits());
    users.sort_by_key(|(name, it)| (idle(it.seconds.idle), std::cmp::Reverse((it.idle, it.held)), *name));
    html! {
        h2 { "Users " small { "most idle time first, since the collection began" } }
        @if users.is_empty() { p.dim { "None is known." } } @else { (folded(&users, FIRST_USERS, tables::users)) }
    }
}
