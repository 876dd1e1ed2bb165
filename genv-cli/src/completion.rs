//! Values for completion in shells, in addition to commands and flags.

use std::env;
use std::fs::File;
use std::io::Read as _;

use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};

use crate::machine::Machine;

/// The variable that a shell sets to get candidates.
pub(crate) const VARIABLE: &str = "GENV_COMPLETE";

/// Ids of the existing environments.
pub(crate) fn environments() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let Some(state) = state() else {
            return Vec::new();
        };
        let environments = state.environments.into_iter().filter(|it| is_plain(&it.eid));
        let candidate = |it: genv_core::state::EnvironmentState| {
            let name = it.name.filter(|name| is_plain(name));
            CompletionCandidate::new(it.eid).help(name.map(Into::into))
        };
        environments.map(candidate).collect()
    })
}

/// Indices of the devices that the state lists.
pub(crate) fn devices() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let devices = state().map(|state| state.devices).unwrap_or_default();
        let indices = devices.iter().map(|device| device.index.to_string());
        indices.map(CompletionCandidate::new).collect()
    })
}

/// The number of bytes that are read of ssh's configuration.
const MOST_CONFIGURATION_BYTES: u64 = 1 << 20;

/// Hosts that `~/.ssh/config` names in full, without included files.
pub(crate) fn hosts() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let mut configuration = String::new();
        let path = env::home_dir().map(|home| home.join(".ssh/config"));
        let file = path.and_then(|path| File::open(path).ok());
        if let Some(file) = file {
            // A file that is not UTF-8 gives no candidates.
            let _ = file.take(MOST_CONFIGURATION_BYTES).read_to_string(&mut configuration);
        }
        named_hosts(&configuration).map(CompletionCandidate::new).collect()
    })
}

fn named_hosts(configuration: &str) -> impl Iterator<Item = &str> {
    let lines = configuration.lines().filter_map(|line| {
        let (keyword, names) = line.trim().split_once([' ', '\t', '='])?;
        keyword.eq_ignore_ascii_case("host").then_some(names)
    });
    lines.flat_map(|names| names.split([' ', '\t', '=', '"'])).filter(|name| is_plain(name))
}

fn state() -> Option<genv_core::state::State> {
    Machine::here().ok()?.state().ok()
}

/// Whether a text has no special meaning for a shell: bash inserts candidates without quotes.
fn is_plain(text: &str) -> bool {
    let plain = |it: char| it.is_ascii_alphanumeric() || "._-".contains(it);
    !text.is_empty() && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_the_hosts_that_are_named_in_full() {
        let configuration = "Host gpu01 gpu02 *.lab !old\n  HostName 10.0.0.1\nhost = \"jump\"\n# Host no\nHostKeyAlias x\n\
                             Match host y\nHOST\ta;b gpu03\n";
        let hosts: Vec<&str> = named_hosts(configuration).collect();
        assert_eq!(hosts, ["gpu01", "gpu02", "jump", "gpu03"]);
    }
}
