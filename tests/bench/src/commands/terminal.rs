//! A terminal of 80 columns whose output is discarded.

use std::fs::File;
use std::io::{copy, sink};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::thread;

use anyhow::Result;
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The end at which programs write. A thread discards the text at the other end.
pub(super) struct Terminal(OwnedFd);

impl Terminal {
    pub(super) fn open() -> Result<Self> {
        let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&control)?;
        unlockpt(&control)?;
        let path = ptsname(&control, Vec::new())?;
        let programs = open(path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())?;
        tcsetwinsize(&programs, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 })?;
        // Ends with an error when the last program has closed its end.
        thread::spawn(move || copy(&mut File::from(control), &mut sink()));
        Ok(Self(programs))
    }

    /// The output of a program.
    ///
    /// # Panics
    /// If this program has too many open files.
    pub(super) fn stdio(&self) -> Stdio {
        let end = self.0.try_clone();
        end.expect("this program has few open files").into()
    }
}
