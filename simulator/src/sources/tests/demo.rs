//! The built-in scenario.

use super::*;
use crate::ThrottleReason;
use crate::view::Measured;

/// The middle of a morning.
const MORNING_SECONDS: u32 = 9 * 3600;

fn demo() -> Arc<Scenario> {
    Engine::demo().unwrap().scenario()
}

/// The values of one device, every ten seconds of the first ten minutes of the morning.
fn ten_minutes<T>(host: &Host, index: u32, tell: impl Fn(Measured) -> T) -> Vec<T> {
    (0..60)
        .map(|n| {
            let now = at(f64::from(MORNING_SECONDS + n * 10));
            tell(host.at(now).device(index).unwrap().measured())
        })
        .collect()
}

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
fn the_graphs_of_the_demo_live_within_ten_minutes() {
    let scenario = demo();
    let names: Vec<_> = scenario.hosts.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["gpu01", "gpu02"]);
    for host in &scenario.hosts {
        // The fourth GPU of gpu01 is held and idle, that of gpu02 only shows a desktop.
        for index in (0..host.devices.len() as u32).filter(|index| *index != 3) {
            let busy = ten_minutes(host, index, |device| device.utilization_ratio);
            let least = busy.iter().copied().fold(1.0, f64::min);
            let most = busy.iter().copied().fold(0.0, f64::max);
            let place = format!("{} {index}: {least} to {most}", host.name);
            assert!(most - least > 0.04, "{place}");
        }
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
fn one_environment_of_the_demo_is_over_its_memory_and_one_device_throttled_when_it_is_hot() {
    let scenario = demo();
    let host = scenario.hosts[0].at(at(f64::from(MORNING_SECONDS)));
    let environments = host.environments().unwrap();
    let (over, _) = environments.iter().find(|(it, _)| it.eid == "4714").unwrap();
    let device = host.device(over.devices[0]).unwrap();
    let held = device.processes().find(|it| it.pid == 34001).unwrap();
    assert!(held.memory_used_bytes > over.gpu_memory_bytes.unwrap());
    let throttled = |device: Measured| device.throttle_reasons & !ThrottleReason::IDLE_BIT != 0;
    let throttled = ten_minutes(&scenario.hosts[1], 0, throttled);
    assert!(throttled.contains(&true) && throttled.contains(&false));
}

#[test]
fn every_device_of_the_demo_has_room_for_what_runs_on_it() {
    for host in &demo().hosts {
        for device in &host.devices {
            let held: u64 =
                device.users.iter().map(|(process, at)| host.processes[*process].uses[*at].memory_bytes).sum();
            assert!(held <= device.memory_bytes - device.memory_reserved_bytes);
        }
    }
}
