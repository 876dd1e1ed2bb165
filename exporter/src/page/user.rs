//! The page of one user, over all hosts.

use genv_core::lab::{UserTotals, gpus};
use genv_core::model::{HostSnapshot, Snapshot};
use maud::{Markup, html};

use super::parts::{energy, hours, percent};
use super::tables;
use super::tile::tiles;

pub(super) fn main(hosts: &[HostSnapshot], username: &str, totals: &UserTotals) -> Markup {
    let snapshots = || hosts.iter().filter_map(|it| it.snapshot.as_deref());
    let held = snapshots().flat_map(|snapshot| {
        let gpus = gpus(snapshot).into_iter();
        let held = gpus.filter(|gpu| gpu.holders.iter().any(|it| it.username() == Some(username)));
        held.map(move |gpu| (snapshot, gpu))
    });
    let queue = snapshots().flat_map(|snapshot| snapshot.queue.iter().map(move |it| (snapshot, it)));
    let queue = queue.filter(|(_, it)| it.username == username);
    html! {
        section { h2 { "Totals" } (totals_list(totals, tables::untold(hosts))) }
        @if totals.held > 0 { section { h2 { "GPUs held" } (tiles(held, true)) } }
        section { h2 { "Environments" } (tables::environments(hosts, |it| it.username == username, true)) }
        section { h2 { "Processes" } (tables::processes(snapshots().flat_map(|it| processes(it, username)), true)) }
        @if totals.waiting > 0 { section { h2 { "Waits for GPUs" } (tables::queue(queue, true)) } }
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

fn totals_list(totals: &UserTotals, untold: usize) -> Markup {
    let seconds = &totals.seconds;
    let fact = |name: &str, value: String| html! { div { dt { (name) } dd { (value) } } };
    html! {
        dl.totals {
            (fact("GPUs held", tables::counted(totals.held, untold)))
            (fact("idle now", totals.idle_words(untold)))
            (fact("processes", tables::counted(totals.processes, untold)))
            (fact("outside", tables::counted(totals.outside, untold)))
            (fact("waiting", tables::counted(totals.waiting, untold)))
            (fact("held", hours(tables::held_seconds(totals))))
            (fact("of it idle", tables::idle_hours(totals)))
            (fact("not measured", hours(seconds.unmeasured)))
            (fact("outside of environments", hours(seconds.outside)))
            (fact("busy", percent(totals.busy_ratio())))
            (fact("energy", energy(totals.energy_joules)))
        }
        (tables::untold_line(untold))
        p.dim { "Hours and energy are since the collection began." }
    }
}
