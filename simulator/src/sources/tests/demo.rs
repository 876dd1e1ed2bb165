//! The built-in scenario.

use super::*;

const MORNING_SECONDS: u32 = 9 * 3600;

#[test]
fn the_demo_has_processes_of_every_attribution_from_the_start() {
    let mut stand = Stand::of(Engine::demo().unwrap());
    let attributed = attributions(&mut stand, f64::from(MORNING_SECONDS));
    for state in ["environment", "outside", "unknown"] {
        let mut states = attributed.iter().map(|(_, it)| it.state());
        assert!(states.any(|it| it == state), "{state}");
    }
}

#[test]
fn environments_of_the_demo_come_and_go_within_ten_minutes() {
    let mut stand = Stand::of(Engine::demo().unwrap());
    let mut counts: Vec<usize> = (0..20)
        .map(|n| {
            stand.set(f64::from(MORNING_SECONDS + n * 30));
            stand.host.state.read().unwrap().environments.len()
        })
        .collect();
    counts.dedup();
    assert!(counts.len() > 1, "{counts:?}");
}

#[test]
fn every_device_of_the_demo_has_room_for_what_runs_on_it() {
    for host in &Engine::demo().unwrap().scenario().hosts {
        for device in &host.devices {
            let held: u64 =
                device.users.iter().map(|(process, at)| host.processes[*process].uses[*at].memory_bytes).sum();
            assert!(held <= device.memory_bytes - device.memory_reserved_bytes);
        }
    }
}
