//! The claim in the environ of a process.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use rustix::io::Errno;

use super::files::{self, Content};
use super::hanging::read_environs;
use super::{Claim, MissingEvidence};

/// The variable that names the environment of a process.
const VARIABLE: &[u8] = b"GENV_ENVIRONMENT_ID=";

/// The claims of a process, by the environment variables with which its program was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The environment that it names.
    pub eid: Option<String>,
    /// The GPUs of its `CUDA_VISIBLE_DEVICES`, by index.
    pub gpus: BTreeSet<u32>,
}

impl Named {
    /// Reads `/proc/PID/environ`. An ended or unreadable process has no claims. `None` if the environ cannot be read in
    /// time.
    pub fn by(pid: u32) -> Option<Self> {
        let named = |_, environ: Result<&[u8], Errno>| environ.map(Self::of).unwrap_or_default();
        read_environs(vec![pid], named).remove(&pid)
    }

    fn of(environ: &[u8]) -> Self {
        let value = |name| variable(environ, name).map(String::from_utf8_lossy);
        let visible = value(b"CUDA_VISIBLE_DEVICES=").unwrap_or_default();
        let indices = visible.split(',');
        Self {
            eid: value(VARIABLE).map(std::borrow::Cow::into_owned),
            gpus: indices.filter_map(|it| it.trim().parse().ok()).collect(),
        }
    }
}

/// Room for the environ of most processes.
pub(super) fn buffer() -> Vec<u8> {
    vec![0; 16 * 1024]
}

/// Reads the environ of a process into a [`buffer`], as [`read_from_directory`].
pub(super) fn read_environ(pid: u32, buffer: &mut Vec<u8>) -> Result<&[u8], Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty())?;
    let (_, environ) = read_from_directory(directory.as_fd(), buffer)?;
    Ok(environ.content)
}

/// Opens and reads the environ in the `/proc` directory of a process (proc_pid_environ(5)). If the first thread has
/// ended, reads the environ of another thread. An ended process has no environ; the environ of a kernel thread is
/// empty.
pub(super) fn read_from_directory<'a>(
    directory: BorrowedFd<'_>,
    buffer: &'a mut Vec<u8>,
) -> Result<(OwnedFd, Content<'a>), Errno> {
    let mut read = |path: String| {
        let file = files::open(directory, path)?;
        let Content { content, whole } = files::read_from(&file, buffer)?;
        Ok((file, content.len(), whole))
    };
    let is_missing =
        |read: &Result<(OwnedFd, usize, bool), Errno>| matches!(read, Ok((_, 0, _)) | Err(Errno::NOENT | Errno::SRCH));
    let mut found = read("environ".to_owned());
    // The kernel shows two links of `task`, and one for each thread. All threads of the kernel come here.
    let task = || statat(directory, c"task", AtFlags::empty());
    if is_missing(&found) && task().is_ok_and(|it| it.st_nlink != 3) {
        let threads = files::threads(directory, c"task").unwrap_or_default();
        let mut others = threads.iter().map(|it| read(format!("task/{it}/environ")));
        let other = others.find(|it| !is_missing(it));
        found = other.unwrap_or(found);
    }
    let (file, length, whole) = found?;
    let content = &buffer[..length];
    Ok((file, Content { content, whole }))
}

/// The claim that a whole, non-empty `/proc/PID/environ` makes (proc_pid_environ(5)).
///
/// As for getenv(3), the first entry counts. Without such an entry, the claim is absent only if the whole content has
/// the form of an environ: a program that writes its title over its environ, as setproctitle does, leaves text without
/// `=`, or zeros.
pub(super) fn claim(environ: &[u8]) -> Claim {
    let mut rest = environ;
    let mut well_formed = true;
    while !rest.is_empty() {
        let Ok(entry) = CStr::from_bytes_until_nul(rest) else {
            // The kernel ends every entry with a NUL.
            well_formed = false;
            break;
        };
        let entry = entry.to_bytes();
        if let Some(eid) = entry.strip_prefix(VARIABLE) {
            return Claim::Named(String::from_utf8_lossy(eid).into_owned());
        }
        well_formed &= entry.first().is_some_and(|&byte| byte != b'=') && entry.contains(&b'=');
        rest = &rest[entry.len() + 1..];
    }
    if well_formed { Claim::Absent } else { Claim::Missing(MissingEvidence::EnvironOverwritten) }
}

/// The value of a variable, named with its `=`; as for getenv(3), the first entry counts.
pub(crate) fn variable<'a>(environ: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut entries = environ.split(|&byte| byte == 0);
    entries.find_map(|entry| entry.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_entry_counts() {
        let named = |eid: &str| Claim::Named(eid.to_owned());
        for (environ, expected) in [
            (&b"A=1\0GENV_ENVIRONMENT_ID=7\0B=2\0"[..], named("7")),
            (b"GENV_ENVIRONMENT_ID=7\0GENV_ENVIRONMENT_ID=8\0", named("7")),
            (b"GENV_ENVIRONMENT_ID=\0", named("")),
            (b"GENV_ENVIRONMENT_ID=a=b c\0", named("a=b c")),
            (b"GENV_ENVIRONMENT_ID=\xff\0", named("\u{fffd}")),
            (b"\xff=\xfe\0GENV_ENVIRONMENT_ID=7\0", named("7")),
            // An entry behind a title is still an entry of the process.
            (b"my title\0\0\0GENV_ENVIRONMENT_ID=7\0", named("7")),
        ] {
            assert_eq!(claim(environ), expected);
        }
    }

    #[test]
    fn a_whole_environ_without_the_variable_makes_no_claim() {
        for environ in [
            &b"A=\0"[..],
            b"PATH=/bin\0\xff=\xfe\0BASH_FUNC_x%%=() { :; }\0",
            b"XGENV_ENVIRONMENT_ID=7\0GENV_ENVIRONMENT_ID2=7\0",
            b"A=GENV_ENVIRONMENT_ID=7\0",
        ] {
            assert_eq!(claim(environ), Claim::Absent);
        }
    }

    #[test]
    fn an_environ_that_a_title_overwrote_makes_no_claim() {
        for environ in [
            &b"\0"[..],
            b"\0\0\0\0",
            b"ray::IDLE",
            b"ray::IDLE\0",
            b"ray::IDLE\0\0\0",
            b"ray::IDLE\0A=1\0",
            b"A=1\0\0",
            b"A=1\0B=2",
            b"A=1\0GENV_ENVIRONMENT_ID=7",
            b"=x\0",
            b"GENV_ENVIRONMENT_ID\0",
        ] {
            assert_eq!(claim(environ), Claim::Missing(MissingEvidence::EnvironOverwritten));
        }
    }

    proptest! {
        #[test]
        fn a_claim_among_any_other_entries_is_found(
            before in proptest::collection::vec("[A-F_]{1,8}=[^\0]{0,20}", 0..5),
            eid in "[^\0]{0,20}",
        ) {
            let mut environ: Vec<u8> = before.iter().flat_map(|entry| [entry.as_bytes(), b"\0"].concat()).collect();
            prop_assert_eq!(claim(&environ), Claim::Absent);
            environ.extend_from_slice(format!("GENV_ENVIRONMENT_ID={eid}\0").as_bytes());
            prop_assert_eq!(claim(&environ), Claim::Named(eid));
        }

        #[test]
        fn no_bytes_end_the_program(environ in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = claim(&environ);
        }
    }
}
