//! The rest of the machine: its clock, what may be seen of processes, its exporter.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use genv_core::state::State;
use rustix::process::geteuid;

use super::Check;
use crate::ago::now_seconds;

/// Where genv-exporter listens unless it is told otherwise.
const EXPORTER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9820);

/// How long the exporter may take to say that it is well.
const EXPORTER_PATIENCE: Duration = Duration::from_millis(500);

/// How far a time of the files may be ahead: they have whole seconds.
const TOLERANCE_SECONDS: f64 = 2.0;

/// Whether anything happened in the future.
pub(super) fn clock(state: &State) -> Check {
    const NAME: &str = "clock";
    let environments = state.environments.iter();
    let created = environments.filter_map(|it| it.created_timestamp_seconds);
    let attachments = state.devices.iter().flat_map(|it| &it.attachments);
    let attached = attachments.filter_map(|it| it.attached_timestamp_seconds);
    let times = created
        .chain(attached)
        .chain(state.written_timestamp_seconds);
    let latest = times.fold(0.0, f64::max);
    let ahead_seconds = latest - now_seconds();
    if ahead_seconds > TOLERANCE_SECONDS {
        return Check::warn(
            NAME,
            format!("the state has a time that is {ahead_seconds:.0} s ahead"),
            "see whether the clock was set back, and whether all users have the time zone of the machine (TZ)",
        );
    }
    Check::ok(NAME, "nothing in the state lies in the future")
}

/// Whether processes of others can be told apart by their environments.
pub(super) fn processes() -> Check {
    const NAME: &str = "processes";
    // The first process belongs to root, and exists in every pid namespace.
    if let Err(error) = File::open("/proc/1/stat") {
        return Check::warn(
            NAME,
            format!("those of others are hidden: {error}"),
            "run what watches all users as root, or in the group that the mount of /proc names (hidepid)",
        );
    }
    let mut byte = [0];
    let environ = File::open("/proc/1/environ").and_then(|mut file| file.read(&mut byte));
    match environ {
        Ok(_) => Check::ok(NAME, "environ of everybody's can be read"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied && !geteuid().is_root() => {
            Check::ok(
                NAME,
                "environ can be read of your own; others' are told by their parents, or by genv-exporter as root",
            )
        }
        Err(error) => Check::warn(
            NAME,
            format!("environ of others' cannot be read: {error}"),
            "give the capabilities CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH to what watches all users",
        ),
    }
}

/// Whether the exporter is well.
pub(super) fn exporter() -> Check {
    const NAME: &str = "exporter";
    let answer = TcpStream::connect_timeout(&EXPORTER, EXPORTER_PATIENCE).and_then(|mut stream| {
        stream.set_read_timeout(Some(EXPORTER_PATIENCE))?;
        stream.write_all(b"GET /-/healthy HTTP/1.0\r\n\r\n")?;
        let mut status = [0; 12];
        stream.read_exact(&mut status)?;
        Ok(String::from_utf8_lossy(&status).into_owned())
    });
    match answer {
        Ok(status) if status.ends_with(" 200") => {
            Check::ok(NAME, format!("it is well on {EXPORTER}"))
        }
        Ok(status) => Check::warn(
            NAME,
            format!(
                "{EXPORTER} answers {}",
                crate::output::harmless(status.trim())
            ),
            "see its log; with TLS it is not asked from here",
        ),
        Err(error) => Check::warn(
            NAME,
            format!("nothing answers on {EXPORTER}: {error}"),
            "start genv-exporter if this machine is to be watched",
        ),
    }
}
