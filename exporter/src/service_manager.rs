//! What the service manager is told: that there is something to scrape, in a line what, and that collecting goes on.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use genv_core::model::{Publication, Snapshot};
use genv_web::Notify;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::endpoints::is_overdue;
use crate::render::Rendering;

/// Beats in the time that the manager waits for one: sd_watchdog_enabled(3) advises two.
const BEATS: u32 = 2;

/// Follows the renderings, `every` so often one, until it is dropped; a collection that has ended has nothing more to tell.
pub(crate) async fn tell(notify: &Notify, mut latest: watch::Receiver<Arc<Rendering>>, every: Duration) {
    let mut beats = notify.watchdog().map(|patience| {
        let mut beats = interval(patience / BEATS);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        beats
    });
    let mut ready = false;
    loop {
        tokio::select! {
            changed = latest.changed() => {
                if changed.is_err() {
                    return pending().await;
                }
                let status = summary(latest.borrow_and_update().publication());
                notify.status(&status);
                if !ready {
                    notify.ready();
                    ready = true;
                }
            }
            () = next(&mut beats) => {
                if !is_overdue(latest.borrow().age(), every) {
                    notify.alive();
                }
            }
        }
    }
}

async fn next(beats: &mut Option<Interval>) {
    match beats {
        Some(beats) => {
            beats.tick().await;
        }
        None => pending().await,
    }
}

/// What is served, in a line.
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
    fn what_fails_is_in_the_line() {
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
