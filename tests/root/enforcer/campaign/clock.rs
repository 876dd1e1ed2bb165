//! The wall clock of the daemon, which a campaign turns.
//!
//! libfaketime reads the daemon's time of day from a file. Times of files and processes, which the kernel sets, and the
//! monotonic clocks stay as they are.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use genv_tests::enforcer::Setup;

/// By how much the clock is turned: hours, days, years; before 1970, and beyond what a state file can hold.
pub(super) const TURNS: [&str; 12] =
    ["+0", "+61", "-61", "+3h", "-3h", "+14h", "-2d", "+8d", "+3y", "-40y", "-60y", "+8000y"];

/// The file that turns it.
#[derive(Debug)]
pub(super) struct WallClock(PathBuf);

impl WallClock {
    /// Gives an enforcer such a clock.
    pub(super) fn of(setup: Setup) -> Result<(Setup, Self)> {
        let clock = Self(setup.folder().join("clock"));
        clock.turn("+0")?;
        let path = clock.0.to_string_lossy().into_owned();
        let setup = setup
            .env("LD_PRELOAD", &library()?.to_string_lossy())
            .env("FAKETIME_TIMESTAMP_FILE", &path)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1");
        Ok((setup, clock))
    }

    /// Turns it by so much from what it truly is.
    pub(super) fn turn(&self, by: &str) -> Result<()> {
        let new = self.0.with_extension("new");
        fs::write(&new, by)?;
        Ok(fs::rename(new, &self.0)?)
    }
}

fn library() -> Result<PathBuf> {
    let folders = fs::read_dir("/usr/lib")?.flatten();
    let mut libraries = folders.map(|it| it.path().join("faketime/libfaketimeMT.so.1"));
    let found = libraries.find(|it: &PathBuf| Path::exists(it));
    found.context("libfaketimeMT.so.1 is missing: install the Debian package faketime")
}
