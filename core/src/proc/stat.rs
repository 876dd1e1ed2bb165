//! `/proc/PID/stat`, the users in `/proc/PID/status`, and the boot time in `/proc/stat`.

use super::UserNamespace;

/// `PF_KTHREAD` of the kernel's `include/linux/sched.h`.
const PF_KTHREAD: u64 = 0x0020_0000;

/// The used fields of `/proc/PID/stat` (proc_pid_stat(5)).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stat<'a> {
    /// Field 2 as the kernel has it: any bytes but NUL, parentheses and newlines included.
    pub(super) comm: &'a [u8],
    /// Field 3.
    pub(super) state: u8,
    /// Field 4.
    pub(super) parent: u32,
    /// Field 9: `PF_` flags of the kernel.
    pub(super) flags: u64,
    /// Field 20.
    pub(super) threads: u64,
    /// Field 22.
    pub(super) start_time_ticks: u64,
}

impl<'a> Stat<'a> {
    /// Parses the file; `None` if it is cut off or has another form.
    pub(super) fn parse(content: &'a [u8]) -> Option<Self> {
        // The last parenthesis is the kernel's: a process may have parentheses in its name.
        let open = content.iter().position(|&byte| byte == b'(')?;
        let close = content.iter().rposition(|&byte| byte == b')')?;
        let comm = content.get(open + 1..close)?;
        let mut fields = content.get(close + 1..)?.trim_ascii().split(|&byte| byte == b' ');
        Some(Self {
            comm,
            state: *fields.next()?.first()?,
            parent: number(fields.next()?)?.try_into().ok()?,
            // Fields 5 to 8 lie between the parent and the flags, 10 to 19 before the threads, 21 before the start
            // time.
            flags: number(fields.nth(4)?)?,
            threads: number(fields.nth(10)?)?,
            start_time_ticks: number(fields.nth(1)?)?,
        })
    }

    /// Whether the first thread has ended: it has no environ, and waits for its parent.
    pub(super) const fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// Whether all threads have ended. If only the first has ended, the others run on.
    pub(super) const fn has_ended(&self) -> bool {
        self.is_zombie() && self.threads <= 1
    }

    /// Whether it is a thread of the kernel, which has no program and no user.
    pub(super) const fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    /// Whether the process is stopped until SIGCONT. A process under a debugger does not count as stopped.
    pub(super) const fn is_stopped(&self) -> bool {
        self.state == b'T'
    }
}

/// The users that a process runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uids {
    pub(super) real: u32,
    pub(super) effective: u32,
}

impl Uids {
    /// The users as uids of the machine; `None` if one is not mapped.
    pub(super) fn translated(self, namespace: &UserNamespace) -> Option<Self> {
        Some(Self { real: namespace.user(self.real)?, effective: namespace.user(self.effective)? })
    }
}

/// The first two numbers of the line `Uid:` of `/proc/PID/status` (proc_pid_status(5)).
pub(super) fn uids(content: &[u8]) -> Option<Uids> {
    let mut numbers = line(content, b"Uid:")?
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|number| !number.is_empty())
        .map(|digits| number(digits)?.try_into().ok());
    Some(Uids { real: numbers.next()??, effective: numbers.next()?? })
}

/// The pid of a process in its own namespace, if that is below this one: the last number of the line `NSpid:` of
/// `/proc/PID/status`.
pub(super) fn inner_pid(content: &[u8]) -> Option<u32> {
    let numbers = line(content, b"NSpid:")?.trim_ascii();
    let last = numbers.rsplit(|byte| byte.is_ascii_whitespace()).next()?;
    number(last)?.try_into().ok().filter(|_| last.len() < numbers.len())
}

/// The boot time, Unix seconds: the line `btime` of `/proc/stat` (proc_stat(5)).
pub(super) fn boot_time_seconds(content: &[u8]) -> Option<u64> {
    number(line(content, b"btime ")?.trim_ascii())
}

fn line<'a>(content: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    content.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stat(comm: &[u8]) -> Vec<u8> {
        let tail = b") S 41 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 1000 200 18446744073709551615\n";
        [b"42 (", comm, tail].concat()
    }

    #[test]
    fn names_with_spaces_parentheses_newlines_and_broken_utf8_are_taken_whole() {
        for comm in [&b"python"[..], b"", b"a b", b") S 1 (", b"((()", b"x\ny", b"\xff\xfe", b") Z 1 1 1 1 1"] {
            let content = stat(comm);
            let expected =
                Stat { comm, state: b'S', parent: 41, flags: 4_194_560, threads: 1, start_time_ticks: 123_456 };
            assert_eq!(Stat::parse(&content), Some(expected));
        }
    }

    #[test]
    fn a_cut_off_stat_is_none() {
        let content = stat(b"python");
        let start = content.windows(6).position(|window| window == b"123456").unwrap();
        for length in 0..start {
            assert_eq!(Stat::parse(&content[..length]), None, "{length}");
        }
        assert_eq!(Stat::parse(b"42 )x( S 1"), None);
        assert_eq!(Stat::parse(b"42 (x) S -1 0 0"), None);
    }

    #[test]
    fn a_kernel_thread_is_known_by_its_flags_and_not_by_its_pid() {
        let kthreadd = b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0\n";
        assert!(Stat::parse(kthreadd).unwrap().is_kernel_thread());
        let in_a_container = b"2 (bash) S 0 2 2 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0\n";
        assert!(!Stat::parse(in_a_container).unwrap().is_kernel_thread());
    }

    #[test]
    fn the_real_uid_comes_first_and_the_effective_one_second() {
        let status = b"Name:\tx Uid:\t7\nUmask:\t0022\nUid:\t1000\t1001\t1002\t1003\nGid:\t5\t6\t7\t8\n";
        let expected = Uids { real: 1000, effective: 1001 };
        assert_eq!(uids(status), Some(expected));
        for damaged in [&b"Name:\tx\n"[..], b"Uid:\t1\n", b"Uid:\t1\t-1\t1\t1\n", b"Uid:\tx\t1\t1\t1\n"] {
            assert_eq!(uids(damaged), None);
        }
    }

    #[test]
    fn the_boot_time_is_found_among_the_other_lines() {
        assert_eq!(boot_time_seconds(b"cpu 1 2 3\nintr 5 0\nbtime 1700000000\nprocesses 7\n"), Some(1_700_000_000));
        assert_eq!(boot_time_seconds(b"cpu 1 2 3\n"), None);
        assert_eq!(boot_time_seconds(b"btime x\n"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_end_the_program(content in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Stat::parse(&content);
            let _ = boot_time_seconds(&content);
        }

        #[test]
        fn any_name_reads_back(comm in proptest::collection::vec(any::<u8>(), 0..16)) {
            let content = stat(&comm);
            prop_assert_eq!(Stat::parse(&content).map(|stat| stat.comm.to_vec()), Some(comm));
        }
    }
}
