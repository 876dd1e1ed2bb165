use std::time::Duration;

use genv_core::model::MemoryAmount;
use genv_core::state::MemberState;
use genv_core::state::allocate::DeviceKind;

use super::*;
use crate::lease;

fn device(index: u32, model: Option<&str>, total: Option<&str>, claimed: Option<&str>) -> AttachedDevice {
    let amount = |text: &str| MemoryAmount::from_person(text).unwrap();
    AttachedDevice { index, model: model.map(str::to_owned), total: total.map(amount), claimed: claimed.map(amount) }
}

#[test]
fn devices_of_one_model_are_listed_together() {
    let (a100, t4) = (Some("A100"), Some("T4"));
    let all = Some("40gi");
    for (devices, expected) in [
        (vec![], "no device"),
        (vec![device(0, None, None, None)], "device 0"),
        (vec![device(0, None, all, None)], "device 0 (40.0 GiB)"),
        (vec![device(0, a100, None, None)], "device 0 (A100)"),
        (vec![device(0, None, None, Some("4g"))], "device 0 (4g of its memory)"),
        (
            vec![device(0, a100, all, None), device(1, t4, Some("15gi"), None), device(2, a100, all, None)],
            "devices 0, 2 (A100, 40.0 GiB each) and device 1 (T4, 15.0 GiB)",
        ),
        (
            vec![device(0, a100, all, Some("4g")), device(1, a100, all, None)],
            "device 0 (A100, 4g of 40.0 GiB) and device 1 (A100, 40.0 GiB)",
        ),
        (vec![device(0, Some("\u{1b}[2J"), None, None)], "device 0 (\\u{1b}[2J)"),
    ] {
        assert_eq!(described(&devices), expected);
    }
}

#[test]
fn the_loaded_values_are_listed_with_their_file() {
    let configuration = Configuration { gpus: Some(0), ..Configuration::default() };
    let loaded = LocalConfig {
        configuration: configuration.clone(),
        kind: DeviceKind {
            types: vec!["a100".to_owned(), "\u{1b}[2J".to_owned()],
            memory_at_least: Some(MemoryAmount::from_person("40g").unwrap()),
        },
        lease: Some(Duration::from_secs(8 * 3600)),
    };
    let activated = Activated {
        eid: "e1",
        activation: Activation::Created,
        devices: &[],
        configuration: &configuration,
        lease_end: None,
        loaded: Some((Path::new("/\u{1b}[2J/genv.toml"), loaded)),
    };
    assert_eq!(
        activated.to_string(),
        "started environment e1 without devices; loaded gpus 0, gpu-type a100 or \\u{1b}[2J, gpu-memory-at-least 40g, for 8h \
         from /\\u{1b}[2J/genv.toml"
    );
}

#[test]
fn the_end_of_a_lease_precedes_the_hint_about_attaching() {
    let activated = |gpus: Option<u32>| {
        let configuration = Configuration { gpus, ..Configuration::default() };
        let activated = Activated {
            eid: "e1",
            activation: Activation::Created,
            devices: &[],
            configuration: &configuration,
            lease_end: Some(0.0),
            loaded: None,
        };
        let ago = lease::describe_end(0.0);
        activated.to_string().replace(&ago, "LEASE")
    };
    assert_eq!(activated(None), "started environment e1 without devices LEASE: 'genv attach --count 1' attaches one");
    assert_eq!(activated(Some(2)), "started environment e1 without devices LEASE: 'genv attach' attaches 2");
    assert_eq!(activated(Some(0)), "started environment e1 without devices LEASE");
}

#[test]
fn remaining_members_are_named_or_counted() {
    let environment = |pids: &[u32], kernels: &[&str]| EnvironmentState {
        eid: "e1".to_owned(),
        uid: 0,
        members: pids.iter().map(|pid| MemberState::from(*pid)).collect(),
        kernel_ids: kernels.iter().map(|it| (*it).to_owned()).collect(),
        ..EnvironmentState::default()
    };
    for (environment, expected) in [
        (environment(&[], &[]), ""),
        (environment(&[7], &[]), ": process 7 remains"),
        (environment(&[7], &["k"]), ": process 7, Jupyter kernel k remain"),
        (environment(&[1, 2, 3, 4, 5], &[]), ": process 1, process 2, process 3 and 2 more remain"),
    ] {
        assert_eq!(remaining(&environment), expected);
    }
}
