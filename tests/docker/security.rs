//! What the containers may do, by the kernel's account of their processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context, Result, ensure};
use genv_tests::docker::{SERVICES, Stack};

use crate::shipped;

/// The pids, on the host, of all processes in a service's container.
pub(crate) fn processes(stack: &Stack, service: &str) -> Result<Vec<u32>> {
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/mnt"));
    let own = namespace(stack.pid(service)?)?;
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_string_lossy().parse();
        // One that ends meanwhile is none of interest, nor is the engine's own that is about to become a health check.
        pids.extend(pid.ok().filter(|pid| {
            namespace(*pid).is_ok_and(|it| it == own)
                && status(*pid).is_ok_and(|status| !status["Name"].starts_with("runc:["))
        }));
    }
    Ok(pids)
}

/// The lines of `/proc/PID/status`, by name.
pub(crate) fn status(pid: u32) -> Result<BTreeMap<String, String>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    Ok(lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
}

/// Asserts that a process has exactly these capabilities, each a bit of linux/capability.h, and can get no others.
pub(crate) fn assert_powers(pid: u32, capabilities: u64) -> Result<()> {
    let status = status(pid)?;
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
fn no_process_is_root_has_any_capability_or_sees_the_host() -> Result<()> {
    let stack = shipped()?;
    let uids = ["65534", "65534", "65534", "65534", "472"];
    for ((service, ..), uid) in SERVICES.into_iter().zip(uids) {
        let pids = processes(stack, service)?;
        ensure!(!pids.is_empty(), "{service} has no process");
        for pid in pids {
            assert_powers(pid, 0)?;
            let uids = &status(pid)?["Uid"];
            ensure!(uids.split_whitespace().all(|it| it == uid), "{service}: {uids}");
        }
        let first = stack.pid(service)?.to_string();
        for namespace in ["pid", "uts", "net", "ipc", "mnt"] {
            let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{namespace}"));
            ensure!(of(&first)? != of("self")?, "{service} shares the host's {namespace}");
        }
    }
    Ok(())
}

#[test]
fn no_service_can_write_but_to_its_volume() -> Result<()> {
    let stack = shipped()?;
    for (service, ..) in SERVICES {
        for folder in ["", "/etc", "/usr", "/var", "/bin"] {
            // The images of Prometheus have no /usr of their own.
            let exists = stack.attempt(&["exec", "-T", service, "ls", &format!("{folder}/")])?;
            if exists.status.success() {
                assert_read_only(stack, service, folder)?;
            }
        }
    }
    for (service, folder) in [
        ("enforcer", "/etc/genv"),
        ("prometheus", "/etc/prometheus"),
        ("alertmanager", "/etc/alertmanager"),
        ("grafana", "/etc/grafana/genv"),
        ("grafana", "/etc/grafana/provisioning/dashboards"),
        ("grafana", "/etc/grafana/provisioning/datasources"),
    ] {
        assert_read_only(stack, service, folder)?;
    }
    Ok(())
}

/// Addresses on which anything of this machine listens: TCP sockets in the state LISTEN (0A).
fn listening() -> Result<BTreeSet<SocketAddrV4>> {
    let six = fs::read_to_string("/proc/net/tcp6")?;
    let other = six.lines().skip(1).find(|line| line.split_whitespace().nth(3) == Some("0A"));
    ensure!(other.is_none(), "something listens on IPv6: {other:?}");
    let mut found = BTreeSet::new();
    for line in fs::read_to_string("/proc/net/tcp")?.lines().skip(1) {
        let fields: Vec<_> = line.split_whitespace().collect();
        if fields[3] == "0A" {
            let (address, port) = fields[1].split_once(':').context("no port")?;
            // In the order of this machine's bytes.
            let address = Ipv4Addr::from(u32::from_str_radix(address, 16)?.to_ne_bytes());
            found.insert(SocketAddrV4::new(address, u16::from_str_radix(port, 16)?));
        }
    }
    Ok(found)
}

#[test]
fn ports_are_open_on_loopback_alone() -> Result<()> {
    shipped()?;
    let found = listening()?;
    for (_, port, _) in SERVICES {
        ensure!(found.contains(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)), "{port}: {found:?}");
    }
    // Of this and of all other stacks that tests have up now.
    let beyond: Vec<_> = found.iter().filter(|address| !address.ip().is_loopback()).collect();
    ensure!(beyond.is_empty(), "{beyond:?}");
    Ok(())
}
