use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::proc::ProcessRequest;

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
    let time = "01/01/2020 00:00:00";
    let (environments, attachments): (Vec<_>, Vec<_>) = (0..2_000)
        .map(|number| {
            let eid = format!("e{number}");
            let environment = json!({
                "eid": eid, "uid": 100_000 + number, "creation": time, "pids": [i32::MAX], "kernel_ids": [],
            });
            (environment, json!({ "eid": eid, "time": time }))
        })
        .unzip();
    let devices = json!([{ "index": 0, "total_memory": "1gi", "attachments": attachments }]);
    let write = |name: &str, content: Value| std::fs::write(folder.path().join(name), content.to_string()).unwrap();
    write("envs.json", json!({ "envs": environments }));
    write("devices.json", json!({ "devices": devices }));
    let reads = Arc::new(AtomicUsize::new(0));
    let mut store = StateStore::new(folder.path()).processes(Counted(ProcReader::new(), Arc::clone(&reads)));
    store.read().unwrap();
    let reads = reads.load(Ordering::Relaxed);
    assert!((1..=3).contains(&reads), "{reads}");
}
