//! What holds for every scenario.

use proptest::prelude::*;

use super::*;

fn pattern() -> impl Strategy<Value = String> {
    prop_oneof![
        (0..=100_u32).prop_map(|percent| format!("{}", f64::from(percent) / 100.0)),
        (1..5000_u32, 0..50_u32, 50..=100_u32, 0..100_u32).prop_map(|(period, low, high, phase)| {
            let (low, high) = (f64::from(low) / 100.0, f64::from(high) / 100.0);
            format!("{{wave: {{period: {period}s, low: {low}, high: {high}, phase: {phase}s}}}}")
        }),
        (1..500_u32, 1..500_u32, 0..=100_u32).prop_map(|(first, second, percent)| {
            format!("{{steps: [[{first}s, {}], [{second}ms, 0]]}}", f64::from(percent) / 100.0)
        }),
    ]
}

fn during() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        (0..500_u32, 1..500_u32)
            .prop_map(|(from, length)| format!(", during: {{from: {from}s, until: {}s}}", from + length)),
        (100..200_u32, 0..50_u32, 51..100_u32)
            .prop_map(|(every, from, until)| format!(", during: {{every: {every}s, from: {from}s, until: {until}s}}")),
    ]
}

fn host() -> impl Strategy<Value = String> {
    prop::collection::vec((0..2_u32, pattern(), during()), 0..6).prop_map(|processes| {
        let mut text =
            "version: 1\nhosts:\n- name: a\n  devices: [{count: 2, power: {idle: 1, max: 700}}]\n  processes:\n"
                .to_owned();
        for (at, (device, pattern, during)) in processes.iter().enumerate() {
            text +=
                &format!("  - {{pid: {}, devices: [{{index: {device}, utilization: {pattern}}}]{during}}}\n", at + 1);
        }
        text.replace("processes:\n", if processes.is_empty() { "processes: []\n" } else { "processes:\n" })
    })
}

proptest! {
    #[test]
    fn energy_rises_and_is_what_power_adds_up_to(
        text in host(), start in 0..100_000_000_u64, milliseconds in 1..10_000_u64,
    ) {
        let scenario = engine(&text).scenario();
        for index in 0..2 {
            let device = |milliseconds: u64| {
                let now = at(0.0) + Duration::from_millis(milliseconds);
                scenario.hosts[0].at(now).device(index).unwrap()
            };
            let energy = |milliseconds| device(milliseconds).measured().energy_millijoules;
            prop_assert!(energy(start + 1) >= energy(start));
            let gained = energy(start + milliseconds) - energy(start);
            prop_assert!(gained >= milliseconds.saturating_sub(1), "less than idle: {gained}");
            prop_assert!(gained <= 700 * milliseconds + 1, "more than full: {gained}");
        }
    }

    #[test]
    fn no_device_is_ever_more_than_busy(text in host(), seconds in 0.0..100_000.0_f64) {
        let scenario = engine(&text).scenario();
        for device in scenario.hosts[0].at(at(seconds)).devices() {
            let sum: f64 = device.processes().map(|process| process.utilization_ratio).sum();
            prop_assert!(sum <= 1.0 + 1e-9, "{sum}");
            prop_assert!((device.measured().utilization_ratio - sum).abs() < 1e-9);
        }
    }

    #[test]
    fn any_text_is_a_scenario_or_an_error(text in "\\PC{0,80}") {
        if let Err(error) = Engine::from_text("lab.yaml", &text) {
            prop_assert!(error.to_string().starts_with("lab.yaml:"));
        }
    }
}
