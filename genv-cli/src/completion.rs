//! Values that shells offer on Tab, beyond the words that the command line itself knows.

use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};

use crate::machine::Machine;

/// The variable by which a shell asks for candidates.
pub(crate) const VARIABLE: &str = "GENV_COMPLETE";

/// Ids of the environments that there are.
pub(crate) fn environments() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let Some(state) = state() else {
            return Vec::new();
        };
        let environments = state
            .environments
            .into_iter()
            .filter(|it| is_plain(&it.eid));
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

fn state() -> Option<genv_core::state::State> {
    Machine::here().ok()?.state().ok()
}

/// Bash puts candidates into the command line as they are: none may mean something to it.
fn is_plain(text: &str) -> bool {
    let plain = |it: char| it.is_ascii_alphanumeric() || "._-".contains(it);
    !text.is_empty() && text.chars().all(plain)
}
