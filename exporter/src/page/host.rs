//! The page of one host.

use genv_core::lab::{gpus_of, troubles};
use genv_core::model::{CollectorStatus, HostSnapshot, Snapshot};
use genv_core::text::harmless;
use maud::{Markup, html};

use super::parts::{shown, since, strip, trouble_list};
use super::tables;
use super::tile::tiles;

pub(super) fn facts(host: &HostSnapshot) -> Markup {
    html! {
        p { "host" }
        @if let Some(snapshot) = &host.snapshot {
            p { (strip(host, &gpus_of(host))) }
            @if let Some(version) = &snapshot.driver_version { p { "driver " (shown(version)) } }
            @if snapshot.simulated { p { span.tag { "simulated" } } }
        }
    }
}

pub(super) fn main(host: &HostSnapshot) -> Markup {
    let troubles = troubles(std::slice::from_ref(host));
    html! {
        @if !troubles.is_empty() { section data-key="broken" { h2 { "Broken" } (trouble_list(&troubles, usize::MAX)) } }
        @match host.snapshot.as_deref() {
            Some(snapshot) => (snapshot_parts(host, snapshot)),
            None => p { "Its GPUs, environments and processes are not known." },
        }
        section { h2 { "Collectors" } (collectors(host)) }
    }
}

fn snapshot_parts(host: &HostSnapshot, snapshot: &Snapshot) -> Markup {
    html! {
        section { h2 { "GPUs" } (tiles(gpus_of(host).into_iter().map(|gpu| (snapshot, gpu)), false)) }
        section {
            h2 { "Processes" }
            (tables::processes(snapshot.processes.iter().map(|it| (snapshot, &**it)), false))
        }
        section {
            h2 { "Environments" }
            (tables::environments(std::slice::from_ref(host), |_| true, false))
        }
        @if !snapshot.queue.is_empty() {
            section data-key="queue" { h2 { "Queue" } (tables::queue(snapshot.queue.iter().map(|it| (snapshot, it)), false)) }
        }
    }
}

fn collectors(host: &HostSnapshot) -> Markup {
    let snapshot = host.snapshot.as_deref();
    let of_snapshot = snapshot.into_iter().flat_map(|it| &it.collectors).map(|(name, status)| (name.as_str(), status));
    let all = host.ssh.iter().map(|status| ("ssh", status)).chain(of_snapshot);
    // The times of the session are this machine's, those of the collectors the host's.
    let age = |name: &str, status: &CollectorStatus| match snapshot {
        Some(snapshot) if name != "ssh" => since(snapshot.timestamp_seconds, status.timestamp_seconds),
        _ => "–".to_owned(),
    };
    html! {
        table {
            thead {
                tr {
                    th scope="col" { "Name" }
                    th scope="col" { "State" }
                    th.n scope="col" { "Age of the values" }
                    th scope="col" { "Error" }
                }
            }
            tbody {
                @for (name, status) in all {
                    tr {
                        th scope="row" { (shown(name)) }
                        td { (state(status)) }
                        td.n { (age(name, status)) }
                        td.name { (status.error.as_deref().map_or_else(|| "–".to_owned(), harmless)) }
                    }
                }
            }
        }
    }
}

fn state(status: &CollectorStatus) -> Markup {
    html! {
        @match (status.success, status.current, &status.error) {
            (true, true, None) => "works",
            (true, true, Some(_)) => span.idle { "▲ works in part" },
            (false, true, _) => span.down { "✕ fails; the last values are shown" },
            (_, false, _) => span.down { "✕ has no current values" },
        }
    }
}
