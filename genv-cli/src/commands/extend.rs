//! `genv extend`

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use genv_core::proc::{own_uid, username};
use genv_core::state::{ChangeError, LONGEST_LEASE};

use crate::failure::EXIT_CODES;
use crate::lease::{self, parse_lease};
use crate::machine::Machine;
use crate::output::{harmless, print};
use crate::{completion, own_environment, values};

const EXAMPLE: &str = "Example: two more hours for the environment of this shell
  genv extend 2h";

/// Extend the lease of an environment, or begin a lease.
///
/// A lease announces the end of the use of an environment. If it has ended or does not exist, the time counts from now.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
pub(crate) struct Extend {
    /// The additional time.
    #[arg(value_name = "DURATION", value_parser = parse_lease)]
    more: Duration,

    /// Environment of yours; without it: that of this shell.
    #[arg(long, visible_alias = "id", value_name = "EID", value_parser = values::eid, allow_negative_numbers = true, add = completion::environments())]
    eid: Option<String>,
}

const TASK: &str = "extend";

impl Extend {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let is_named = self.eid.is_some();
        let eid = match self.eid {
            Some(eid) => eid,
            None => own_environment::active(TASK)?,
        };
        let end = Machine::here()?.update(|state| {
            if is_named {
                // An environment that does not exist is an error of its own: this shell may be in another one.
                let environment = state.environment(&eid);
                let uid = environment.ok_or_else(|| ChangeError::NoSuchEnvironment { eid: eid.clone() })?.uid;
                ensure!(
                    uid == own_uid(),
                    "cannot extend: environment {} belongs to {}, who alone can extend its lease",
                    harmless(&eid),
                    harmless(&username(uid))
                );
            } else {
                own_environment::own(state.environments(), &eid, TASK)?;
            }
            let left = state.extend_lease(&eid, self.more);
            ensure!(
                left <= LONGEST_LEASE,
                "cannot extend: the lease would end in {}, and it ends in {} at most. Choose less",
                lease::days(left),
                lease::days(LONGEST_LEASE)
            );
            Ok::<_, anyhow::Error>(state.lease_end(&eid))
        })?;
        let until = end.map(lease::words).unwrap_or_default();
        Ok(print(format!("Environment {} has a lease {until}.\n", harmless(&eid)).as_bytes())?)
    }
}
