//! Processes whose device was taken, and which the pace puts off: they are judged again when their turn comes.

use anyhow::{Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, is_alive, sleeper, victim};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::until;
use genv_tests::process::Sleeper;
use genv_tests::state::{self, Environment};

/// Processes of a job: more than one user may lose in a cycle.
const JOB: usize = 21;

fn config(rules: &str) -> String {
    format!("version: 1\nmode: enforce\nbreaker: {{share_of_users: 1, signals_per_minute: 8}}\nrules: [{rules}]\n")
}

/// An environment with device 0, a member, and a job of many processes that use the device.
struct Lab {
    enforcer: Enforcer,
    member: Sleeper,
    _processes: Vec<Sleeper>,
    pids: Vec<u32>,
}

impl Lab {
    /// With an enforcer that takes the device at once, until processes wait for their turn.
    fn new(selector: &str) -> Result<Self> {
        let member = sleeper(&[])?;
        let processes = (0..JOB).map(|_| sleeper(&[("GENV_ENVIRONMENT_ID", "E")]));
        let processes: Vec<Sleeper> = processes.collect::<Result<_>>()?;
        let pids: Vec<u32> = processes.iter().map(Sleeper::pid).collect();
        let rule = format!("kind: max-devices-per-user, limit: 0, action: detach, for: 0s, warn: []{selector}");
        let setup = Setup::new(&used_by(&pids), &config(&format!("{{{rule}}}")))?;
        let environment = Environment::new("E", victim(), member.pid(), &[0]);
        state::write(&setup.genv_directory(), 2, &[environment])?;
        let lab = Self { enforcer: setup.start()?, member, _processes: processes, pids };
        lab.wait_for_waiting(true)?;
        Ok(lab)
    }

    /// Waits until processes wait, or do not wait any more, for their turn to end.
    fn wait_for_waiting(&self, some: bool) -> Result<()> {
        let left = self.enforcer.setup().state_directory().join("left.json");
        until("processes wait for their turn, or none does", || Ok(left.exists() == some))
    }

    /// Of the 8 signals and devices of a minute, one user may lose 6.
    fn ends_six_at_most(&self) -> Result<()> {
        self.wait_for_waiting(false)?;
        self.enforcer.wait_for_cycles(2)?;
        let alive = self.pids.iter().filter(|pid| is_alive(**pid)).count();
        ensure!(alive >= JOB - 6, "{alive}: {}", self.enforcer.log());
        Ok(())
    }
}

#[test]
fn processes_that_wait_for_their_turn_go_on_where_their_rule_is_taken_out() -> Result<()> {
    let lab = Lab::new("")?;
    lab.enforcer.setup().rewrite_config(&config(""))?;
    lab.ends_six_at_most()
}

#[test]
fn processes_that_wait_for_their_turn_go_on_where_they_work_on_another_device_by_then() -> Result<()> {
    let lab = Lab::new(", match: {devices: [0]}")?;
    let setup = lab.enforcer.setup();
    let environment = Environment::new("E", victim(), lab.member.pid(), &[1]);
    state::write(&setup.genv_directory(), 2, &[environment])?;
    // The remaining processes work together: each uses more than 5 %, and all use no more than the whole device.
    let left = || -> Vec<u32> {
        let pids = lab.pids.iter().copied();
        pids.filter(|pid| is_alive(*pid)).collect()
    };
    // The detach and five signals are six acts against the user.
    until("five have ended", || Ok(left().len() == JOB - 5))?;
    let works = "memory: 1gi}, {index: 1, memory: 1gi, utilization: 0.06}]";
    let works = used_by(&left()).replace("memory: 1gi}]", works);
    setup.rewrite_scenario(&works)?;
    lab.ends_six_at_most()
}
