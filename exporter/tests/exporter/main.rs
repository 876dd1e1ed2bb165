//! The exporter from snapshot to bytes, and the program's command line.

#![allow(clippy::unwrap_used, reason = "what a test needs and does not get fails the test")]

mod endpoints;
mod exposition;
mod metrics;
mod pages;
mod program;
mod properties;
mod publish;

use std::io::Read as _;
use std::sync::Arc;

use flate2::read::GzDecoder;
use genv_core::model::{HostSnapshot, Publication, Snapshot};
use genv_exporter::families::Limits;
use genv_exporter::render::OwnState;
use genv_exporter::render::Rendering;

/// A host that has everything: measured, unmeasured, lost, split, shared, hostile.
fn snapshot() -> Snapshot {
    serde_json::from_str(include_str!("snapshot.json")).unwrap()
}

fn host(snapshot: Snapshot) -> HostSnapshot {
    HostSnapshot {
        hostname: snapshot.hostname.clone(),
        up: true,
        received_timestamp_seconds: Some(1_700_000_000.5),
        snapshot: Some(Arc::new(snapshot)),
        ssh: None,
    }
}

fn dead_host(hostname: &str) -> HostSnapshot {
    HostSnapshot {
        hostname: hostname.to_owned(),
        up: false,
        received_timestamp_seconds: None,
        snapshot: None,
        ssh: None,
    }
}

fn publication(hosts: Vec<HostSnapshot>) -> Arc<Publication> {
    Arc::new(Publication { sequence: 1, hosts })
}

fn rendering(hosts: Vec<HostSnapshot>, processes: usize) -> Rendering {
    Rendering::new(publication(hosts), Limits { processes: Some(processes) }, OwnState::default(), Arc::default())
}

fn unpacked(gzip: &[u8]) -> Vec<u8> {
    let mut unpacked = Vec::new();
    GzDecoder::new(gzip).read_to_end(&mut unpacked).unwrap();
    unpacked
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
