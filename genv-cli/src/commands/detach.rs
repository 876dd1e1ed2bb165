//! `genv detach`

use clap::Args;
use genv_core::state::{Facts, Permission, Reply, Request};

use super::shell::refresh;
use crate::announce::{Detached, QuietFlag};
use crate::machine::Machine;
use crate::own_environment::{self, EnvironmentView};
use crate::shell::Caller;
use crate::{completion, values};

/// Detach devices from the environment: by default all devices.
#[derive(Debug, Args)]
pub(crate) struct Detach {
    /// Detach only the devices with these indices, such as 2 or 2,3.
    #[arg(long, value_name = "INDEX", value_delimiter = ',', value_parser = values::index, allow_negative_numbers = true, add = completion::devices())]
    index: Vec<u32>,

    /// Update this shell's variables to the environment's devices, and change nothing else.
    #[arg(long, conflicts_with = "index")]
    refresh: bool,

    #[command(flatten)]
    quiet: QuietFlag,
}

const TASK: &str = "detach";

impl Detach {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let eid = own_environment::active_eid(TASK)?;
        if self.refresh {
            return refresh();
        }
        let mut machine = Machine::here()?;
        let caller = Caller::from_environment()?;
        let request = Request::Detach { eid: eid.clone(), permission: Permission::Owner, indices: self.index };
        let detached = machine.change(&request, &Facts::default(), |_, after, reply| {
            let gone = match reply {
                Reply::Detached(gone) => gone,
                _ => Vec::new(),
            };
            Ok((EnvironmentView::changed(after, &eid), gone))
        });
        let (shown, gone) = detached.map_err(|error| own_environment::of_own(error, TASK))?;
        let announcer = self.quiet.announcer(&caller);
        announcer.announce(&Detached { eid: &eid, gone: &gone, left: &shown.devices });
        Ok(caller.refresh(&shown.for_shell())?)
    }
}
