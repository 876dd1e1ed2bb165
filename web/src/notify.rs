//! Telling the service manager how it goes: sd_notify(3).

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

/// The service manager that started this program, or nobody.
#[derive(Debug)]
pub struct Notify {
    manager: Option<(UnixDatagram, SocketAddr)>,
    /// How long the manager waits for a beat.
    watchdog: Option<Duration>,
}

impl Notify {
    /// The manager that `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` tell of.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::from(|name| std::env::var_os(name))
    }

    fn from(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let manager = variable("NOTIFY_SOCKET")
            .and_then(|path| address(&path))
            .and_then(|address| Some((UnixDatagram::unbound().ok()?, address)));
        let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
        let for_another = number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|it| *it > 0 && !for_another);
        Self { manager, watchdog: watchdog.map(Duration::from_micros) }
    }

    /// It has done what a start is for.
    pub fn ready(&self) {
        self.send("READY=1");
    }

    /// What it does, in a line.
    pub fn status(&self, text: &str) {
        self.send(&format!("STATUS={}", genv_core::text::harmless(text)));
    }

    /// It ends.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// It reads its configuration again; [`Notify::ready`] follows. `moment` is CLOCK_MONOTONIC.
    pub fn reloading(&self, moment: Duration) {
        let microseconds = moment.as_micros();
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"));
    }

    /// How long the manager waits for the next [`Notify::alive`]; absent if it does not.
    #[must_use]
    pub const fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// It does not hang.
    pub fn alive(&self) {
        if self.watchdog.is_some() {
            self.send("WATCHDOG=1");
        }
    }

    fn send(&self, state: &str) {
        if let Some((socket, manager)) = &self.manager {
            // Nobody is left to tell.
            let _ = socket.send_to_addr(state.as_bytes(), manager);
        }
    }
}

/// A path, or a name in the abstract namespace, which begins with `@`.
fn address(path: &OsStr) -> Option<SocketAddr> {
    match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        _ => SocketAddr::from_pathname(path).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 1024];
        socket.set_nonblocking(true).unwrap();
        let length = socket.recv(&mut buffer).unwrap_or(0);
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn the_manager_is_told_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("genv-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (manager, at) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), OsString::from(format!("@{name}"))),
        ] {
            let notify = Notify::from(|variable| (variable == "NOTIFY_SOCKET").then(|| at.clone()));
            notify.ready();
            assert_eq!(received(&manager), "READY=1");
            notify.status("2 violations\nWATCHDOG=1");
            assert_eq!(received(&manager), "STATUS=2 violations\\nWATCHDOG=1");
            notify.reloading(Duration::from_millis(5));
            assert_eq!(received(&manager), "RELOADING=1\nMONOTONIC_USEC=5000");
            notify.alive();
            assert_eq!(received(&manager), "", "nobody asked for a watchdog");
        }
    }

    #[test]
    fn a_watchdog_beats_for_the_process_that_it_is_for() {
        let with_pid = |pid: u32| {
            Notify::from(|name| match name {
                "WATCHDOG_USEC" => Some("1000".into()),
                "WATCHDOG_PID" => Some(pid.to_string().into()),
                _ => None,
            })
        };
        assert!(with_pid(std::process::id()).watchdog.is_some());
        assert!(with_pid(1).watchdog.is_none());
        // Without a manager nothing happens.
        with_pid(1).ready();
    }
}
