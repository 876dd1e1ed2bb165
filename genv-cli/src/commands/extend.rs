//! `genv extend`

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use genv_core::proc::username;
use genv_core::state::{Facts, Refusal, Request};

use crate::failure::EXIT_CODES;
use crate::lease::{self, parse_lease};
use crate::machine::Machine;
use crate::output::{harmless, print};
use crate::{completion, own_environment, values};

const EXAMPLE: &str = "Example: extend the lease of this shell's environment by two hours
  genv extend 2h";

/// Extend the lease of an environment, or start a lease.
///
/// A lease announces when the use of an environment ends. Without a lease, or after its end, the time counts from now.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
pub(crate) struct Extend {
    /// Additional time.
    #[arg(value_name = "DURATION", value_parser = parse_lease)]
    more: Duration,

    /// Id of one of your environments. Default: this shell's environment.
    #[arg(long, visible_alias = "id", value_name = "EID", value_parser = values::eid, allow_negative_numbers = true, add = completion::environments())]
    eid: Option<String>,
}

const TASK: &str = "extend";

impl Extend {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let is_named = self.eid.is_some();
        let eid = match self.eid {
            Some(eid) => eid,
            None => own_environment::active_eid(TASK)?,
        };
        let request = Request::Extend { eid: eid.clone(), more: self.more };
        let end = Machine::here()?.change(&request, &Facts::default(), |_, after, _| Ok(after.lease_end(&eid)));
        let end = end.map_err(|error: anyhow::Error| match error.downcast_ref() {
            Some(Refusal::NotOwner { eid, uid, .. }) if is_named => anyhow!(
                "cannot extend: environment {} belongs to {}, who alone can extend its lease",
                harmless(eid),
                harmless(&username(*uid))
            ),
            // The error of a missing environment must not mention this shell, which may be in another one.
            _ if is_named => error,
            _ => own_environment::of_own(error, TASK),
        })?;
        let until = end.map(lease::describe_end).unwrap_or_default();
        Ok(print(format!("Environment {} has a lease {until}.\n", harmless(&eid)).as_bytes())?)
    }
}
