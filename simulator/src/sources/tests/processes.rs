//! Processes and environments.

use genv_core::attribute::reason;

use super::*;

#[test]
fn what_the_scenario_leaves_to_the_machine_is_real() {
    let mut stand = Stand::of(Engine::idle_devices(3).unwrap());
    assert_eq!(stand.host.hostname, "here");
    assert_eq!(stand.sample(1.0).devices.len(), 3);
    assert_eq!(stand.host.state.read().unwrap_err().message, "the real state");
    let table = stand.read(&[4242]);
    let ProcessRead::Present(facts) = &table.processes[&4242] else {
        panic!("{table:?}");
    };
    assert_eq!(facts.comm, "real-4242");
}

#[test]
fn users_are_called_as_the_scenario_says_and_others_by_their_real_names() {
    let mut stand = Stand::new("version: 1\nusers: {alice: 7}\nhosts: [{}]");
    assert_eq!(stand.host.processes.username(7), "alice");
    assert_eq!(stand.host.processes.username(8), "real-8");
}

#[test]
fn each_kind_of_process_is_attributed_as_its_keys_say() {
    let text = "
version: 1
users: {alice: 1, bob: 2}
hosts:
  - devices: [{}]
    environments:
      - {eid: e, user: alice, created: 1h}
      - {eid: f, user: bob, created: 1h, pids: [50]}
    processes:
      - {pid: 10, user: alice, environment: e, devices: [{index: 0}]}
      - {pid: 11, user: alice, environment: e, claim: empty, devices: [{index: 0}]}
      - {pid: 12, user: bob, environment: e, claim: {named: e}, parent: 1, devices: [{index: 0}]}
      - {pid: 13, user: alice, devices: [{index: 0}]}
      - {pid: 14, user: alice, claim: overwritten, devices: [{index: 0}]}
      - {pid: 15, user: alice, claim: {named: gone}, devices: [{index: 0}]}
      - {pid: 16, user: alice, proc: unreadable, devices: [{index: 0}]}
      - {pid: 17, user: alice, proc: vanished, devices: [{index: 0}]}
      - {pid: 18, user: alice, claim: zombie, devices: [{index: 0}]}
      - {pid: 19, user: alice, claim: unreadable, devices: [{index: 0}]}
      - {pid: 20, user: bob, claim: empty, parent: 21, devices: [{index: 0}]}
      - {pid: 21, user: bob, parent: 50, claim: none}
      - {pid: 50, user: bob, environment: f, started: 1h}
      - {pid: 60, devices: [{index: 0}]}
";
    let environment = |eid: &str| Attribution::Environment { eid: eid.to_owned() };
    let outside = |reason: &str| Attribution::Outside { reason: reason.to_owned() };
    let unknown = |reason: &str| Attribution::Unknown { reason: reason.to_owned() };
    let mut attributed = attributions(&mut Stand::new(text), 60.0);
    let (real, _) = attributed.pop().unwrap();
    assert_eq!(real, 60);
    assert_eq!(
        attributed,
        [
            (10, environment("e")),
            (11, environment("e")),
            (12, outside(reason::OTHER_USERS_ENVIRONMENT)),
            (13, outside(reason::NO_CLAIM)),
            (14, unknown(reason::ENVIRON_OVERWRITTEN)),
            (15, outside(reason::NO_SUCH_ENVIRONMENT)),
            (16, unknown(reason::UNREADABLE)),
            (17, unknown(reason::VANISHED)),
            (18, unknown(reason::ZOMBIE)),
            (19, unknown(reason::ENVIRON_UNREADABLE)),
            (20, environment("f")),
        ]
    );
}

#[test]
fn an_environment_and_what_runs_in_it_come_anew_each_time() {
    let text = "
version: 1
users: {alice: 1}
hosts:
  - devices: [{}]
    environments: [{eid: e, user: alice, gpu_memory: 8gi, devices: [0], during: {every: 60s, from: 10s, until: 50s}}]
    processes: [{pid: 10, user: alice, environment: e, claim: empty, devices: [{index: 0, utilization: {steps: [[20s, 0.5], [1h, 0]]}}]}]
";
    let mut stand = Stand::new(text);
    let mut starts = Vec::new();
    for round in [0.0, 60.0, 120.0] {
        assert_eq!(attributions(&mut stand, round + 5.0), []);
        assert_eq!(stand.host.state.read().unwrap().environments, []);
        let attributed = attributions(&mut stand, round + 11.0);
        assert_eq!(attributed[0].1.eid(), Some("e"));
        let state = stand.host.state.read().unwrap();
        let created = state.environments[0].created_timestamp_seconds;
        assert_eq!(created, Some(EPOCH_SECONDS as f64 + round + 10.0));
        assert_eq!(state.devices[0].attachments[0].gpu_memory.map(MemoryAmount::bytes), Some(8 << 30));
        assert_eq!(stand.sample(round + 29.0).devices[0].measurements.utilization_ratio, Some(0.5));
        assert_eq!(stand.sample(round + 31.0).devices[0].measurements.utilization_ratio, Some(0.0));
        let table = stand.read(&[10]);
        starts.push(table.lineage[&10].start_time_ticks);
    }
    assert_eq!((starts[1] - starts[0], starts[2] - starts[1]), (6000, 6000));
}
