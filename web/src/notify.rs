//! Messages to the service manager, as sd_notify(3) defines them, by `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
//! `NOTIFY_SOCKET` is a path or, with a leading `@`, an abstract address of unix(7).

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Once;
use std::time::Duration;

pub use sd_notify::NotifyState;

/// Sends messages to the service manager that started this program, if one did. A message that cannot be sent is dropped:
/// the watchdog of the service manager notices a program that falls silent. The first failure is logged as a warning.
pub fn notify(messages: &[NotifyState<'_>]) {
    static WARNED: Once = Once::new();
    let socket = env::var_os("NOTIFY_SOCKET").unwrap_or_default();
    if let Err(error) = send(&socket, messages) {
        WARNED.call_once(|| {
            let socket = socket.display();
            tracing::warn!(%error, %socket, "the service manager cannot be notified: it may take this program for one that hangs");
        });
    }
}

/// Sends messages to the service manager. `socket` is the value of `NOTIFY_SOCKET`, which `sd_notify` reads itself.
fn send(socket: &OsStr, messages: &[NotifyState<'_>]) -> io::Result<()> {
    match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => send_to_abstract(name, messages),
        None => sd_notify::notify(messages),
    }
}

/// Sends messages to an abstract address, which `sd_notify` takes for a file.
fn send_to_abstract(name: &[u8], messages: &[NotifyState<'_>]) -> io::Result<()> {
    let mut text = String::new();
    for message in messages {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{message}");
    }
    let address = SocketAddr::from_abstract_name(name)?;
    let sender = UnixDatagram::unbound()?;
    // A full queue is a message that cannot be sent.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(text.as_bytes(), &address).map(drop)
}

/// The time within which the service manager expects [`NotifyState::Watchdog`]; absent without a watchdog for this process.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|time| !time.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abstract_address_gets_the_messages_in_one_datagram() {
        let name = format!("genv-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let receiver = UnixDatagram::bind_addr(&address).unwrap();
        let socket = format!("@{name}");
        send(OsStr::new(&socket), &[NotifyState::Ready, NotifyState::Status("2 devices")]).unwrap();
        let mut received = [0; 64];
        let length = receiver.recv(&mut received).unwrap();
        assert_eq!(&received[..length], b"READY=1\nSTATUS=2 devices\n");
        drop(receiver);
        assert!(send(OsStr::new(&socket), &[NotifyState::Watchdog]).is_err());
    }
}
