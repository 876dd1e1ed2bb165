//! What the watchdog of a service manager hears: beats while cycles go on, and none when one hangs.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _, pipe};
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use genv_tests::enforcer::{Setup, ends_outsiders, sleeper};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::{PATIENCE, until};
use genv_tests::process::Running;
use rustix::fs::{FlockOperation, flock};
use rustix::io::ioctl_fionread;

use crate::run::taking_both;

const WATCHDOG: Duration = Duration::from_secs(2);

struct Manager(UnixDatagram);

impl Manager {
    fn of(setup: Setup) -> Result<(Self, Setup)> {
        let path = setup.folder().join("manager");
        let socket = UnixDatagram::bind(&path)?;
        let setup = setup
            .env("NOTIFY_SOCKET", &path.display().to_string())
            .env("WATCHDOG_USEC", &WATCHDOG.as_micros().to_string());
        Ok((Self(socket), setup))
    }

    fn next(&self, patience: Duration) -> Result<Option<String>> {
        self.0.set_read_timeout(Some(patience))?;
        let mut message = [0; 4096];
        let received = loop {
            match self.0.recv(&mut message) {
                // A signal, as another test's child sends one when it ends.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break received,
            }
        };
        match received {
            Ok(length) => Ok(Some(String::from_utf8(message[..length].to_vec())?)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn hears(&self, what: &str, mut times: usize) -> Result<()> {
        while self.next(Duration::from_millis(1))?.is_some() {}
        while times > 0 {
            let Some(message) = self.next(PATIENCE)? else {
                bail!("waited in vain for {what}");
            };
            times -= usize::from(message.starts_with(what));
        }
        Ok(())
    }

    /// Waits until beats fail to come for as long as the manager waits.
    fn hears_nothing(&self) -> Result<()> {
        let (given_up, mut last) = (Instant::now() + PATIENCE, Instant::now());
        while last.elapsed() < WATCHDOG {
            let message = self.next(WATCHDOG.saturating_sub(last.elapsed()).max(Duration::from_millis(1)))?;
            if message.is_some_and(|it| it.starts_with("WATCHDOG=1")) {
                last = Instant::now();
            }
            ensure!(Instant::now() < given_up, "it beats all the same");
        }
        Ok(())
    }
}

/// Beats that take longer than a step and the watchdog's time together.
const MANY: usize = 9;

#[test]
fn a_driver_that_hangs_and_a_held_lock_let_the_watchdog_be_fed() -> Result<()> {
    let (setup, _member) = taking_both("")?;
    let genv = setup.genv_directory();
    let lock = File::create(genv.join("genv.lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let (manager, setup) = Manager::of(setup)?;
    let enforcer = setup.start()?;
    enforcer.wait_for_status("the lock is held", |status| {
        status["faults"].to_string().contains("holds the lock of genv's state")
    })?;
    manager.hears("WATCHDOG=1", MANY)?;
    enforcer.setup().rewrite_scenario(&format!("{}  faults: [{{hang: all}}]\n", used_by(&[])))?;
    enforcer.wait_for_status("it is blind", |status| status["blind"][0]["source"] == "gpu")?;
    manager.hears("WATCHDOG=1", MANY)
}

#[test]
fn a_cycle_that_hangs_feeds_the_watchdog_no_more() -> Result<()> {
    let process = sleeper(&[])?;
    let (manager, setup) = Manager::of(Setup::new(&used_by(&[]), &ends_outsiders("dry-run", "for: 0s, warn: []"))?)?;
    // The log goes into a pipe, which can be filled.
    let (mut reader, mut writer) = pipe()?;
    let (config, listen) = (setup.config_flag(), "--web.listen-address=127.0.0.1:0");
    let mut command = setup.command(&["run", "--interval=100ms", "--gpu.source=simulated", listen, &config])?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::from(writer.try_clone()?));
    let _enforcer = Running::spawn(&mut command)?;
    drop(command);
    manager.hears("WATCHDOG=1", MANY)?;
    thread::spawn(move || writer.write_all(&vec![b'\n'; 1 << 20]));
    until("the pipe is full", || Ok(ioctl_fionread(&reader)? > 60_000))?;
    setup.rewrite_scenario(&used_by(&[process.pid()]))?;
    manager.hears_nothing()?;
    // The log goes on, and so do cycles.
    thread::spawn(move || {
        let mut taken = [0; 1 << 16];
        while reader.read(&mut taken).is_ok_and(|length| length > 0) {}
    });
    manager.hears("WATCHDOG=1", 2)
}
