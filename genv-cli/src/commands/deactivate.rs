//! `genv deactivate`

use clap::Args;
use genv_core::state::{MemberId, StoreError};

use crate::machine::Machine;
use crate::own_environment;
use crate::shell::Caller;

/// Let this shell leave its environment. With its last member the environment ends, and its devices become free.
#[derive(Debug, Args)]
pub(crate) struct Deactivate {}

impl Deactivate {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let eid = own_environment::active("deactivate")?;
        let caller = Caller::from_environment()?;
        let member = MemberId::Process(caller.pid());
        Machine::here()?.update(|state| {
            state.leave(&eid, &member);
            Ok::<_, StoreError>(())
        })?;
        Ok(caller.leave()?)
    }
}
