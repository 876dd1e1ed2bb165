//! The newest snapshot of an exporter on this machine, at its default address.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use genv_core::gpu::{DeviceSample, GpuProcess, GpuSample};
use genv_core::model::{Device, DeviceIndex, Snapshot};
use rustix::process::geteuid;

use crate::ago::now_seconds;

/// The default port of genv-exporter.
const PORT: u16 = 9820;

/// The default address of genv-exporter.
pub(crate) const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);

/// Time limit for each step of a request.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// The largest answer that is read.
const MOST_BYTES: u64 = 64 << 20;

/// The first uid of a person, by the default of login.defs(5).
const FIRST_PERSON: u32 = 1000;

/// The address `::` in `/proc/net/tcp6`.
const IPV6_ANY: &str = "00000000000000000000000000000000";

/// The addresses `::ffff:127.0.0.1` and `::ffff:0.0.0.0` there.
const MAPPED_LOOPBACK: &str = "0000000000000000FFFF00000100007F";
const MAPPED_ANY: &str = "0000000000000000FFFF000000000000";

/// The state of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// The newest sample of this host in [`snapshots`], read at most `max_age_seconds` ago.
pub(crate) fn newest_sample(hostname: &str, max_age_seconds: f64) -> Option<GpuSample> {
    let snapshot = serde_json::from_slice(&snapshots()?).ok()?;
    sample(&snapshot, hostname, now_seconds(), max_age_seconds)
}

/// The newest snapshots of a running exporter: one, or several on lines of their own. Absent if no exporter of root, a system
/// user or the caller publishes them at its default address.
pub(crate) fn snapshots() -> Option<Vec<u8>> {
    let answer = is_believed().then(|| get("/snapshot").ok()).flatten()?;
    // The exporter may have ended before the connection, and another user may have taken its port.
    is_believed().then(|| body(&answer).map(<[u8]>::to_vec)).flatten()
}

/// Whether all who can answer at [`ADDRESS`] are believed by this program's user.
fn is_believed() -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].into_iter();
    let tables: String = tables.filter_map(|it| fs::read_to_string(it).ok()).collect();
    let listeners = listeners(&tables);
    !listeners.is_empty() && listeners.iter().all(|it| is_trusted(*it, geteuid().as_raw()))
}

/// Whether a listener is believed by a caller. Every user can listen on the port while no exporter runs.
const fn is_trusted(listener: u32, caller: u32) -> bool {
    listener < FIRST_PERSON || listener == caller
}

/// The users who listen on [`PORT`] of the loopback address or of all addresses, by `/proc/net/tcp` and `/proc/net/tcp6`. Address
/// `::` includes all of IPv4.
fn listeners(tables: &str) -> Vec<u32> {
    let hosts = ["0100007F", "00000000", IPV6_ANY, MAPPED_LOOPBACK, MAPPED_ANY];
    let addresses = hosts.map(|it| format!("{it}:{PORT:04X}"));
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, uid) = (fields.get(1)?, fields.get(3)?, fields.get(7)?);
        let is_it = *state == LISTENING && addresses.iter().any(|it| it == local);
        is_it.then(|| uid.parse().ok()).flatten()
    };
    tables.lines().filter_map(of).collect()
}

/// The whole answer to a request.
fn get(path: &str) -> io::Result<Vec<u8>> {
    let began = Instant::now();
    let mut stream = TcpStream::connect_timeout(&ADDRESS, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut stream = stream.take(MOST_BYTES);
    let mut part = [0; 1 << 16];
    while began.elapsed() < PATIENCE {
        match stream.read(&mut part)? {
            0 => return Ok(answer),
            length => answer.extend_from_slice(part.get(..length).unwrap_or_default()),
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// The body of a successful answer.
fn body(answer: &[u8]) -> Option<&[u8]> {
    let status = answer.split(|byte| *byte == b'\r').next()?;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    status.ends_with(b" 200 OK").then(|| answer.get(end + 4..)).flatten()
}

/// The sample in a snapshot of this host by an exporter that sees all its processes. Absent if the driver did not answer the
/// last question, or too long ago.
fn sample(snapshot: &Snapshot, hostname: &str, now_seconds: f64, max_age_seconds: f64) -> Option<GpuSample> {
    let status = snapshot.collectors.get("gpu")?;
    // What began while the driver was asked may not be in its answer.
    let age_seconds = now_seconds - status.asked_seconds()?;
    // A snapshot from the future is not recent: the clock was set back.
    let is_recent = (-1.0..=max_age_seconds).contains(&age_seconds);
    let is_of_host = snapshot.hostname == hostname && !snapshot.simulated && snapshot.sees_all_processes;
    if !is_of_host || !status.success || !status.current || !is_recent {
        return None;
    }
    let mut processes: BTreeMap<DeviceIndex, Vec<GpuProcess>> = BTreeMap::new();
    for process in &snapshot.processes {
        for used in &process.devices {
            processes.entry(used.index).or_default().push(GpuProcess {
                pid: process.pid,
                process_type: used.process_type,
                memory_used_bytes: used.memory_used_bytes.get(),
                utilization_ratio: used.utilization_ratio.get(),
            });
        }
    }
    // A MIG device that is not up is gone: the GPU was split in another way.
    let devices = snapshot.devices.iter().filter(|it| it.up || it.index.mig.is_none());
    Some(GpuSample {
        driver_version: snapshot.driver_version.clone(),
        devices: devices.map(|it| device(it, processes.remove(&it.index).unwrap_or_default())).collect(),
        ..GpuSample::default()
    })
}

fn device(device: &Device, listed: Vec<GpuProcess>) -> DeviceSample {
    if !device.up {
        return DeviceSample::lost(device.index, device.uuid.clone());
    }
    let are_known = device.mig_parent || device.processes_measured && !device.use_unexplained;
    DeviceSample {
        index: device.index,
        uuid: device.uuid.clone(),
        lost: false,
        name: device.name.clone(),
        minor: device.minor,
        profile: device.profile.clone(),
        mig_parent: device.mig_parent,
        mig_unsplit: device.mig_unsplit,
        gpu_instance: device.gpu_instance,
        measurements: device.measurements.clone(),
        processes: (are_known || !listed.is_empty()).then_some(listed),
        processes_incomplete: !are_known,
        lists_answered: false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use genv_core::model::{Attribution, CollectorStatus, DeviceMeasurements, Process, ProcessDevice, ProcessType};

    use super::*;

    fn snapshot() -> Snapshot {
        let device = |gpu, up, processes_measured| Device {
            index: DeviceIndex::gpu(gpu),
            uuid: format!("GPU-{gpu}"),
            up,
            name: None,
            minor: None,
            profile: None,
            mig_parent: false,
            measurements: DeviceMeasurements::default(),
            processes_measured,
            use_unexplained: false,
            contradictory: false,
            measurement_stuck: false,
            mig_unsplit: false,
            gpu_instance: None,
            attachments: Arc::default(),
        };
        let process = Process {
            pid: 7,
            start_time_ticks: None,
            uid: None,
            username: None,
            comm: None,
            container_id: None,
            attribution: Attribution::Unknown { reason: "x".to_owned() },
            devices: vec![ProcessDevice {
                index: DeviceIndex::gpu(0),
                process_type: ProcessType::Compute,
                memory_used_bytes: None.into(),
                utilization_ratio: None.into(),
            }],
        };
        let status = CollectorStatus {
            success: true,
            current: true,
            timestamp_seconds: Some(1000.0),
            ..CollectorStatus::default()
        };
        Snapshot {
            hostname: "here".to_owned(),
            sees_all_processes: true,
            collectors: [("gpu".to_owned(), status)].into(),
            devices: vec![
                device(0, true, true),
                device(1, true, true),
                device(2, true, false),
                device(3, false, false),
                Device { use_unexplained: true, ..device(4, true, true) },
            ],
            processes: vec![Arc::new(process)],
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_snapshot_says_who_uses_devices_and_where_that_is_not_known() {
        let sample = sample(&snapshot(), "here", 1010.0, 15.0).unwrap();
        let known: Vec<Option<usize>> = sample
            .devices
            .iter()
            .map(|it| it.processes.as_ref().filter(|_| it.processes_known()).map(Vec::len))
            .collect();
        assert_eq!(known, [Some(1), Some(0), None, None, None]);
        assert!(sample.devices[3].lost);
    }

    #[test]
    fn a_snapshot_that_is_old_or_fails_or_shows_another_host_does_not_count() {
        let at = |now, hostname: &str| sample(&snapshot(), hostname, now, 15.0).is_some();
        assert!(at(1015.0, "here"));
        assert!(!at(1016.0, "here"));
        assert!(!at(998.0, "here"));
        assert!(!at(1010.0, "there"));
        for change in [
            |it: &mut Snapshot| it.simulated = true,
            |it: &mut Snapshot| it.sees_all_processes = false,
            // It was asked 6 s before.
            |it: &mut Snapshot| it.collectors.get_mut("gpu").unwrap().duration_seconds = Some(6.0),
            |it: &mut Snapshot| it.collectors.clear(),
            |it: &mut Snapshot| it.collectors.get_mut("gpu").unwrap().success = false,
            |it: &mut Snapshot| it.collectors.get_mut("gpu").unwrap().current = false,
        ] {
            let mut changed = snapshot();
            change(&mut changed);
            assert!(sample(&changed, "here", 1010.0, 15.0).is_none());
        }
    }

    #[test]
    fn only_root_a_system_user_or_the_caller_is_believed_as_an_exporter() {
        let line = |local: &str, state: &str, uid: u32| {
            format!("   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {uid}        0 1 1\n")
        };
        let port = format!("{PORT:04X}");
        let of = |lines: &[String]| listeners(&format!("  sl  local_address rem_address   st\n{}", lines.concat()));
        let (loopback, all) = (format!("0100007F:{port}"), format!("00000000:{port}"));
        assert_eq!(of(&[line("0100007F:0016", "0A", 5), line(&loopback, "0A", 7)]), [7]);
        assert_eq!(of(&[line(&loopback, "01", 5), line(&all, "0A", 0)]), [0]);
        assert!(of(&[line(&loopback, "01", 5)]).is_empty());
        // Who listens on the same address by IPv6 gets the connection.
        let mapped = format!("0000000000000000FFFF00000100007F:{port}");
        assert_eq!(of(&[line(&all, "0A", 0), line(&mapped, "0A", 1001)]), [0, 1001]);
        let all_of_ipv6 = format!("{}:{port}", "0".repeat(32));
        assert_eq!(of(&[line("0100007F:0016", "0A", 5), line(&all_of_ipv6, "0A", 9)]), [9]);
        let trusted = [(0, 1000), (998, 1000), (1000, 1000), (1001, 1000)].map(|(it, caller)| is_trusted(it, caller));
        assert_eq!(trusted, [true, true, true, false]);
    }

    #[test]
    fn only_a_successful_answer_has_a_body() {
        assert_eq!(body(b"HTTP/1.1 200 OK\r\na: b\r\n\r\n{}"), Some(&b"{}"[..]));
        assert_eq!(body(b"HTTP/1.1 503 Service Unavailable\r\n\r\n{}"), None);
        assert_eq!(body(b"\x15\x03\x03"), None);
    }
}
