//! The resources that this process uses, from `/proc/self`.

use std::fs;
use std::sync::LazyLock;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// The values of a process that Prometheus' client libraries export; absent where they cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnProcess {
    /// User and system time: fields 14 and 15 of `/proc/self/stat`.
    pub cpu_seconds: Option<f64>,
    /// Open files, by `/proc/self/fd`.
    pub open_fds: Option<f64>,
    /// Soft limit `RLIMIT_NOFILE`.
    pub max_fds: Option<f64>,
    /// Field 23 of `/proc/self/stat`.
    pub virtual_memory_bytes: Option<f64>,
    /// Field 24 of `/proc/self/stat`, in pages there.
    pub resident_memory_bytes: Option<f64>,
    /// Field 22 of `/proc/self/stat` after `btime` of `/proc/stat`, Unix time.
    pub start_time_seconds: Option<f64>,
    /// Field 20 of `/proc/self/stat`.
    pub threads: Option<f64>,
}

impl OwnProcess {
    /// Reads the current values.
    pub fn read() -> Self {
        // Read once: the kernel generates /proc/stat for each reader, with all interrupts.
        static BOOT: LazyLock<Option<f64>> = LazyLock::new(|| boot_seconds(&fs::read_to_string("/proc/stat").ok()?));
        let stat = fs::read("/proc/self/stat").unwrap_or_default();
        Self {
            open_fds: open_fds(),
            max_fds: getrlimit(Resource::Nofile).current.map(|limit| limit as f64),
            ..Self::from_stat(&String::from_utf8_lossy(&stat), *BOOT)
        }
    }

    /// The values of `/proc/self/stat`. `boot` is the start of the machine in Unix time.
    fn from_stat(own: &str, boot: Option<f64>) -> Self {
        // The command's name is in parentheses and may contain any character; the fields after it are numbered from 3.
        let fields: Vec<&str> =
            own.rsplit_once(')').map(|(_, rest)| rest.split_ascii_whitespace().collect()).unwrap_or_default();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let ticks = clock_ticks_per_second() as f64;
        Self {
            cpu_seconds: field(14).zip(field(15)).map(|(user, system)| (user + system) / ticks),
            virtual_memory_bytes: field(23),
            resident_memory_bytes: field(24).map(|pages| pages * page_size() as f64),
            start_time_seconds: boot.zip(field(22)).map(|(boot, start)| boot + start / ticks),
            threads: field(20),
            ..Self::default()
        }
    }
}

/// The start of the machine in Unix time, by `btime` of `/proc/stat`.
fn boot_seconds(stat: &str) -> Option<f64> {
    let mut lines = stat.lines();
    lines.find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

/// The number of open files: since Linux 6.2 the size of `/proc/self/fd` (proc_pid_fd(5)), before the number of its entries.
fn open_fds() -> Option<f64> {
    const FOLDER: &str = "/proc/self/fd";
    let size = fs::metadata(FOLDER).ok()?.len();
    let number = match size {
        // The listing itself opens one descriptor.
        0 => (fs::read_dir(FOLDER).ok()?.count() as u64).saturating_sub(1),
        size => size,
    };
    Some(number as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_this_process_is_read() {
        let own = OwnProcess::read();
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        assert!(own.cpu_seconds.is_some_and(|seconds| seconds >= 0.0));
        assert!(own.open_fds.is_some_and(|fds| fds >= 3.0));
        let files: Vec<_> = (0..100).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let more = open_fds().zip(own.open_fds).map(|(after, before)| after - before);
        // Other tests open and close files meanwhile.
        assert!(more.is_some_and(|more| (50.0..200.0).contains(&more)), "{more:?}");
        drop(files);
        assert!(own.max_fds >= own.open_fds);
        assert!(own.resident_memory_bytes.is_some_and(|bytes| bytes > 1e5));
        assert!(own.virtual_memory_bytes >= own.resident_memory_bytes);
        assert!(own.start_time_seconds.is_some_and(|start| start > 1e9 && start <= now + 1.0));
        assert!(own.threads.is_some_and(|threads| threads >= 1.0));
    }

    #[test]
    fn a_command_name_with_spaces_and_parentheses_shifts_no_field() {
        let own = OwnProcess::from_stat(
            "7 (a) S 1 (x) R 1 2 3 4 5 6 7 8 9 10 200 100 13 14 15 16 4 18 5000 4096 3 21 22\n",
            boot_seconds("cpu 1 2\nbtime 1000\n"),
        );
        let ticks = clock_ticks_per_second() as f64;
        assert_eq!(own.cpu_seconds, Some(300.0 / ticks));
        assert_eq!(own.threads, Some(4.0));
        assert_eq!(own.start_time_seconds, Some(1000.0 + 5000.0 / ticks));
        assert_eq!(own.virtual_memory_bytes, Some(4096.0));
        assert_eq!(own.resident_memory_bytes, Some(3.0 * page_size() as f64));
    }

    #[test]
    fn unreadable_values_are_absent() {
        assert_eq!(OwnProcess::from_stat("", boot_seconds("")), OwnProcess::default());
    }
}
