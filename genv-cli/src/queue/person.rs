//! The person who waits for devices: signals, and the line that shows the place in the queue.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use genv_core::outside::OutsideUse;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use super::Standing;
use crate::{lease, shell};

/// A person who waits, at a terminal or not.
pub(super) struct Person {
    signals: Receiver<i32>,
    /// The standing in the queue, and the processes that the user waits for.
    shown: Option<(Standing, Vec<u32>)>,
    terminal: bool,
}

impl Person {
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

    /// Waits so long, or until a signal comes.
    pub(super) fn pause(&self, time: Duration) -> Option<i32> {
        self.signals.recv_timeout(time).ok()
    }

    /// Shows the place in the queue and the processes that the user waits for. On a terminal the line is kept up to
    /// date. Otherwise the line appears once, and again when other processes hinder the attempt.
    pub(super) fn show(&mut self, standing: Standing, uses: &[OutsideUse]) {
        let pids: Vec<u32> = uses.iter().map(|it| it.pid).collect();
        if let Some((shown_standing, shown)) = &self.shown {
            let is_same = *shown_standing == standing || !self.terminal;
            if is_same && (*shown == pids || pids.is_empty()) {
                return;
            }
        }
        self.shown = Some((standing, pids));
        let place = match standing.ahead {
            0 => "next in the queue".to_owned(),
            1 => "one before you".to_owned(),
            ahead => format!("{ahead} before you"),
        };
        let hinders = match uses {
            [] => String::new(),
            [first] => format!(", device {} waits for {first}", first.gpu),
            [first, rest @ ..] => format!(", device {} waits for {first} and {} more", first.gpu, rest.len()),
        };
        let expected = standing.expected.map(lease::moment);
        let expected = expected.map(|time| format!(", expected at {time}"));
        let expected = expected.unwrap_or_default();
        let (begin, end) = if self.terminal { ("\r\x1b[K", "") } else { ("", "\n") };
        // If printing fails, no reader is left.
        let _ = write!(
            io::stderr(),
            "{begin}genv: waiting for devices: {place}{expected}{hinders}. Ctrl-C leaves the queue{end}"
        );
    }

    pub(super) fn clear(&self) {
        if self.terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        self.clear();
    }
}
