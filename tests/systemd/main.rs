//! The units as a real systemd runs them, each test on a machine of its own.

mod enforcer;
mod exporter;
mod jobs;
mod login;
mod notifier;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use genv_tests::machine::{Machine, UNITS, put};
use genv_tests::nvml_sim;
use genv_tests::patience::until;
use genv_tests::tools::build_folder;

/// Of a device that a unit does not allow.
const REFUSED: &str = "Operation not permitted";

/// The simulated library, on a machine.
const LIBRARY: &str = "usr/lib/libnvml_sim.so";

/// Capabilities by their bits: capabilities(7).
const DAC_READ_SEARCH: u64 = 1 << 2;
const KILL: u64 = 1 << 5;
const SYS_PTRACE: u64 = 1 << 19;

/// A machine with genv's programs, units, users and configuration where packages put them.
fn boot() -> Result<Machine> {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    Machine::boot("debian-12-systemd", |layer| {
        for program in ["genv", "genv-enforcer", "genv-exporter"] {
            let to = layer.join("usr/bin").join(program);
            put(&build_folder().join(program), &to)?;
        }
        put(&nvml_sim::library(), &layer.join(LIBRARY))?;
        for (folder, to) in [("systemd", UNITS), ("sysusers.d", "usr/lib/sysusers.d")] {
            for file in fs::read_dir(packaging.join(folder))? {
                let file = file?;
                put(&file.path(), &layer.join(to).join(file.file_name()))?;
            }
        }
        let to = layer.join("etc/genv/enforcer.yaml");
        put(&packaging.join("enforcer.yaml"), &to)
    })
}

fn started(machine: &Machine, unit: &str) -> Result<()> {
    machine.run(&["systemctl", "enable", "--now", unit]).map(drop).with_context(|| machine.log(unit))
}

/// Whether the main process of a service runs as this user, with these capabilities in every set and no way to more, under
/// a filter of system calls.
fn is_confined(machine: &Machine, unit: &str, user: &str, capabilities: u64) -> Result<()> {
    let uid = machine.run(&["id", "--user", user])?;
    let found = confined_uid(machine, machine.main_pid(unit)?, capabilities)?;
    ensure!(uid.trim() == found, "{unit} runs as {found}, not {uid}");
    Ok(())
}

/// The only uid of a process that has these capabilities in every set and no way to more, under a filter of system calls.
fn confined_uid(machine: &Machine, pid: u32, capabilities: u64) -> Result<String> {
    let status = machine.read(&format!("proc/{pid}/status"))?;
    let field = |name: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(name));
        found.map(str::trim).with_context(|| format!("{name} {status}"))
    };
    let uids: Vec<_> = field("Uid:")?.split_whitespace().collect();
    let uid = *uids.first().with_context(|| status.clone())?;
    ensure!(uids == [uid; 4], "{status}");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        let held = u64::from_str_radix(field(set)?, 16)?;
        ensure!(held == capabilities, "{set} {held:x}, not {capabilities:x}");
    }
    ensure!(field("NoNewPrivs:")? == "1" && field("Seccomp:")? == "2", "{status}");
    Ok(uid.to_owned())
}

/// Whether a service reads the driver by a reader, which has its confinement, and ends with it.
fn reads_by_a_confined_reader(machine: &Machine, unit: &str, capabilities: u64) -> Result<()> {
    machine.configure(unit, "driver", &format!("[Service]\nEnvironment=GENV_NVML_LIBRARY=/{LIBRARY}\n"))?;
    machine.run(&["systemctl", "restart", unit])?;
    machine.wait_for_status(unit, |status| status.contains("devices: 2"))?;
    let main = machine.main_pid(unit)?;
    let readers = machine.run(&["sh", "-c", &format!("cat /proc/{main}/task/*/children")])?;
    let reader: u32 =
        readers.trim().parse().with_context(|| format!("one reader: {readers:?} {}", machine.log(unit)))?;
    ensure!(confined_uid(machine, reader, capabilities)? == confined_uid(machine, main, capabilities)?);
    machine.run(&["systemctl", "stop", unit])?;
    until("the reader has ended", || Ok(machine.read(&format!("proc/{reader}/status")).is_err()))?;
    machine.configure(unit, "driver", "")?;
    machine.run(&["systemctl", "start", unit]).map(drop)
}

/// What its unit lets a daemon open, with the driver's devices and without a driver behind them.
fn opens_the_driver_alone(machine: &Machine, unit: &str) -> Result<()> {
    const OF_NO_DRIVER: &str = "No such device or address";
    for (device, outcome) in [
        ("null", ""),
        ("nvidiactl", OF_NO_DRIVER),
        ("nvidia0", OF_NO_DRIVER),
        ("nvidia-cap2", OF_NO_DRIVER),
        ("mem", REFUSED),
        ("kvm", REFUSED),
    ] {
        let found = machine.open_among(unit, &format!("<>/dev/{device}"))?;
        ensure!(found == outcome, "{device}: {found:?}");
    }
    // Where the driver is loaded after the unit has started.
    machine.run(&["umount", "/proc/devices"])?;
    machine.run(&["systemctl", "restart", unit])?;
    let found = machine.open_among(unit, "<>/dev/nvidiactl")?;
    ensure!(found == OF_NO_DRIVER, "nvidiactl: {found:?}");
    Ok(())
}

fn is_watched(machine: &Machine, unit: &str) -> Result<()> {
    machine.configure(unit, "patience", "[Service]\nWatchdogSec=4\nTimeoutAbortSec=1\nRestartSec=100ms\n")?;
    machine.run(&["systemctl", "restart", unit])?;
    let now = || anyhow::Ok((machine.main_pid(unit)?, machine.property(unit, "WatchdogTimestampMonotonic")?));
    let mut last = now()?;
    // A busy machine may keep even one that does not hang from beating in time; then another is looked at.
    until("the same process beats again", || {
        let next = now()?;
        let beats = next.0 == last.0 && next.1 != last.1;
        last = next;
        Ok(beats)
    })
    .with_context(|| machine.log(unit))?;
    let pid = last.0;
    machine.run(&["systemctl", "kill", "--kill-whom=main", "--signal=STOP", unit])?;
    until("it is started again", || {
        let next = machine.main_pid(unit)?;
        let active = machine.property(unit, "ActiveState")?;
        Ok(next != pid && next != 0 && active == "active")
    })
    .with_context(|| machine.log(unit))?;
    let log = machine.log(unit);
    ensure!(log.contains("Watchdog timeout"), "{log}");
    Ok(())
}

/// It ends by SIGTERM as it should, and its socket starts it again.
fn stops_and_is_started_by_its_socket(machine: &Machine, unit: &str, port: u16) -> Result<()> {
    machine.run(&["systemctl", "stop", &format!("{unit}.service")])?;
    for (property, value) in [("ActiveState", "inactive"), ("Result", "success"), ("ExecMainStatus", "0")] {
        let found = machine.property(unit, property)?;
        ensure!(found == value, "{property} {found}: {}", machine.log(unit));
    }
    // The socket is open all the time; whether there is something to scrape yet does not matter.
    let answer = machine.get(port, "/metrics")?;
    ensure!([200, 503].contains(&answer.status), "{answer:?}");
    let state = machine.property(unit, "ActiveState")?;
    ensure!(["active", "activating"].contains(&state.as_str()), "{state}");
    Ok(())
}
