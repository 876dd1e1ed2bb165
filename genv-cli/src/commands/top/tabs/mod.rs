//! The views: which rows and columns each one has.

mod devices;
mod environments;
mod hosts;
mod processes;
mod users;

use genv_core::duration::format_span;
use genv_core::lab::{Activity, Holder, Trouble, troubles};
use genv_core::model::{Attribution, DeviceMemory, HostSnapshot, Snapshot};
use genv_core::text::{harmless, short_moment};
use jiff::tz::TimeZone;

use super::grid::{Grid, Value};
use super::history::History;
use super::view::Tab;
use crate::output::{DOUBTFUL, OWN};

/// From this time on, a rest is marked, in seconds.
const LONG_IDLE_SECONDS: f64 = 900.0;

/// The facts of a view.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) hosts: &'a [HostSnapshot],
    pub(super) history: &'a History,
    /// The name of the user who looks.
    pub(super) own: &'a str,
    pub(super) zone: &'a TimeZone,
}

impl<'a> Facts<'a> {
    /// The rows of a view, in its own order.
    pub(super) fn grid(&self, tab: Tab) -> Grid {
        let grid = match tab {
            Tab::Devices => devices::grid(self),
            Tab::Environments => environments::grid(self),
            Tab::Users => users::grid(self),
            Tab::Processes => processes::grid(self),
            Tab::Hosts => return hosts::grid(self),
        };
        if self.hosts.len() > 1 { grid } else { grid.without(HOST) }
    }

    pub(super) fn snapshots(&self) -> impl Iterator<Item = (&'a str, &'a Snapshot)> + use<'a> {
        self.hosts.iter().filter_map(|host| Some((host.hostname.as_str(), host.snapshot.as_deref()?)))
    }

    /// Whether devices of a host are simulated.
    pub(super) fn is_simulated(&self) -> bool {
        self.snapshots().any(|(_, it)| it.simulated)
    }

    /// Whether there are present values of these collectors, of all hosts that are up.
    pub(super) fn are_current(&self, collectors: &[&str]) -> bool {
        self.hosts.iter().filter(|it| it.up).all(|host| {
            let snapshot = host.snapshot.as_deref();
            snapshot.is_some_and(|it| collectors.iter().all(|collector| is_current(it, collector)))
        })
    }

    /// What is broken, in words. Names are escaped.
    pub(super) fn troubles(&self) -> Vec<String> {
        let line = |trouble: Trouble<'_>| {
            let gpu = trouble.device.map(|it| format!(", GPU {it}")).unwrap_or_default();
            format!("{}{gpu}: {}", harmless(trouble.hostname), harmless(&trouble.words))
        };
        troubles(self.hosts).into_iter().map(line).collect()
    }

    /// The name of a user, marked if it is the one who looks.
    fn user(&self, username: &str) -> Value {
        let value = Value::foreign(username);
        if username == self.own { value.style(OWN) } else { value }
    }

    /// For how long holders rest, at least since a host is watched or since the last of them got its device.
    fn idle(&self, hostname: &str, now_seconds: f64, holders: &[&Holder<'_>]) -> Value {
        match Activity::of_all(holders.iter().map(|it| it.activity)) {
            None => Value::none(),
            Some(Activity::Busy) => Value::number("busy", -1.0),
            Some(Activity::Unknown) => Value::unknown(),
            Some(Activity::NotSeen) => {
                let attached = holders.iter().filter_map(|it| it.attachment.attached_timestamp_seconds);
                let since = self.history.since(hostname).map(|since| attached.fold(since, f64::max));
                match since.map(|since| now_seconds - since).filter(|it| *it >= 1.0) {
                    Some(seconds) => rest(format!(">{}", format_span(seconds)), seconds),
                    None => Value::unknown(),
                }
            }
            Some(Activity::IdleFor(seconds)) => rest(format_span(seconds), seconds),
        }
    }

    /// The end of a lease.
    fn end(&self, end_seconds: Option<f64>, now_seconds: f64) -> Value {
        match end_seconds {
            None => Value::none(),
            Some(end) if end <= now_seconds => Value::number("ended", end).style(DOUBTFUL),
            Some(end) => Value::number(short_moment(end, now_seconds, self.zone), end),
        }
    }
}

fn rest(text: String, seconds: f64) -> Value {
    let value = Value::number(text, seconds);
    if seconds >= LONG_IDLE_SECONDS { value.style(DOUBTFUL) } else { value }
}

/// Whether a snapshot has present values of a collector.
fn is_current(snapshot: &Snapshot, collector: &str) -> bool {
    snapshot.collectors.get(collector).is_some_and(|it| it.current)
}

/// A number of things; `2+?` or `?` where there may be more.
fn at_least(count: usize, are_all_known: bool) -> Value {
    if count == 0 && !are_all_known {
        return Value::unknown();
    }
    let mut value = Value::count(count);
    if !are_all_known {
        value.text.push_str("+?");
    }
    value
}

/// The column that only several hosts need.
const HOST: &str = "HOST";

fn percent(ratio: Option<f64>) -> Value {
    Value::known(ratio, |ratio| format!("{:.0}%", ratio * 100.0))
}

fn gibibytes(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let bytes = bytes as f64;
    format!("{:.1}", bytes / f64::from(1 << 30))
}

/// An amount of memory in GiB.
fn amount(bytes: Option<u64>) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "only the order counts")]
    let number = bytes.map(|it| it as f64);
    Value::known(number, |_| gibibytes(bytes.unwrap_or_default()))
}

/// `20.0/80.0`, in GiB.
fn used_of_total(memory: Option<DeviceMemory>) -> Value {
    let used = memory.map(|it| it.used_bytes);
    let total = memory.map(|it| gibibytes(it.total_bytes));
    let mut value = amount(used);
    if let Some(total) = total {
        value.text = format!("{}/{total}", value.text);
    }
    value
}

/// The name that the user gave an environment, else its id.
fn environment_name<'a>(snapshot: &'a Snapshot, eid: &'a str) -> &'a str {
    let name = snapshot.environment(eid).and_then(|it| it.name.as_deref());
    name.unwrap_or(eid)
}

/// The environment of a process, in words.
fn attribution(snapshot: &Snapshot, attribution: &Attribution) -> Value {
    match attribution {
        Attribution::Environment { eid } => Value::foreign(environment_name(snapshot, eid)),
        Attribution::Outside { .. } => Value::foreign("outside").style(DOUBTFUL),
        Attribution::Unknown { .. } => Value::unknown().style(DOUBTFUL),
    }
}

/// The different texts, separated by commas.
fn listed<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut different: Vec<&str> = Vec::new();
    for text in texts {
        if !different.contains(&text) {
            different.push(text);
        }
    }
    different.join(", ")
}
