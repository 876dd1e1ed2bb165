use super::*;
use crate::proc::Below;
use crate::state::ProcessId;

const PID: u32 = 7;
const ALICE: u32 = 1000;
const BOB: u32 = 1001;

/// Pid namespaces: the machine's, and those of two containers.
const MACHINE: u64 = INITIAL_PID_NAMESPACE;
const A: u64 = 4_026_532_178;
const B: u64 = 4_026_532_179;

/// The starts of the member and the environment, and the time of writing of the state, in seconds. The clock ticks
/// once a second.
const STARTED: u64 = 900;
const CREATED: u64 = 1000;
const WRITTEN: u64 = 2000;

/// The facts about the member in the files, besides its pid.
#[derive(Clone, Copy, Debug)]
enum Files {
    /// None.
    Genv1,
    /// Its start and its namespace, in a file that every user may write.
    Recorded(u64),
    /// The same, from another boot.
    OtherBoot(u64),
    /// Its start and its namespace, in a file that only its user may write.
    Confirmed(u64),
}
use Files::{Confirmed, Genv1, OtherBoot, Recorded as InFile};

/// A process that has the member's pid in its namespace.
#[derive(Clone, Copy, Debug)]
struct Process {
    namespace: u64,
    started: u64,
    uid: Option<u32>,
    parent: u32,
    is_zombie: bool,
}

const fn process(namespace: u64, started: u64) -> Process {
    Process { namespace, started, uid: Some(ALICE), parent: 500, is_zombie: false }
}

/// The process that started before the environment was made, in a namespace.
const fn member(namespace: u64) -> Process {
    process(namespace, STARTED)
}

impl Process {
    const fn of(self, uid: Option<u32>) -> Self {
        Self { uid, ..self }
    }

    const fn child_of(self, parent: u32) -> Self {
        Self { parent, ..self }
    }

    const fn zombie(self) -> Self {
        Self { is_zombie: true, ..self }
    }
}

/// The program that reads the standing of the member.
#[derive(Clone, Copy, Debug)]
enum Looker {
    Root,
    /// A user, who may not read the namespaces of other users' processes.
    User,
    /// A user under `hidepid`, which hides other users' processes.
    UserWithHidepid,
    /// A program in a container.
    In(u64),
}

const LOOKERS: [Looker; 5] = [Looker::Root, Looker::User, Looker::UserWithHidepid, Looker::In(A), Looker::In(B)];

fn table(looker: Looker, processes: &[Process]) -> ProcessTable {
    let own = match looker {
        Looker::In(container) => container,
        _ => MACHINE,
    };
    let mut table = ProcessTable { pid_namespace: Some(own), ..ProcessTable::default() };
    let mut below = Vec::new();
    for process in processes {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let lineage = Lineage {
            start_time_ticks: process.started,
            start_timestamp_seconds: process.started as f64,
            parent: process.parent,
            uid: process.uid,
        };
        if process.namespace == own {
            if matches!(looker, Looker::UserWithHidepid) {
                table.hidden.insert(PID);
                continue;
            }
            table.lineage.insert(PID, lineage);
            if process.is_zombie {
                table.zombies.insert(PID);
            }
        } else if !process.is_zombie {
            below.push(PidHolder {
                namespace: Some(process.namespace).filter(|_| matches!(looker, Looker::Root)),
                pid: 70_000,
                lineage,
            });
        }
    }
    let sees_all = !matches!(looker, Looker::UserWithHidepid);
    table.below = Below::seen(sees_all.then(|| [(PID, below)].into_iter().collect()));
    table
}

fn listed(files: Files) -> MemberState {
    let found = |namespace| MemberState::found(ProcessId { pid: PID, start_time_ticks: STARTED }, namespace, false);
    match files {
        Genv1 => MemberState::from(PID),
        InFile(namespace) => MemberState { is_confirmed: false, ..found(namespace) },
        OtherBoot(namespace) => {
            MemberState { is_confirmed: false, started: Started::BeforeThisBoot, ..found(namespace) }
        }
        Confirmed(namespace) => found(namespace),
    }
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
const fn seconds(whole: u64) -> f64 {
    whole as f64
}

#[test]
fn a_member_lives_unless_it_is_known_to_have_ended() {
    let environment = EnvironmentState {
        uid: ALICE,
        created_timestamp_seconds: Some(seconds(CREATED)),
        ..EnvironmentState::default()
    };
    let successor = process(MACHINE, 1500);
    let elder = |namespace| process(namespace, 800);
    let newest = |namespace| process(namespace, 2500);
    // L: lives; E: ended; ?: may live. The columns are those of `LOOKERS`: three on the machine, two in containers.
    for (files, processes, expected) in [
        // Confirmed: exactly one process of one namespace.
        (Confirmed(MACHINE), vec![member(MACHINE)], "LL???"),
        (Confirmed(MACHINE), vec![], "EEE??"),
        (Confirmed(MACHINE), vec![member(MACHINE).zombie()], "EE???"),
        (Confirmed(MACHINE), vec![successor], "EE???"),
        (Confirmed(MACHINE), vec![elder(MACHINE)], "EE???"),
        (Confirmed(MACHINE), vec![member(A)], "EEE??"),
        (Confirmed(MACHINE), vec![member(MACHINE).child_of(0)], "LL???"),
        (Confirmed(A), vec![member(A)], "LL?L?"),
        (Confirmed(A), vec![], "EE?E?"),
        (Confirmed(A), vec![member(A).zombie()], "EE?E?"),
        (Confirmed(A), vec![elder(A), elder(B)], "EE?E?"),
        (Confirmed(A), vec![elder(MACHINE)], "EE?E?"),
        // In a file that every user may write: the record does not exclude a process that the kernel shows.
        (InFile(MACHINE), vec![member(MACHINE)], "LL???"),
        (InFile(MACHINE), vec![], "EE???"),
        (InFile(MACHINE), vec![member(MACHINE).zombie()], "EE???"),
        (InFile(MACHINE), vec![successor], "EE???"),
        (InFile(MACHINE), vec![elder(MACHINE)], "LL???"),
        (InFile(MACHINE), vec![elder(MACHINE).of(None)], "?????"),
        (InFile(MACHINE), vec![elder(MACHINE).of(Some(BOB))], "EE???"),
        (InFile(MACHINE), vec![member(A)], "LL?L?"),
        (InFile(MACHINE), vec![elder(A)], "?????"),
        (InFile(A), vec![member(A)], "LL?L?"),
        (InFile(A), vec![elder(A)], "LL?L?"),
        (InFile(A), vec![], "EE???"),
        (InFile(A), vec![member(MACHINE)], "LL???"),
        (InFile(A), vec![elder(MACHINE)], "?????"),
        // A kernel thread.
        (InFile(A), vec![elder(MACHINE).child_of(2)], "EE???"),
        (InFile(MACHINE), vec![member(MACHINE).child_of(2)], "EE???"),
        // From another boot, which every user may write.
        (OtherBoot(MACHINE), vec![], "EE???"),
        (OtherBoot(MACHINE), vec![successor], "EE???"),
        (OtherBoot(MACHINE), vec![member(MACHINE)], "LL???"),
        (OtherBoot(A), vec![process(A, 1500)], "EE???"),
        (OtherBoot(A), vec![member(A)], "LL?L?"),
        // genv 1.x: a pid of the machine, or of any container.
        (Genv1, vec![member(MACHINE)], "LL???"),
        (Genv1, vec![member(MACHINE).of(Some(BOB))], "LL???"),
        (Genv1, vec![successor], "LL???"),
        (Genv1, vec![newest(MACHINE)], "EE???"),
        (Genv1, vec![], "EE???"),
        (Genv1, vec![member(MACHINE).zombie()], "EE???"),
        (Genv1, vec![member(A)], "?????"),
        (Genv1, vec![newest(A)], "EE???"),
        (Genv1, vec![member(A).of(Some(BOB))], "EE???"),
        (Genv1, vec![member(MACHINE).child_of(2), member(A)], "?????"),
    ] {
        let member = listed(files);
        let written = Some(seconds(WRITTEN));
        let standing = |looker| match member.standing(&environment, &table(looker, &processes), written) {
            Standing::Lives(_) => 'L',
            Standing::MayLive => '?',
            Standing::Ended => 'E',
        };
        let found: String = LOOKERS.into_iter().map(standing).collect();
        assert_eq!(found, expected, "{files:?} {processes:?}");
    }
}
