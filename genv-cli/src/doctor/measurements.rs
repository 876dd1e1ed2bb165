//! Check of devices whose measurements contradict each other for a long time. Only a daemon watches that long: the check
//! reads the exporter's snapshots.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use genv_core::model::DeviceIndex;
use serde::Deserialize;

use super::Check;
use super::host::{EXPORTER, EXPORTER_PATIENCE};

/// The most bytes that are read of an answer.
const MOST_BYTES: u64 = 64 << 20;

/// The part of a snapshot that this check needs.
#[derive(Deserialize)]
struct Published {
    hostname: String,
    devices: Vec<PublishedDevice>,
}

#[derive(Deserialize)]
struct PublishedDevice {
    index: DeviceIndex,
    #[serde(default)]
    contradictory: bool,
}

/// Checks the devices of the exporter's snapshots. Absent if no device is contradictory, or if the exporter publishes no
/// snapshot to this user.
pub(super) fn examine() -> Option<Check> {
    contradictory(&snapshots(EXPORTER).ok()?)
}

/// The exporter's answer.
fn snapshots(address: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&address, EXPORTER_PATIENCE)?;
    stream.set_read_timeout(Some(EXPORTER_PATIENCE))?;
    stream.write_all(b"GET /snapshot HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer)?;
    Ok(answer)
}

/// The check by an HTTP answer with one snapshot, or several on lines of their own.
fn contradictory(answer: &[u8]) -> Option<Check> {
    const END_OF_HEAD: &[u8] = b"\r\n\r\n";
    let head = answer.windows(END_OF_HEAD.len()).position(|it| it == END_OF_HEAD)?;
    let body = &answer[head + END_OF_HEAD.len()..];
    let hosts = serde_json::Deserializer::from_slice(body).into_iter::<Published>();
    let mut found = Vec::new();
    for host in hosts.map_while(Result::ok) {
        let devices = host.devices.iter().filter(|device| device.contradictory);
        found.extend(devices.map(|device| format!("device {} of {}", device.index, host.hostname)));
    }
    (!found.is_empty()).then(|| {
        Check::warn(
            "measurements",
            format!("a high utilization without a process and without memory in use: {}", found.join(", ")),
            "if the measurement is stuck, a new CUDA context (any CUDA program) or a reset of the GPU ends it; a process \
             that the exporter does not see, as from a container, in WSL or in a vGPU guest, looks the same",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_contradictory_device_of_the_exporter_is_named() {
        let answer = |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n{body}").into_bytes();
        let found = |body: &str| contradictory(&answer(body)).map(|check| check.found);
        let host = |name: &str, contradictory: bool| {
            let device = format!(r#"{{"index":"1","up":true,"contradictory":{contradictory}}}"#);
            format!(r#"{{"hostname":"{name}","version":1,"devices":[{{"index":"0","up":true}},{device}]}}"#)
        };
        let what = "a high utilization without a process and without memory in use";
        assert_eq!(found(&host("gpu01", true)), Some(format!("{what}: device 1 of gpu01")));
        let several = [host("gpu01", true), host("gpu02", false), host("gpu03", true)].join("\n");
        assert_eq!(found(&several), Some(format!("{what}: device 1 of gpu01, device 1 of gpu03")));
        for other in [host("gpu01", false), "No data was collected yet.".to_owned(), String::new()] {
            assert_eq!(found(&other), None, "{other}");
        }
        assert!(contradictory(b"\x15\x03\x03").is_none());
    }
}
