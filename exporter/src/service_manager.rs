//! Messages to the service manager: readiness for scrapes, a summary of the snapshot, and the watchdog of the collection.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use genv_core::model::{Publication, Snapshot};
use genv_core::text::harmless;
use genv_web::{NotifyState, notify, watchdog};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::endpoints::is_overdue;
use crate::render::Rendering;

/// Watchdog messages in the time within which the service manager expects one: sd_watchdog_enabled(3) advises two.
const WATCHDOG_MESSAGES: u32 = 2;

/// Notifies the service manager of the renderings, which are expected at the interval `every`. Never returns.
pub(crate) async fn notify_of(mut latest: watch::Receiver<Arc<Rendering>>, every: Duration) {
    let mut ticks = watchdog().map(|time| {
        let mut ticks = interval(time / WATCHDOG_MESSAGES);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    });
    let mut ready = false;
    loop {
        tokio::select! {
            changed = latest.changed() => {
                if changed.is_err() {
                    return pending().await;
                }
                let status = summary(latest.borrow_and_update().publication());
                notify(&[NotifyState::Status(&harmless(&status))]);
                if !ready {
                    notify(&[NotifyState::Ready]);
                    ready = true;
                }
            }
            () = next(&mut ticks) => {
                if !is_overdue(latest.borrow().age(), every) {
                    notify(&[NotifyState::Watchdog]);
                }
            }
        }
    }
}

async fn next(ticks: &mut Option<Interval>) {
    match ticks {
        Some(ticks) => {
            ticks.tick().await;
        }
        None => pending().await,
    }
}

/// The counts of the snapshots in one line.
fn summary(publication: &Publication) -> String {
    let hosts = &publication.hosts;
    let snapshots = || hosts.iter().filter_map(|host| host.snapshot.as_deref());
    let total = |of: fn(&Snapshot) -> usize| snapshots().map(of).sum::<usize>();
    let mut line = format!(
        "devices: {}, environments: {}, processes: {}",
        total(|snapshot| snapshot.devices.len()),
        total(|snapshot| snapshot.environments.len()),
        total(|snapshot| snapshot.processes.len()),
    );
    for (what, failing) in [
        ("hosts down", hosts.iter().filter(|host| !host.up).count()),
        (
            "collectors failing",
            total(|snapshot| {
                let collectors = snapshot.collectors.values();
                collectors.filter(|collector| !collector.success).count()
            }),
        ),
    ] {
        if failing > 0 {
            line += &format!(", {what}: {failing}");
        }
    }
    line
}

#[cfg(test)]
mod tests {

    use genv_core::model::{CollectorStatus, HostSnapshot};

    use super::*;

    #[test]
    fn failures_are_in_the_summary() {
        let mut snapshot = Snapshot {
            hostname: "gpu01".to_owned(),
            timestamp_seconds: 0.0,
            interval_seconds: 1.0,
            installed: true,
            simulated: true,
            ..Snapshot::default()
        };
        let host = |up, snapshot| HostSnapshot {
            hostname: "gpu01".to_owned(),
            up,
            received_timestamp_seconds: None,
            snapshot,
            ssh: None,
        };
        let publication = |hosts| Publication { sequence: 1, hosts };
        assert_eq!(
            summary(&publication(vec![host(true, Some(Arc::new(snapshot.clone())))])),
            "devices: 0, environments: 0, processes: 0"
        );
        let failing = CollectorStatus::default();
        snapshot.collectors.insert("gpu".to_owned(), failing);
        assert_eq!(
            summary(&publication(vec![host(true, Some(Arc::new(snapshot))), host(false, None),])),
            "devices: 0, environments: 0, processes: 0, hosts down: 1, collectors failing: 1"
        );
    }
}
