//! `genv detach`

use clap::Args;

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
        let (shown, gone) = machine.update(|state| {
            own_environment::find_own(state.environments(), &eid, TASK)?;
            let mut gone = Vec::new();
            for index in &self.index {
                gone.extend(state.detach(&eid, Some(*index))?);
            }
            if self.index.is_empty() {
                gone = state.detach(&eid, None)?;
            }
            gone.sort_unstable();
            Ok::<_, anyhow::Error>((EnvironmentView::changed(state, &eid), gone))
        })?;
        let announcer = self.quiet.announcer(&caller);
        announcer.announce(&Detached { eid: &eid, gone: &gone, left: &shown.devices });
        Ok(caller.refresh(&shown.for_shell())?)
    }
}
