use super::observed::{DeviceHolder, ObservedDevice, UserUse};
use super::*;
use crate::model::{DeviceSeconds, UserDeviceUse};

/// One GPU, observed every 10 seconds, and its ledger.
struct Case {
    ledger: Ledger,
    alice: UserId,
    bob: UserId,
    previous: Observed,
    now: ObservedDevice,
    seconds: f64,
    step_seconds: f64,
}

impl Case {
    fn new() -> Self {
        let mut ledger = Ledger::new(0.05);
        let (alice, bob) = (ledger.users.id("alice"), ledger.users.id("bob"));
        Self {
            ledger,
            alice,
            bob,
            previous: Observed::default(),
            now: ObservedDevice {
                gpu: 0,
                uuid: "GPU-0".to_owned(),
                read_seconds: None,
                energy_joules: Some(5_000.0),
                power_watts: Some(100.0),
                power_limit_watts: None,
                holders: Vec::new(),
                users: Some(Vec::new()),
            },
            seconds: 0.0,
            step_seconds: 10.0,
        }
    }

    fn holds(mut self, user: UserId, share_ratio: f64) -> Self {
        self.now.holders.push(DeviceHolder { user, share_ratio, attached_timestamp_seconds: None, moved: false });
        self
    }

    fn uses(&mut self, uses: &[(UserId, Option<f64>)]) -> &mut Self {
        self.now.users = Some(
            uses.iter()
                .map(|(user, utilization)| UserUse {
                    user: *user,
                    utilization_ratio: utilization.unwrap_or(0.0),
                    unmeasured: utilization.is_none(),
                    outside: false,
                })
                .collect(),
        );
        self
    }

    fn observe(&mut self, read: bool) -> Counters {
        self.seconds += self.step_seconds;
        self.now.read_seconds = read.then_some(self.seconds);
        let current = Observed { devices: vec![self.now.clone()], xid_events: Vec::new() };
        self.ledger.step(&self.previous, &current, self.step_seconds);
        self.previous = current;
        self.ledger.publish()
    }

    /// An observation that the GPU source answered, with this much more on the energy counter.
    fn measured(&mut self, joules: f64) -> Counters {
        self.now.energy_joules = self.now.energy_joules.map(|counter| counter + joules);
        self.observe(true)
    }
}

fn of<'a>(counters: &'a Counters, name: &str) -> &'a UserDeviceUse {
    let mut rows = counters.user_device_use.iter();
    rows.find(|row| row.username == name).unwrap()
}

fn seconds(counters: &Counters, name: &str) -> DeviceSeconds {
    of(counters, name).device_seconds.unwrap()
}

fn joules(counters: &Counters, name: &str) -> f64 {
    of(counters, name).energy_joules.unwrap()
}

#[test]
fn held_time_is_busy_idle_or_unmeasured_by_the_holders_own_processes() {
    let mut case = Case::new();
    let (alice, bob) = (case.alice, case.bob);
    case = case.holds(alice, 0.25).holds(bob, 0.5);
    assert_eq!(seconds(&case.measured(0.0), "alice"), DeviceSeconds::default());
    case.uses(&[(alice, Some(0.05))]).measured(0.0);
    let counters = case.uses(&[(alice, None), (bob, Some(0.04))]).measured(0.0);
    let expected = DeviceSeconds { busy: 2.5, unmeasured: 2.5, ..DeviceSeconds::default() };
    assert_eq!(seconds(&counters, "alice"), expected);
    assert_eq!(seconds(&counters, "bob").idle, 10.0);
}

#[test]
fn the_time_in_which_a_holders_last_process_ended_is_unmeasured() {
    let mut case = Case::new();
    let alice = case.alice;
    case = case.holds(alice, 1.0);
    case.measured(0.0);
    case.uses(&[(alice, Some(0.9))]).measured(0.0);
    case.uses(&[]).measured(0.0);
    let expected = DeviceSeconds { busy: 10.0, unmeasured: 10.0, idle: 10.0, ..DeviceSeconds::default() };
    assert_eq!(seconds(&case.measured(0.0), "alice"), expected);
}

#[test]
fn time_is_unmeasured_while_the_source_does_not_answer() {
    let mut case = Case::new();
    let alice = case.alice;
    case = case.holds(alice, 1.0);
    case.measured(0.0);
    case.observe(false);
    assert_eq!(seconds(&case.observe(false), "alice").unmeasured, 20.0);
}

#[test]
fn a_busy_process_without_a_known_user_leaves_the_holders_time_unmeasured() {
    let mut case = Case::new();
    let alice = case.alice;
    case = case.holds(alice, 1.0);
    case.measured(0.0);
    case.uses(&[(UserId::NOBODY, Some(0.9))]).measured(0.0);
    let counters = case.uses(&[(UserId::NOBODY, Some(0.0))]).measured(0.0);
    let expected = DeviceSeconds { unmeasured: 10.0, idle: 10.0, ..DeviceSeconds::default() };
    assert_eq!(seconds(&counters, "alice"), expected);
}

#[test]
fn use_outside_any_environment_counts_once_however_many_processes_there_are() {
    let mut case = Case::new();
    let bob = case.bob;
    case.uses(&[(bob, Some(0.5))]);
    case.now.users.as_mut().unwrap()[0].outside = true;
    case.measured(0.0);
    let counters = case.measured(0.0);
    let expected = DeviceSeconds { outside: 10.0, ..DeviceSeconds::default() };
    assert_eq!(seconds(&counters, "bob"), expected);
    case.observe(false);
    // A process of the last observation counts for the time after it, if it was measured at that observation.
    assert_eq!(seconds(&case.observe(false), "bob").outside, 20.0);
}

#[test]
fn utilized_time_of_all_users_together_is_at_most_the_time() {
    let mut case = Case::new();
    let (alice, bob) = (case.alice, case.bob);
    case.uses(&[(alice, Some(0.9)), (bob, Some(0.6)), (UserId::NOBODY, Some(0.5))]);
    case.measured(0.0);
    let first = case.measured(0.0);
    let second = case.measured(0.0);
    let increase =
        |name| of(&second, name).utilized_device_seconds.unwrap() - of(&first, name).utilized_device_seconds.unwrap();
    assert!((increase("alice") - 4.5).abs() < 1e-9);
    assert!((increase("bob") - 3.0).abs() < 1e-9);
    assert_eq!(of(&second, NOBODY).utilized_device_seconds, None);
}

#[test]
fn energy_is_split_by_utilization_else_by_shares_else_charged_to_no_user() {
    let mut case = Case::new();
    let (alice, bob) = (case.alice, case.bob);
    assert_eq!(joules(&case.measured(0.0), NOBODY), 0.0);
    assert_eq!(joules(&case.measured(100.0), NOBODY), 100.0);

    case = case.holds(alice, 0.25).holds(bob, 0.5);
    case.measured(0.0);
    let counters = case.measured(300.0);
    assert_eq!((joules(&counters, "alice"), joules(&counters, "bob")), (100.0, 200.0));

    let counters = case.uses(&[(alice, Some(0.6)), (UserId::NOBODY, Some(0.2))]).measured(400.0);
    let expected = (100.0 + 300.0, 200.0, 100.0 + 100.0);
    let shown = (joules(&counters, "alice"), joules(&counters, "bob"), joules(&counters, NOBODY));
    assert!((shown.0 - expected.0).abs() + (shown.1 - expected.1).abs() + (shown.2 - expected.2).abs() < 1e-9);
    assert_eq!(counters.device_energy[0].energy_joules, shown.2 + shown.0 + shown.1);
}

/// The driver does not answer for three observations, or only the counter does not. During the last of them bob holds
/// the device and works.
#[test]
fn the_energy_of_a_gap_is_charged_to_the_holders_during_the_gap() {
    for only_the_counter in [false, true] {
        let mut case = Case::new();
        let (alice, bob) = (case.alice, case.bob);
        case = case.holds(alice, 1.0);
        case.uses(&[(alice, Some(0.9))]).measured(0.0);
        case.measured(2_000.0);
        let counter = case.now.energy_joules;
        let unread = |case: &mut Case| {
            if only_the_counter {
                case.now.energy_joules = None;
            }
            case.observe(only_the_counter);
        };
        unread(&mut case);
        unread(&mut case);
        case.now.holders.clear();
        case = case.holds(bob, 0.5);
        case.uses(&[(bob, Some(0.9))]);
        unread(&mut case);
        case.now.energy_joules = counter;
        case.measured(8_000.0);
        let counters = case.measured(100.0);
        assert_eq!(joules(&counters, "alice"), 2_000.0 + 6_000.0);
        assert_eq!(joules(&counters, "bob"), 2_000.0 + 100.0);
        assert_eq!(joules(&counters, NOBODY), 0.0);
    }
}

#[test]
fn the_energy_of_a_gap_without_a_holder_is_charged_to_no_user() {
    let mut case = Case::new();
    let (alice, bob) = (case.alice, case.bob);
    case.measured(0.0);
    case.observe(false);
    case.observe(false);
    case = case.holds(bob, 1.0);
    let counters = case.uses(&[(bob, Some(0.9))]).measured(3_000.0);
    assert_eq!(joules(&counters, NOBODY), 3_000.0);
    assert_eq!(joules(&counters, "bob"), 0.0);

    // After a short gap the reported use is the use during the gap.
    case.now.holders.clear();
    case = case.holds(alice, 1.0);
    case.step_seconds = 4.0;
    case.measured(0.0);
    case.observe(false);
    assert_eq!(joules(&case.measured(700.0), "bob"), 700.0);
}

#[test]
fn an_energy_counter_that_starts_again_adds_no_more_than_was_possible() {
    let mut case = Case::new();
    case.measured(0.0);
    // Reset with the driver: the counter shows the energy since the reset.
    case.now.energy_joules = Some(70.0);
    assert_eq!(joules(&case.observe(true), NOBODY), 70.0);
    // A glitch: the device cannot have used more than power × time.
    case.now.energy_joules = Some(9_000_000.0);
    let glitch = joules(&case.observe(true), NOBODY);
    case.now.energy_joules = Some(8_999_999.0);
    assert_eq!(joules(&case.observe(true), NOBODY) - glitch, 1_000.0);
}

#[test]
fn another_device_at_the_index_starts_from_its_own_counter() {
    let mut case = Case::new();
    case.measured(0.0);
    case.now.uuid = "GPU-other".to_owned();
    case.now.energy_joules = Some(1_000_000.0);
    assert_eq!(joules(&case.observe(true), NOBODY), 0.0);
    assert_eq!(joules(&case.measured(50.0), NOBODY), 50.0);
}

#[test]
fn without_an_energy_counter_power_times_time_counts_where_it_was_measured() {
    let mut case = Case::new();
    case.now.energy_joules = None;
    case.observe(true);
    case.now.power_watts = Some(300.0);
    assert_eq!(joules(&case.observe(true), NOBODY), 2_000.0);
    case.observe(false);
    let after_gap = case.observe(true);
    assert_eq!(joules(&after_gap, NOBODY), 2_000.0);
    case.now.power_watts = None;
    assert_eq!(case.observe(true).device_energy[0].energy_joules, 2_000.0);
}

#[test]
fn a_counter_that_was_missing_for_a_while_is_not_charged_twice() {
    let mut case = Case::new();
    case.measured(0.0);
    case.now.energy_joules = None;
    assert_eq!(joules(&case.observe(true), NOBODY), 0.0);
    case.now.energy_joules = Some(7_000.0);
    assert_eq!(joules(&case.observe(true), NOBODY), 2_000.0);
}

#[test]
fn a_device_without_energy_and_power_readings_has_no_energy() {
    let mut case = Case::new();
    let alice = case.alice;
    case = case.holds(alice, 1.0);
    (case.now.energy_joules, case.now.power_watts) = (None, None);
    let counters = case.observe(true);
    assert_eq!(counters.device_energy, []);
    assert!(counters.user_device_use.iter().all(|row| row.username != NOBODY && row.energy_joules.is_none()));
}

#[test]
fn utilized_time_is_absent_without_a_utilization_reading_and_begins_at_0_with_the_first() {
    let mut case = Case::new();
    let alice = case.alice;
    case = case.holds(alice, 1.0);
    case.uses(&[(alice, None)]);
    let utilized = |counters: &Counters| of(counters, "alice").utilized_device_seconds;
    case.observe(true);
    assert_eq!(utilized(&case.observe(true)), None);
    case.uses(&[(alice, Some(1.0))]);
    assert_eq!(utilized(&case.observe(true)), Some(0.0));
    let shown = utilized(&case.observe(true)).unwrap();
    assert!(shown > 0.0, "{shown}");
}
