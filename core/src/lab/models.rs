//! The GPUs of all hosts by model.

use std::collections::BTreeMap;

use super::GpuState;
use crate::model::HostSnapshot;

/// The numbers of GPUs of one model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelTotals {
    /// All of them.
    pub all: usize,
    /// Free ones.
    pub free: usize,
    /// Those whose state is not known.
    pub unknown: usize,
    /// Those that do not answer, or run no program.
    pub unusable: usize,
}

/// The GPUs of all hosts by [`short_model`]; `?` for an unknown model.
pub fn models(hosts: &[HostSnapshot]) -> BTreeMap<String, ModelTotals> {
    let mut models = BTreeMap::<String, ModelTotals>::new();
    for (host, snapshot) in hosts.iter().filter_map(|host| Some((host, host.snapshot.as_deref()?))) {
        for device in snapshot.devices.iter().filter(|it| it.index.mig.is_none()) {
            let totals = models.entry(short_model(device.name.as_deref().unwrap_or("?"))).or_default();
            totals.all += 1;
            match GpuState::of(snapshot, device) {
                GpuState::Free if host.up => totals.free += 1,
                GpuState::Free | GpuState::Unknown => totals.unknown += 1,
                GpuState::Unsplit | GpuState::Down => totals.unusable += 1,
                GpuState::Used | GpuState::Held => {}
            }
        }
    }
    models
}

/// A model without vendor, form factor and kind of memory: `A100 80GB` for `NVIDIA A100-SXM4-80GB`.
pub fn short_model(name: &str) -> String {
    const LEFT_OUT: [&str; 6] = ["NVIDIA", "TESLA", "GEFORCE", "GENERATION", "PCIE", "GRAPHICS"];
    let words = name.split([' ', '-']).filter(|word| {
        let word = word.to_ascii_uppercase();
        !LEFT_OUT.contains(&word.as_str()) && !["SXM", "HBM"].iter().any(|start| word.starts_with(start))
    });
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    if words.is_empty() { name.to_owned() } else { words.join(" ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lab::gpus_of;
    use crate::lab::tests::{held_by, host, on};

    #[test]
    fn gpus_of_all_hosts_are_counted_by_model() {
        let a100 = json!({"name": "NVIDIA A100-SXM4-80GB"});
        let mut held = held_by(&["1"]);
        held["name"] = a100["name"].clone();
        let devices = json!([a100, {}, held, {"up": false, "name": "NVIDIA H200"}]);
        let one = host(devices, json!([]), json!([on("1", "outside")]));
        let hosts = [one.clone(), one];
        let models_of = |hosts: &[HostSnapshot]| -> Vec<_> {
            let models = models(hosts).into_iter();
            models.map(|(name, it)| (name, [it.all, it.free, it.unknown, it.unusable])).collect()
        };
        let expected = |a100: [usize; 4]| {
            [("?", [2, 0, 0, 0]), ("A100 80GB", a100), ("H200", [2, 0, 0, 2])].map(|(name, it)| (name.to_owned(), it))
        };
        assert_eq!(models_of(&hosts), expected([4, 2, 0, 0]));
        let down = hosts.map(|host| HostSnapshot { up: false, ..host });
        assert_eq!(models_of(&down), expected([4, 0, 2, 0]));
        assert_eq!(gpus_of(&down[0])[0].state, GpuState::Unknown);
    }

    #[test]
    fn a_model_is_named_by_what_distinguishes_it_from_others() {
        for (name, short) in [
            ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
            ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
            ("NVIDIA H100 80GB HBM3", "H100 80GB"),
            ("NVIDIA GeForce RTX 4090", "RTX 4090"),
            ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
            ("Tesla V100-SXM2-32GB", "V100 32GB"),
            ("NVIDIA Graphics", "NVIDIA Graphics"),
        ] {
            assert_eq!(short_model(name), short);
        }
    }
}
