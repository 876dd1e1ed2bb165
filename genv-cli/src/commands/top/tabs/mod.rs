//! The views: which rows and columns each one has.

mod devices;
mod environments;
mod hosts;
mod processes;
mod users;

use genv_core::duration::format_span;
use genv_core::lab::{Activity, Count, Trouble, troubles};
use genv_core::model::{Attribution, HostSnapshot, Snapshot};
use genv_core::text::{gibibytes, harmless, short_moment};
use jiff::tz::TimeZone;

use super::grid::{Grid, Value};
use super::history::History;
use super::view::Tab;
use crate::output::{DOUBTFUL, OWN};

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

    /// The end of a lease.
    fn end(&self, end_seconds: Option<f64>, now_seconds: f64) -> Value {
        match end_seconds {
            None => Value::none(),
            Some(end) if end <= now_seconds => Value::number("ended", end).style(DOUBTFUL),
            Some(end) => Value::number(short_moment(end, now_seconds, self.zone), end),
        }
    }
}

/// For how long a held device is unused.
fn idle(activity: Activity) -> Value {
    let value = match activity {
        Activity::Busy => Value::number("busy", -1.0),
        Activity::UnusedFor(seconds) => Value::number(format_span(seconds), seconds),
        Activity::UnusedForAtLeast(seconds) if seconds >= 1.0 => {
            Value::number(format!(">{}", format_span(seconds)), seconds)
        }
        Activity::UnusedForAtLeast(_) | Activity::Unknown => Value::unknown(),
    };
    if activity.is_idle() { value.style(DOUBTFUL) } else { value }
}

/// `2`, `2+?` where there may be more, or `?`.
fn count(count: Count) -> Value {
    let mut value = count.at_least().map_or_else(Value::unknown, Value::count);
    if count.more && count.known > 0 {
        value.text.push_str("+?");
    }
    value
}

/// The column that only several hosts need.
const HOST: &str = "HOST";

fn percent(ratio: Option<f64>) -> Value {
    Value::known(ratio, |ratio| format!("{:.0}%", ratio * 100.0))
}

/// An amount of memory in GiB.
fn amount(bytes: Option<u64>) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "only the order counts")]
    let number = bytes.map(|it| it as f64);
    Value::known(number, |_| gibibytes(bytes.unwrap_or_default()))
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
