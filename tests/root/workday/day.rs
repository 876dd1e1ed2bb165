//! A day in its course: who is there, what they use, and what the enforcer has told until now.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use genv_tests::enforcer::{Enforcer, is_alive};
use genv_tests::patience;
use rustix::process::Signal;

use crate::workday::books::{Key, Ledger};
use crate::workday::lab::{Actor, Fate, Parent, Shell, command_of, scenario};

/// A device that no environment gets.
pub(crate) const SPARE: u32 = 11;

pub(crate) struct Day {
    pub(crate) enforcer: Enforcer,
    pub(crate) shells: BTreeMap<&'static str, Shell>,
    /// Whose environment is which, and what each had in the morning.
    pub(crate) eids: BTreeMap<&'static str, String>,
    pub(crate) devices: BTreeMap<&'static str, Vec<u32>>,
    pub(crate) actors: Vec<Actor>,
    pub(crate) ledger: Ledger,
    pub(crate) scenario: String,
}

impl Day {
    /// Lets the driver tell who uses what, and notes what the enforcer tells.
    pub(crate) fn go_on(&mut self) -> Result<()> {
        let scenario = scenario(&self.actors);
        if scenario != self.scenario {
            self.enforcer.setup().rewrite_scenario(&scenario)?;
            self.scenario = scenario;
        }
        self.ledger.look(&self.enforcer)
    }

    pub(crate) fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<()> {
        patience::until(what, || {
            self.go_on()?;
            Ok(is_so(self))
        })
        .with_context(|| format!("{:#?}\n{}", self.ledger.now, self.enforcer.log()))
    }

    pub(crate) fn pid(&self, name: &str) -> u32 {
        let mut actors = self.actors.iter();
        let actor = actors.find(|actor| actor.name == name);
        actor.map_or(0, |actor| actor.pid)
    }

    pub(crate) fn has_ended(&self, name: &str) -> bool {
        !is_alive(self.pid(name))
    }

    /// How far a rule is with a process outside of any environment.
    pub(crate) fn stage_outside(&self, name: &str) -> Option<&str> {
        let subject = format!("process {}", self.pid(name));
        self.ledger.stage("non-env-processes", &subject)
    }

    /// What is told of the last device of an environment that is left idle.
    pub(crate) fn idle(&self, shell: &str) -> Key {
        let (eid, device) = (&self.eids[shell], self.devices[shell].last());
        let subject = device.map(|device| format!("environment {eid} on device {device}"));
        ("idle".to_owned(), subject.unwrap_or_default())
    }

    /// Starts a program in a shell, on some of the devices.
    pub(crate) fn start(
        &mut self,
        shell: &'static str,
        name: &'static str,
        (devices, gibibytes, utilization): (Vec<u32>, u32, f32),
        fate: Fate,
    ) -> Result<()> {
        let before = match fate {
            Fate::Ended(Signal::KILL) => "env --ignore-signal=TERM",
            _ => "",
        };
        let of = self.shells.get_mut(shell).context("no such shell")?;
        self.actors.push(Actor {
            name,
            pid: of.start(before)?,
            parent: Parent::Shell(shell),
            devices,
            gibibytes,
            utilization,
            fate,
        });
        Ok(())
    }

    /// Starts a program of a user in no environment; `claim` is what it says itself.
    pub(crate) fn stray(&mut self, user: &str, name: &'static str, claim: &str, fate: Fate) -> Result<()> {
        let mut command = command_of(user, "/bin/sleep");
        command.env("GENV_ENVIRONMENT_ID", claim);
        if claim.is_empty() {
            command.env_remove("GENV_ENVIRONMENT_ID");
        }
        let actor = Actor::outside(name, command.arg("1000000"), SPARE, fate)?;
        self.actors.push(actor);
        Ok(())
    }
}
