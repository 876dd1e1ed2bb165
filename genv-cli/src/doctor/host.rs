//! Checks of the clock, the visibility of processes, and the exporter.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use genv_core::proc::may_read_environ;
use genv_core::state::State;
use jiff::tz::TimeZone;
use rustix::process::geteuid;

use super::Check;
use crate::ago::now_seconds;
use crate::exporter::{ADDRESS, PATIENCE};

/// The length of `HTTP/1.1 200`.
const STATUS_BYTES: u64 = 12;

/// The largest number of other users' processes that are tried.
const MOST_TRIED: usize = 64;

/// A smaller difference is rounding: the files have whole seconds.
const TOLERANCE_SECONDS: f64 = 2.0;

/// Checks that the time zone of the machine is known, and that no time in the state is in the future.
pub(super) fn clock(state: &State, zone: &TimeZone) -> Check {
    const NAME: &str = "clock";
    if zone.is_unknown() {
        return Check::warn(
            NAME,
            "the time zone of the machine is unknown: genv shows times in UTC, and takes those of genv 1.x for UTC",
            "let /etc/localtime be the file of a zone ('timedatectl set-timezone ZONE' as root; package tzdata)",
        );
    }
    let environments = state.environments.iter();
    let created = environments.filter_map(|it| it.created_timestamp_seconds);
    let attachments = state.devices.iter().flat_map(|it| &it.attachments);
    let attached = attachments.filter_map(|it| it.attached_timestamp_seconds);
    let times = created.chain(attached).chain(state.written_timestamp_seconds);
    let latest = times.fold(0.0, f64::max);
    let ahead_seconds = latest - now_seconds();
    if ahead_seconds > TOLERANCE_SECONDS {
        return Check::warn(
            NAME,
            format!("the state has a time that is {ahead_seconds:.0} s ahead"),
            "see whether the clock was set back",
        );
    }
    Check::ok(NAME, "no time in the state is in the future")
}

/// Checks whether the environments of other users' processes are visible.
pub(super) fn processes() -> Check {
    let proc = Path::new("/proc");
    let user = geteuid();
    // The first process belongs to root, and exists in every pid namespace.
    let stat = File::open(proc.join("1/stat")).map(drop);
    let environ = environ_of_any(others(proc, user.as_raw()), may_read_environ);
    visibility_check(stat, environ, user.is_root())
}

/// The processes of other users.
fn others(proc: &Path, uid: u32) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        (entry.metadata().ok()?.uid() != uid).then_some(pid)
    })
}

/// Whether environ can be read of one of these processes, or of the first process if there are none. The first process is a
/// weaker test: its environ may be unreadable for root too.
fn environ_of_any(others: impl Iterator<Item = u32>, read: impl Fn(u32) -> io::Result<()>) -> io::Result<()> {
    let mut denied = None;
    for pid in others.take(MOST_TRIED) {
        match read(pid) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => denied = Some(error),
            // The process has ended.
            Err(_) => {}
        }
    }
    denied.map_or_else(|| read(1), Err)
}

/// The check by the results of reading stat of the first process and environ of another user's process.
fn visibility_check(stat: io::Result<()>, environ: io::Result<()>, as_root: bool) -> Check {
    const NAME: &str = "processes";
    if let Err(error) = stat {
        return Check::warn(
            NAME,
            format!("processes of other users are hidden: {error}"),
            "run programs that watch all users as root, or in the group that the mount of /proc names (hidepid)",
        );
    }
    match environ {
        Ok(()) => Check::ok(NAME, "environ of all users' processes can be read"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied && !as_root => Check::ok(
            NAME,
            "environ of your own processes can be read; the environments of others are known by their parents, or by \
                         genv-exporter as root",
        ),
        Err(error) => Check::warn(
            NAME,
            format!("environ of other users' processes cannot be read: {error}"),
            "give the capabilities CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH to programs that watch all users",
        ),
    }
}

/// Checks that the exporter is healthy.
pub(super) fn exporter() -> Check {
    exporter_at(ADDRESS)
}

fn exporter_at(address: SocketAddr) -> Check {
    const NAME: &str = "exporter";
    let answer = TcpStream::connect_timeout(&address, PATIENCE).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /-/healthy HTTP/1.0\r\n\r\n")?;
        let mut status = Vec::new();
        // A server with TLS closes the connection early. That counts as an answer.
        stream.take(STATUS_BYTES).read_to_end(&mut status)?;
        Ok(String::from_utf8_lossy(&status).into_owned())
    });
    match answer {
        Ok(status) if status.ends_with(" 200") => Check::ok(NAME, format!("it is healthy on {address}")),
        Ok(status) => Check::warn(
            NAME,
            format!("{address} answers {}", crate::output::harmless(status.trim())),
            "see its log; this check does not support TLS",
        ),
        Err(error) => Check::warn(
            NAME,
            format!("nothing answers on {address}: {error}"),
            "start genv-exporter if this machine should be monitored",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::doctor::Verdict;

    fn denied() -> io::Result<()> {
        Err(ErrorKind::PermissionDenied.into())
    }

    #[test]
    fn a_machine_without_a_known_time_zone_has_unknown_ages() {
        for (zone, verdict) in [(TimeZone::UTC, Verdict::Ok), (TimeZone::unknown(), Verdict::Warn)] {
            assert_eq!(clock(&State::default(), &zone).verdict, verdict, "{zone:?}");
        }
    }

    #[test]
    fn the_check_of_processes_depends_on_what_can_be_read() {
        for (stat, environ, as_root, verdict, part) in [
            (Ok(()), Ok(()), true, Verdict::Ok, "all users'"),
            (Ok(()), denied(), false, Verdict::Ok, "of your own"),
            // In a container without the capability, or under a security module.
            (Ok(()), denied(), true, Verdict::Warn, "cannot be read"),
            (denied(), denied(), false, Verdict::Warn, "are hidden"),
            (Err(ErrorKind::NotFound.into()), denied(), true, Verdict::Warn, "are hidden"),
        ] {
            let check = visibility_check(stat, environ, as_root);
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert!(check.found.contains(part), "{check:?}");
            assert_eq!(check.remedy.is_some(), verdict != Verdict::Ok, "{check:?}");
        }
    }

    #[test]
    fn one_readable_process_of_another_user_is_enough_and_the_first_process_counts_only_without_others() {
        let gone = || Err(ErrorKind::NotFound.into());
        let read = |pid| match pid {
            7 => Ok(()),
            8 => gone(),
            _ => denied(),
        };
        let is_readable = |others: &[u32]| environ_of_any(others.iter().copied(), read).is_ok();
        assert!(is_readable(&[5, 8, 7]));
        assert!(!is_readable(&[5, 6]));
        assert!(!is_readable(&[8]));
        assert!(environ_of_any([8].into_iter(), |pid| if pid == 1 { Ok(()) } else { gone() }).is_ok());
        assert!(environ_of_any([5].into_iter(), |pid| if pid == 1 { Ok(()) } else { denied() }).is_err());
        assert!(environ_of_any(std::iter::empty(), |_| Ok(())).is_ok());
        assert!(!is_readable(&[[5; MOST_TRIED].as_slice(), &[7]].concat()));
    }

    #[test]
    fn processes_of_other_users_are_found_by_their_owner() {
        let proc = tempfile::tempdir().unwrap();
        for name in ["1", "42", "self", "sys", "42x"] {
            fs::create_dir(proc.path().join(name)).unwrap();
        }
        let owner = fs::metadata(proc.path()).unwrap().uid();
        let pids = |uid| {
            let mut pids: Vec<_> = others(proc.path(), uid).collect();
            pids.sort_unstable();
            pids
        };
        assert!(pids(owner).is_empty());
        assert_eq!(pids(owner + 1), [1, 42]);
    }

    fn answered(answer: &'static [u8]) -> Check {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let program = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 512];
            let length = stream.read(&mut asked).unwrap();
            stream.write_all(answer).unwrap();
            asked[..length].starts_with(b"GET /-/healthy HTTP/1.")
        });
        let check = exporter_at(address);
        assert!(program.join().unwrap());
        check
    }

    #[test]
    fn an_exporter_is_healthy_only_with_the_right_answer() {
        let well = answered(b"HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(well.verdict, Verdict::Ok, "{well:?}");
        for (answer, part) in [
            (&b"HTTP/1.1 503 Service Unavailable\r\n\r\n"[..], "answers HTTP/1.1 503"),
            (b"\x1b[2J\x1b[2J\x1b[2J", "answers \\u{1b}[2J"),
            (b"\x15\x03\x03", "answers \\u{15}\\u{3}\\u{3}"),
        ] {
            let check = answered(answer);
            assert_eq!(check.verdict, Verdict::Warn, "{check:?}");
            assert!(check.found.contains(part), "{check:?}");
            assert!(check.remedy.is_some());
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // A listener that accepts the connection and sends no answer.
        let check = exporter_at(address);
        assert_eq!(check.verdict, Verdict::Warn, "{check:?}");
        drop(listener);
        let check = exporter_at(address);
        assert!(check.found.contains("refused"), "{check:?}");
    }
}
