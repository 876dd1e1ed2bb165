//! The signals and the status line of a process that waits for devices.

use std::io::{self, Write as _};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use genv_core::outside::{self, OutsideUse};
use genv_core::progress::ProgressLine;
use genv_core::state::RequestedDevices;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use super::status::QueueStatus;
use crate::ago::short_age;
use crate::announce::indices;
use crate::users::Users;
use crate::{lease, shell};

/// The line names at most this many holders of devices.
const MOST_NAMED: usize = 3;

/// Catches signals and shows the status on stderr.
pub(super) struct WaitDisplay {
    signals: Receiver<i32>,
    line: ProgressLine,
    /// Whether a line was printed, and the pids of the blocking processes in the last one.
    printed: Option<Vec<u32>>,
    began: Instant,
    users: Users,
}

impl WaitDisplay {
    pub(super) fn new() -> io::Result<Self> {
        let mut caught = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        if !shell::is_function_waiting() {
            caught.add_signal(SIGTSTP)?;
        }
        let (sender, signals) = channel();
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in caught.forever() {
                if sender.send(signal).is_err() {
                    return;
                }
            }
        })?;
        let line = ProgressLine::on_stderr(true);
        Ok(Self { signals, line, printed: None, began: Instant::now(), users: Users::default() })
    }

    /// Waits for this time, or until a signal.
    pub(super) fn pause(&self, time: Duration) -> Option<i32> {
        self.signals.recv_timeout(time).ok()
    }

    /// Shows the status and the blocking processes. On a terminal a line is updated. Otherwise a line is printed once, and
    /// again if other processes block the attempt.
    pub(super) fn show(&mut self, status: &QueueStatus, uses: &[OutsideUse]) {
        let text = || {
            let waited = short_age(0.0, self.began.elapsed().as_secs_f64());
            let name = |uid: Option<u32>| uid.map_or_else(|| "?".to_owned(), |uid| self.users.name(uid));
            updated_line(status, uses, &waited, name, lease::moment)
        };
        if self.line.show(text) {
            return;
        }
        let pids: Vec<u32> = uses.iter().map(|it| it.pid).collect();
        if self.printed.as_ref().is_some_and(|printed| *printed == pids || pids.is_empty()) {
            return;
        }
        self.printed = Some(pids);
        // An error of stderr cannot be reported.
        let _ = writeln!(io::stderr(), "{}", printed_line(status, uses));
    }

    pub(super) fn clear(&self) {
        self.line.clear();
    }
}

fn printed_line(status: &QueueStatus, uses: &[OutsideUse]) -> String {
    let expected = status.expected.map(|time| format!(", expected at {}", lease::moment(time)));
    let (place, expected, blocking) = (place(status.ahead), expected.unwrap_or_default(), blocking(uses));
    format!("genv: waiting for devices: {place}{expected}{blocking}. Ctrl-C leaves the queue")
}

/// The line on a terminal, which cuts its end: the facts that a user cannot guess come first.
fn updated_line(
    status: &QueueStatus,
    uses: &[OutsideUse],
    waited: &str,
    mut name: impl FnMut(Option<u32>) -> String,
    moment: impl Fn(f64) -> String,
) -> String {
    let expected = status.expected.map(|time| format!(", expected {}", moment(time)));
    let (place, expected, blocking) = (place(status.ahead), expected.unwrap_or_default(), blocking(uses));
    let mut line = format!("genv: waiting {waited}, {place}{expected}{blocking}");
    for holder in status.holders.iter().take(MOST_NAMED) {
        let devices: Vec<String> = holder.devices.iter().map(u32::to_string).collect();
        let since = holder.since.map_or_else(|| "?".to_owned(), &moment);
        line += &format!("; {} has {} since {since}", name(holder.uid), devices.join(","));
    }
    if let Some(more) = status.holders.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
        line += &format!("; {more} more hold others");
    }
    if let Some(requested) = &status.requested {
        line += &format!("; for {}", request(requested));
    }
    line + "; Ctrl-C leaves the queue"
}

fn place(ahead: usize) -> String {
    match ahead {
        0 => "next in the queue".to_owned(),
        1 => "one before you".to_owned(),
        ahead => format!("{ahead} before you"),
    }
}

fn blocking(uses: &[OutsideUse]) -> String {
    match uses {
        [] => String::new(),
        [first] => format!(", device {} waits for {first}", first.gpu),
        [first, rest @ ..] => format!(", device {} waits for {first} and {} more", first.gpu, rest.len()),
    }
}

/// `2 devices of type 'a100' with 4.0 GiB each`
fn request(requested: &RequestedDevices) -> String {
    let devices = match requested.gpus {
        Some(1) => "1 device".to_owned(),
        Some(gpus) => format!("{gpus} devices"),
        None => indices(&requested.named().collect::<Vec<u32>>()),
    };
    let memory = requested.gpu_memory_bytes.map(|bytes| format!(" with {} each", outside::memory(bytes)));
    format!("{devices}{}{}", requested.kind(), memory.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::status::Holder;
    use super::*;

    #[test]
    fn the_line_on_a_terminal_tells_place_time_holders_and_request() {
        let holders = |count: u32| {
            (0..count).map(|it| Holder::of(&it.to_string(), Some(it), &[it, it + 10], Some(f64::from(it)))).collect()
        };
        let count = RequestedDevices { gpus: Some(2), ..RequestedDevices::default() };
        let kind = RequestedDevices {
            gpus: Some(1),
            gpu_types: vec!["a100".to_owned()],
            gpu_memory_bytes: Some(4 << 30),
            ..RequestedDevices::default()
        };
        let index = RequestedDevices { indices: [1, 3].into(), ..RequestedDevices::default() };
        let unknown = vec![Holder::of("?", None, &[2], None)];
        let lines: Vec<String> = [
            QueueStatus::default(),
            QueueStatus { expected: Some(9.0), requested: Some(count.clone()), holders: holders(1), ahead: 0 },
            QueueStatus { requested: Some(kind), holders: holders(3), ahead: 1, expected: None },
            QueueStatus { requested: Some(count), holders: holders(5), ahead: 2, expected: None },
            QueueStatus { requested: Some(index), holders: unknown, ..QueueStatus::default() },
        ]
        .iter()
        .map(|status| {
            let name = |uid: Option<u32>| uid.map_or_else(|| "?".to_owned(), |uid| format!("user{uid}"));
            updated_line(status, &[], "3 min", name, |time| format!("{time}:00"))
        })
        .collect();
        assert_eq!(
            lines,
            [
                "genv: waiting 3 min, next in the queue; Ctrl-C leaves the queue",
                "genv: waiting 3 min, next in the queue, expected 9:00; user0 has 0,10 since 0:00; for 2 devices; \
                 Ctrl-C leaves the queue",
                "genv: waiting 3 min, one before you; user0 has 0,10 since 0:00; user1 has 1,11 since 1:00; \
                 user2 has 2,12 since 2:00; for 1 device of type 'a100' with 4.0 GiB each; Ctrl-C leaves the queue",
                "genv: waiting 3 min, 2 before you; user0 has 0,10 since 0:00; user1 has 1,11 since 1:00; \
                 user2 has 2,12 since 2:00; 2 more hold others; for 2 devices; Ctrl-C leaves the queue",
                "genv: waiting 3 min, next in the queue; ? has 2 since ?; for devices 1, 3; Ctrl-C leaves the queue",
            ]
        );
    }
}
