mod devices;
mod histories;
mod requests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use super::*;
use crate::model::MemoryAmount;
use crate::state::allocate::{AttachRequest, DeviceKind, DeviceUsage, Selection};
use crate::state::data::{
    Activation, AttachmentState, Configuration, EnvironmentState, KnownEnvironments, LONGEST_LEASE, Leases, MemberId,
    Visible,
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
        lost: Vec::new(),
        bare: BTreeSet::new(),
        visible: Visible::new(),
        jobs: HashSet::new(),
        known: KnownEnvironments::new(),
        leases: Leases::new(),
        lost_owners: BTreeMap::new(),
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

fn attach(state: &mut EditableState, eid: &str, selection: Selection) -> Vec<u32> {
    let request = AttachRequest::new(selection);
    state.attach(eid, &request).unwrap()
}

#[test]
fn an_environment_ends_with_its_last_member_and_its_devices_become_free() {
    let mut state = machine(&[100, 100]);
    let (shell, kernel) = (MemberId::Process(7), MemberId::Kernel("k".to_owned()));
    assert_eq!(state.activate("e", 5, Some("eva"), &shell), Activation::Created);
    assert_eq!(state.activate("e", 6, Some("max"), &kernel), Activation::Joined);
    assert_eq!(state.activate("e", 6, None, &shell), Activation::Joined);
    let environment = state.environment("e").unwrap();
    assert_eq!((environment.uid, environment.username.as_deref()), (5, Some("eva")));
    assert_eq!(environment.pids, [7]);
    assert_eq!(attach(&mut state, "e", Selection::Count(2)), [0, 1]);
    assert!(!state.leave("f", &shell));
    assert!(state.leave("e", &shell));
    assert!(!state.leave("e", &shell));
    assert_eq!(state.attached("e"), [0, 1]);
    assert_eq!(state.deactivate(&kernel), ["e"]);
    assert_eq!(state.environments(), []);
    assert_eq!(state.attached("e"), Vec::<u32>::new());
    assert_eq!(state.deactivate(&kernel), Vec::<String>::new());
}

#[test]
fn a_request_for_a_missing_environment_fails() {
    let mut state = machine(&[100]);
    let request = AttachRequest { over_subscribe: true, ..AttachRequest::new(Selection::Count(1)) };
    let error = state.attach("no\n", &request).unwrap_err();
    assert_eq!(error.to_string(), "there is no environment no\\n. 'genv envs' lists those that there are");
    state.configure("no", Configuration::default()).unwrap_err();
    state.configuration("no").unwrap_err();
    assert_eq!(state.detach("no", None).unwrap(), Vec::<u32>::new());
}

#[test]
fn attaching_again_applies_the_configured_amount_to_every_device() {
    let mut state = machine(&[100, 100]);
    configure(&mut state, "e", None);
    attach(&mut state, "e", Selection::Count(2));
    let amounts = |state: &EditableState| -> Vec<Option<String>> {
        let attachments = state.devices().iter().map(|device| &device.attachments[0]);
        let amount = |it: &AttachmentState| it.gpu_memory.map(|amount| amount.to_string());
        attachments.map(amount).collect()
    };
    configure(&mut state, "e", Some(MemoryAmount::mebibytes(5)));
    assert_eq!(amounts(&state), [None, None]);
    attach(&mut state, "e", Selection::Indices([1].into()));
    assert_eq!(amounts(&state), [None, Some("5mi".to_owned())]);
    attach(&mut state, "e", Selection::Count(2));
    assert_eq!(amounts(&state), [Some("5mi".to_owned()), Some("5mi".to_owned())]);
}

#[test]
fn one_device_or_all_are_detached() {
    let mut state = machine(&[100, 100, 100]);
    configure(&mut state, "e", None);
    attach(&mut state, "e", Selection::Count(3));
    assert_eq!(state.detach("e", Some(1)).unwrap(), [1]);
    assert_eq!(state.detach("e", Some(1)).unwrap(), Vec::<u32>::new());
    let error = state.detach("e", Some(99)).unwrap_err();
    assert_eq!(error.to_string(), "there is no device 99: this machine has devices 0 to 2. 'genv devices' lists them");
    assert_eq!(state.detach("e", None).unwrap(), [0, 2]);
}

#[test]
fn a_reset_ends_environments_or_removes_devices() {
    let mut state = machine(&[100, 100]);
    configure(&mut state, "e", None);
    attach(&mut state, "e", Selection::Count(1));
    state.reset_devices(&Inventory::new([(0, Some(50))]));
    assert_eq!(state.devices().len(), 1);
    assert_eq!(state.attached("e"), Vec::<u32>::new());
    attach(&mut state, "e", Selection::Count(1));
    state.reset_environments();
    assert_eq!(state.environments(), []);
    assert_eq!(state.attached("e"), Vec::<u32>::new());
}

#[test]
fn the_queue_is_first_come_first_served() {
    let mut state = machine(&[]);
    assert_eq!(state.enqueue(7, None), 0);
    assert_eq!(state.enqueue(8, None), 1);
    assert_eq!(state.enqueue(7, None), 0);
    state.leave_queue(7);
    assert_eq!(state.queue_position(8), Some(0));
    assert_eq!((state.queue_position(7), state.queue().len()), (None, 1));
    // A user has a limited number of places.
    for pid in 100..200 {
        state.enqueue(pid, None);
    }
    assert_eq!(state.queue().len(), MOST_OF_ONE_USER);
    assert_eq!(state.enqueue(300, None), MOST_OF_ONE_USER);
}
