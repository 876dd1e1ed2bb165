//! `genv attach`

use clap::Args;
use genv_core::state::EditableState;
use genv_core::state::allocate::AttachRequest;

use super::shell::refresh;
use crate::announce::{Attached, HeldDevice, QuietFlag};
use crate::choice::{KindFlags, selection};
use crate::failure::EXIT_CODES;
use crate::machine::{Machine, Survey, tell};
use crate::own_environment::{self, Shown};
use crate::queue::{Asking, ForceFlag, WaitFlag, obtain};
use crate::shell::Caller;
use crate::{completion, values};

const EXAMPLE: &str = "Example: exactly three devices, whatever is configured
  genv attach --count 3

One H100 or A100
  genv attach --count 1 --gpu-type h100,a100";

/// Attach devices to the environment: without a number as many as are configured.
///
/// What it has too many is given up. Several devices are of one model, if one model has enough of them.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
pub(crate) struct Attach {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    kind: KindFlags,

    #[command(flatten)]
    wait: WaitFlag,

    /// Take devices of others too, if there are not enough.
    #[arg(short, long, visible_alias = "allow-over-subscription")]
    over_subscribe: bool,

    #[command(flatten)]
    force: ForceFlag,

    #[command(flatten)]
    quiet: QuietFlag,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct Which {
    /// Devices to hold in total.
    #[arg(long, visible_alias = "gpus", value_name = "N", value_parser = values::gpus, allow_negative_numbers = true)]
    count: Option<u32>,

    /// Attach these devices too, such as 2 or 2,3.
    #[arg(long, value_name = "INDEX", value_delimiter = ',', value_parser = values::index, allow_negative_numbers = true, add = completion::devices(), conflicts_with_all = ["gpu_type", "gpu_memory_at_least"])]
    index: Vec<u32>,

    /// Have as many as are configured.
    #[arg(long)]
    config: bool,

    /// Only show this shell the devices that the environment has now.
    #[arg(long, conflicts_with_all = ["wait", "gpu_type", "gpu_memory_at_least"])]
    refresh: bool,
}

const TASK: &str = "attach";

impl Attach {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let eid = own_environment::active(TASK)?;
        if self.which.refresh {
            return refresh();
        }
        let mut machine = Machine::here()?;
        let caller = Caller::from_environment()?;
        let kind = self.kind.kind();
        let asking = Asking {
            eid: &eid,
            kind: &kind,
            caller: Some(&caller),
            over_subscribe: self.over_subscribe,
            force: self.force,
            wait: self.wait,
        };
        let attempt = |state: &mut EditableState, survey: &Survey| {
            let environment = own_environment::own(state.environments(), &eid, TASK)?;
            let number = self.which.count.or(environment.gpus);
            let attached = state.attached(&eid);
            let Some(selection) = selection(&self.which.index, number, &kind, &attached) else {
                return Ok(None);
            };
            let request = AttachRequest {
                selection,
                kind: kind.clone(),
                over_subscribe: self.over_subscribe,
                usage: survey.usage.clone(),
            };
            let before = HeldDevice::all(state, &eid, &survey.usage.models);
            state.attach(&eid, &request)?;
            let now = HeldDevice::all(state, &eid, &survey.usage.models);
            Ok(Some((Shown::changed(state, &eid), before, now)))
        };
        match obtain(&mut machine, asking, attempt)? {
            Some((shown, before, now)) => {
                let announcer = self.quiet.announcer(&caller);
                announcer.announce(&Attached { eid: &eid, before: &before, now: &now });
                caller.refresh(&shown.for_shell())?;
            }
            None => tell(
                "nothing to attach: no number of devices is configured. 'genv config gpus N' configures it, \
                 '--count N' attaches so many",
            ),
        }
        Ok(())
    }
}
