//! The three sources of a host, played from a scenario.

mod gpus;
mod processes;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::SystemTime;

use genv_core::collect::{Clock, HostSources};
use genv_core::proc::ProcessSource;
use genv_core::state::StateSource;

use super::definition::{Host, Scenario};
use super::engine::Engine;
use super::view::HostAt;
use gpus::SimulatedGpus;
use processes::SimulatedProcesses;
use state::SimulatedState;

/// Sources of the real processes and environments that a scenario may leave to this machine.
pub struct RealSources {
    /// `/proc`.
    pub processes: Box<dyn ProcessSource>,
    /// The state directory.
    pub state: Box<dyn StateSource>,
}

/// The sources of every host of a scenario. `hostname` is for a host that the scenario does not name.
pub fn sources(
    engine: &Arc<Engine>,
    clock: &Clock,
    hostname: Option<&str>,
    mut real: impl FnMut() -> RealSources,
) -> Vec<HostSources> {
    let scenario = engine.scenario();
    let play = |host: &Host| {
        let stage = || Stage { engine: Arc::clone(engine), clock: Arc::clone(clock), host: host.name.clone() };
        let real = real();
        HostSources {
            hostname: match hostname {
                Some(hostname) if !host.named => hostname.to_owned(),
                _ => host.name.clone(),
            },
            gpu: Box::new(SimulatedGpus::new(stage())),
            processes: Box::new(SimulatedProcesses::new(stage(), real.processes)),
            state: Box::new(SimulatedState::new(stage(), real.state)),
        }
    };
    scenario.hosts.iter().map(play).collect()
}

/// Where one host of a scenario is found, now.
struct Stage {
    engine: Arc<Engine>,
    clock: Clock,
    host: String,
}

impl Stage {
    fn scenario(&self) -> Arc<Scenario> {
        self.engine.refreshed()
    }

    /// The host, unless the scenario was changed and has it no more.
    fn now<'a>(&self, scenario: &'a Scenario) -> Result<(HostAt<'a>, SystemTime), String> {
        let host = scenario.hosts.iter().find(|host| host.name == self.host);
        let host = host.ok_or_else(|| {
            let host = &self.host;
            format!("the scenario has no host {host} any more: put it back, or restart this program")
        })?;
        let now = (self.clock)();
        Ok((host.at(now), now))
    }
}
