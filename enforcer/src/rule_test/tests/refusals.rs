use super::*;

const HOST: &str = "scenario: {version: 1, users: {a: 1}, hosts: [{name: h, devices: [{}]}]}";
const CONFIG: &str = "config: {version: 1, rules: [{kind: idle}]}";

fn refused<const N: usize>(texts: [&str; N]) -> String {
    let errors = texts.map(|text| {
        let text = text.replace("CONFIG", CONFIG).replace("HOST", HOST);
        let error = TestFile::parse("rules_test.yaml", &text, Path::new("/nonexistent"));
        error.map(|_| text).unwrap_err().to_string()
    });
    errors.join("\n")
}

#[test]
fn what_cannot_be_tested_is_refused_with_its_place() {
    insta::assert_snapshot!(refused([
        "",
        "tests: []",
        "CONFIG\ntests: []",
        "CONFIG\nconfig_file: a.yaml\ntests: [{name: a, HOST, expect: [{at: 1m}]}]",
        "config_file: a.yaml\ntests: [{name: a, HOST, expect: [{at: 1m}]}]",
        "config: {version: 1, rules: [{kind: idle, below: 2}]}\ntests: []",
        "CONFIG\ntests:\n- {name: a, expect: [{at: 1m}]}",
        "CONFIG\ntests:\n- {name: a, scenario_file: lab.yaml, expect: [{at: 1m}]}",
        "CONFIG\ntests:\n- {name: a, scenario: {version: 1}, expect: [{at: 1m}]}",
        "CONFIG\ntests:\n- {name: a, scenario: {version: 1, hosts: [{nam: h}]}, expect: [{at: 1m}]}",
        "CONFIG\ntests:\n- {name: a, scenario: {version: 1, hosts: [{name: h, processes: [{pid: 7}]}]}, expect: [{at: 1m}]}",
        "CONFIG\ntests:\n- HOST\n  name: a\n  expect: []",
        "CONFIG\ntests:\n- HOST\n  name: a\n  expect: [{at: 2m}, {at: 1m}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  expect: [{at: 300d}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  expect: [{at: 1m, violation: []}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  expect: [{at: 1m, violations: [{rule: idel}]}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  expect: [{at: 1m, violations: }]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  expect: [{at: 1m, violations: [{rule: idle, stage: new}]}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  expect: [{at: 1m, actions: [{action: report, rule: idle}]}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  expect: [{at: 1m, actions: [{action: kill, rule: idle, device: x}]}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  interval: 1ms\n  expect: [{at: 1m}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  missing: [{host: g}]\n  expect: [{at: 1m}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  missing: [{host: h, from: 1m, until: 1m}]\n  expect: [{at: 1m}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  groups: {b: [staff]}\n  expect: [{at: 1m}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  stubborn: [7]\n  expect: [{at: 1m}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  pauses: [{from: 1m}]\n  expect: [{at: 1m}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  pauses: [{from: 2m, until: 1m}]\n  expect: [{at: 1m}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  waivers: [{user: a, until: 1m}]\n  expect: [{at: 1m}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  waivers: [{user: a, rules: [], until: 1m}]\n  expect: [{at: 1m}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  waivers: [{user: a, rules: [idel], until: 1m}]\n  expect: [{at: 1m}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  waivers: [{user: b, rules: [idle], until: 1m}]\n  expect: [{at: 1m}]",
        "CONFIG\ntests:\n- HOST\n  name: a\n  waivers: [{user: a, rules: [idle], from: 1m, until: 1m}]\n  expect: [{at: 1m}]",
    ]));
}
