//! The signals and the status line of a process that waits for devices.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use genv_core::outside::OutsideUse;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use super::QueueStatus;
use crate::{lease, shell};

/// Catches signals and shows the status line on stderr.
pub(super) struct WaitDisplay {
    signals: Receiver<i32>,
    /// The last shown status, and the pids of the blocking processes.
    shown: Option<(QueueStatus, Vec<u32>)>,
    terminal: bool,
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
        Ok(Self { signals, shown: None, terminal: io::stderr().is_terminal() })
    }

    /// Waits for this time, or until a signal.
    pub(super) fn pause(&self, time: Duration) -> Option<i32> {
        self.signals.recv_timeout(time).ok()
    }

    /// Shows the position in the queue and the blocking processes. On a terminal the line is updated. Otherwise the line is
    /// printed once, and again if other processes block the attempt.
    pub(super) fn show(&mut self, status: QueueStatus, uses: &[OutsideUse]) {
        let pids: Vec<u32> = uses.iter().map(|it| it.pid).collect();
        if let Some((shown_status, shown)) = &self.shown {
            let is_same = *shown_status == status || !self.terminal;
            if is_same && (*shown == pids || pids.is_empty()) {
                return;
            }
        }
        self.shown = Some((status, pids));
        let position = match status.ahead {
            0 => "next in the queue".to_owned(),
            1 => "one before you".to_owned(),
            ahead => format!("{ahead} before you"),
        };
        let blocking = match uses {
            [] => String::new(),
            [first] => format!(", device {} waits for {first}", first.gpu),
            [first, rest @ ..] => format!(", device {} waits for {first} and {} more", first.gpu, rest.len()),
        };
        let expected = status.expected.map(lease::moment);
        let expected = expected.map(|time| format!(", expected at {time}"));
        let expected = expected.unwrap_or_default();
        let (begin, end) = if self.terminal { ("\r\x1b[K", "") } else { ("", "\n") };
        // An error of stderr cannot be reported.
        let _ = write!(
            io::stderr(),
            "{begin}genv: waiting for devices: {position}{expected}{blocking}. Ctrl-C leaves the queue{end}"
        );
    }

    pub(super) fn clear(&self) {
        if self.terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for WaitDisplay {
    fn drop(&mut self) {
        self.clear();
    }
}
