use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::*;
use crate::proc::ProcessRequest;
use crate::state::host::STATE_FILE;
use crate::state::record;

struct Counted(ProcReader, Arc<AtomicUsize>);

impl ProcessSource for Counted {
    fn read(&mut self, request: &ProcessRequest) -> ProcessTable {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read(request)
    }

    fn username(&mut self, uid: u32) -> String {
        self.0.username(uid)
    }
}

#[test]
fn one_read_of_the_processes_decides_on_all_environments_without_a_shell() {
    let folder = TempDir::new().unwrap();
    let (environments, attachments): (Vec<_>, Vec<_>) = (0..2_000)
        .map(|number| {
            let eid = format!("e{number}");
            let environment = json!({
                "eid": eid, "uid": 100_000 + number, "created_timestamp_seconds": 1_577_836_800,
                "members": [{ "pid": i32::MAX }],
            });
            (environment, json!({ "eid": eid }))
        })
        .unzip();
    let devices = json!([{ "index": 0, "total_memory": "1gi", "attachments": attachments }]);
    let state = json!({ "version": 1, "boot_id": record::boot_id(), "environments": environments, "devices": devices });
    std::fs::write(folder.path().join(STATE_FILE), state.to_string()).unwrap();
    let reads = Arc::new(AtomicUsize::new(0));
    let mut store = StateStore::new(folder.path()).processes(Counted(ProcReader::new(), Arc::clone(&reads)));
    store.read().unwrap();
    let reads = reads.load(Ordering::Relaxed);
    assert!((1..=3).contains(&reads), "{reads}");
}
