mod assign;
mod histories;
mod requests;

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::model::MemoryAmount;
use crate::state::allocate::{DeviceKind, DeviceUsage};
use crate::state::data::{
    Activation, AttachmentState, Configuration, EnvironmentState, LONGEST_LEASE, Leases, MemberId,
};
use crate::state::inventory::Inventory;
use crate::state::queue::MOST_OF_ONE_USER;

const ROOT: u32 = 0;
const ALICE: u32 = 4_000_000;
const BOB: u32 = 4_000_001;
const CAROL: u32 = 4_000_002;

/// A state that requests change, with fresh facts.
#[derive(Clone)]
struct Lab {
    state: EditableState,
    facts: Facts,
    now_seconds: f64,
}

impl Lab {
    /// A machine with devices of these sizes.
    fn new(gibibytes: &[u64]) -> Self {
        let mebibytes: Vec<u64> = gibibytes.iter().map(|it| it << 10).collect();
        let facts = Facts { taken_seconds: Some(1000.0), ..Facts::default() };
        Self { state: machine(&mebibytes), facts, now_seconds: 1000.0 }
    }

    fn ask(&mut self, uid: u32, pid: u32, request: &Request) -> Result<Reply, Refusal> {
        let requester = Requester { uid, pid };
        let (after, reply) =
            apply(&self.state, request, &requester, &self.facts, &Policy::default(), self.now_seconds)?;
        self.state = after;
        Ok(reply)
    }
}

fn enter(eid: &str, member: u32) -> Request {
    Request::Enter(Box::new(Enter { eid: eid.to_owned(), member, attach: true, ..Enter::default() }))
}

fn leave(eid: &str, pid: u32, as_shell: bool) -> Request {
    Request::Leave { eid: Some(eid.to_owned()), member: MemberId::Process(pid), as_shell }
}

/// The request with another wish.
fn with(mut request: Request, change: impl FnOnce(&mut Wish)) -> Request {
    match &mut request {
        Request::Enter(enter) => change(&mut enter.wish),
        Request::Attach { wish, .. } => change(wish),
        _ => {}
    }
    request
}

pub(in crate::state) fn machine(mebibytes: &[u64]) -> EditableState {
    let mut state = EditableState {
        environments: Vec::new(),
        devices: Vec::new(),
        queue: Vec::new(),
        leases: Leases::new(),
        uid: 0,
        devices_known: false,
        requested: None,
        now_seconds: 1000.5,
    };
    let devices = (0..).zip(mebibytes.iter().map(|mebibytes| Some(*mebibytes)));
    state.merge_inventory(&Inventory::new(devices));
    state
}

pub(in crate::state) fn configure(state: &mut EditableState, eid: &str, gpu_memory: Option<MemoryAmount>) {
    state.activate(eid, 0, None, &MemberId::Process(7));
    let configuration = Configuration { gpu_memory, ..Configuration::default() };
    state.configure(eid, configuration).unwrap();
}
