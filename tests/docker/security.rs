//! What the containers may do, by the kernel's account of their processes.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Result, ensure};
use genv_tests::docker::{SERVICES, Stack};

use crate::shipped;

/// The lines of `/proc/PID/status`, by their names.
type Status = BTreeMap<String, String>;

/// The processes of a service. Each is read once: a health check may end at any moment.
pub(crate) fn processes(stack: &Stack, service: &str) -> Result<Vec<Status>> {
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/mnt"));
    let own = namespace(stack.pid(service)?)?;
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_string_lossy().parse();
        let pid = pid.ok().filter(|pid| namespace(*pid).is_ok_and(|it| it == own));
        // The engine's own process that is about to become a health check is none of interest.
        let status = pid.and_then(|pid| status(pid).ok());
        processes.extend(status.filter(|status| !status["Name"].starts_with("runc:[")));
    }
    Ok(processes)
}

fn status(pid: u32) -> Result<Status> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    Ok(lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
}

/// Asserts that a process has exactly these capabilities, each a bit of linux/capability.h, and can get no others.
pub(crate) fn assert_powers(status: &Status, capabilities: u64) -> Result<()> {
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        let found = u64::from_str_radix(&status[set], 16)?;
        assert_eq!(found, capabilities, "{set} of {}", status["Name"]);
    }
    for (name, value) in
        [("CapInh", "0000000000000000"), ("CapAmb", "0000000000000000"), ("NoNewPrivs", "1"), ("Seccomp", "2")]
    {
        assert_eq!(status[name], value, "{name} of {}", status["Name"]);
    }
    Ok(())
}

/// Asserts that not even root of a service's container can write to a folder.
pub(crate) fn assert_read_only(stack: &Stack, service: &str, folder: &str) -> Result<()> {
    let file = format!("{folder}/genv-test");
    let output = stack.attempt(&["exec", "-T", "--user=0", service, "touch", &file])?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(!output.status.success() && said.contains("Read-only file system"), "{service}: {folder}: {said}");
    Ok(())
}

#[test]
fn no_process_is_root_has_any_capability_writes_to_its_root_or_sees_the_host() -> Result<()> {
    let stack = shipped()?;
    let uids = ["65534", "65534", "65534", "65534", "472"];
    for ((service, ..), uid) in SERVICES.into_iter().zip(uids) {
        let processes = processes(stack, service)?;
        ensure!(!processes.is_empty(), "{service} has no process");
        for process in processes {
            assert_powers(&process, 0)?;
            let uids = &process["Uid"];
            ensure!(uids.split_whitespace().all(|it| it == uid), "{service}: {uids}");
        }
        assert_read_only(stack, service, "")?;
        let first = stack.pid(service)?.to_string();
        for namespace in ["pid", "uts", "net", "ipc", "mnt"] {
            let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{namespace}"));
            ensure!(of(&first)? != of("self")?, "{service} shares the host's {namespace}");
        }
    }
    Ok(())
}
