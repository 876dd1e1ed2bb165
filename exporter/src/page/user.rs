//! The page of one user, over all hosts.

use genv_core::lab::{Count, UserTotals, gpus};
use genv_core::model::{HostSnapshot, Snapshot};
use maud::{Markup, html};

use super::parts::{energy, hours, percent};
use super::tables;
use super::tile::tiles;

pub(super) fn main(hosts: &[HostSnapshot], username: &str, totals: &UserTotals) -> Markup {
    let snapshots = || hosts.iter().filter_map(|it| it.snapshot.as_deref());
    let held = snapshots().flat_map(|snapshot| {
        let gpus = gpus(snapshot).into_iter();
        let held = gpus.filter(|gpu| gpu.holds.iter().any(|it| it.username() == Some(username)));
        held.map(move |gpu| (snapshot, gpu))
    });
    let queue = snapshots().flat_map(|snapshot| snapshot.queue.iter().map(move |it| (snapshot, it)));
    let queue = queue.filter(|(_, it)| it.username == username);
    html! {
        section {
            h2 { "Totals" }
            (totals_list(totals))
            (tables::unknown_values(hosts))
            p.dim { "Hours and energy are since the collection began." }
        }
        @if totals.held.known > 0 { section data-key="held" { h2 { "GPUs held" } (tiles(held, true)) } }
        section { h2 { "Environments" } (tables::environments(hosts, |it| it.username == username, true)) }
        section { h2 { "Processes" } (tables::processes(snapshots().flat_map(|it| processes(it, username)), true)) }
        @if totals.waiting.known > 0 { section data-key="queue" { h2 { "Waits for GPUs" } (tables::queue(queue, true)) } }
    }
}

fn processes<'a>(
    snapshot: &'a Snapshot,
    username: &str,
) -> impl Iterator<Item = (&'a Snapshot, &'a genv_core::model::Process)> {
    let owners = snapshot.owners();
    let processes = snapshot.processes.iter();
    processes.filter(move |it| owners.of_process(it) == Some(username)).map(move |it| (snapshot, &**it))
}

fn totals_list(totals: &UserTotals) -> Markup {
    let count = |name: &str, count: Count| html! { div { dt { (name) } dd { (count) } } };
    let fact = |name: &str, value: String| html! { div { dt { (name) } dd { (value) } } };
    html! {
        dl.totals {
            (count("GPUs held", totals.held))
            (count("idle now", totals.idle))
            (count("processes", totals.processes))
            (count("outside", totals.outside))
            (count("waiting", totals.waiting))
            (fact("held", hours(totals.held_seconds())))
            (fact("of it idle", hours(totals.idle_seconds())))
            (fact("not measured", hours(totals.seconds.map(|it| it.unmeasured))))
            (fact("outside of environments", hours(totals.seconds.map(|it| it.outside))))
            (fact("busy", percent(totals.busy_ratio())))
            (fact("energy", energy(totals.energy_joules)))
        }
    }
}
