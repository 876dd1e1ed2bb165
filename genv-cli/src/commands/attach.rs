//! `genv attach`

use clap::Args;
use genv_core::state::{Permission, Reply, Request, Wish};

use super::shell::refresh;
use crate::announce::{Attached, AttachedDevice, QuietFlag};
use crate::choice::KindFlags;
use crate::failure::EXIT_CODES;
use crate::machine::Machine;
use crate::output::print_note;
use crate::own_environment::{self, EnvironmentView};
use crate::queue::{DeviceRequest, ForceFlag, Granted, WaitFlag, obtain};
use crate::shell::Caller;
use crate::{completion, values};

const EXAMPLE: &str = "Example: hold three devices in total
  genv attach --count 3

Hold one H100 or A100
  genv attach --count 1 --gpu-type h100,a100";

/// Attach devices to the environment: by default the configured number.
///
/// Surplus devices are detached. Several devices are of one model if possible.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
pub(crate) struct Attach {
    #[command(flatten)]
    which: SelectionFlags,

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
struct SelectionFlags {
    /// Devices to hold in total.
    #[arg(long, visible_alias = "gpus", value_name = "N", value_parser = values::gpus, allow_negative_numbers = true)]
    count: Option<u32>,

    /// Attach the devices with these indices in addition, such as 2 or 2,3.
    #[arg(long, value_name = "INDEX", value_delimiter = ',', value_parser = values::index, allow_negative_numbers = true, add = completion::devices(), conflicts_with_all = ["gpu_type", "gpu_memory_at_least"])]
    index: Vec<u32>,

    /// Hold the configured number of devices.
    #[arg(long)]
    config: bool,

    /// Update this shell's variables to the environment's devices, and change nothing else.
    #[arg(long, conflicts_with_all = ["wait", "gpu_type", "gpu_memory_at_least"])]
    refresh: bool,
}

const TASK: &str = "attach";

const NOTHING: &str = "nothing to attach: no number of devices is configured. 'genv config gpus N' configures it, '--count N' attaches \
                       N devices";

impl Attach {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let eid = own_environment::active_eid(TASK)?;
        if self.which.refresh {
            return refresh();
        }
        let mut machine = Machine::here()?;
        let caller = Caller::from_environment()?;
        let kind = self.kind.kind();
        let wish = Wish {
            indices: self.which.index.into_iter().collect(),
            count: self.which.count,
            kind: kind.clone(),
            over_subscribe: self.over_subscribe,
            ..self.wait.wish(self.force)
        };
        // Without a request there is nothing to ask the driver for.
        let names_devices = !wish.indices.is_empty() || wish.count.is_some() || !kind.is_any();
        let asks_driver = machine.state_of(&eid).is_ok_and(|state| {
            let environment = state.environments.iter().find(|it| it.eid == eid);
            environment.is_some_and(|it| names_devices || it.gpus.is_some())
        });
        let attach = Request::Attach { eid: eid.clone(), permission: Permission::Owner, wish };
        let request = DeviceRequest {
            request: &attach,
            eid: &eid,
            kind: &kind,
            caller: Some(&caller),
            wait: self.wait,
            asks_driver,
        };
        let attached = obtain(&mut machine, request, |granted| {
            let devices = |state| AttachedDevice::all(state, &eid, granted.models);
            let Granted { before, after, reply, .. } = granted;
            let is_attached = **reply != Reply::NothingConfigured;
            is_attached.then(|| (EnvironmentView::changed(after, &eid), devices(before), devices(after)))
        });
        match attached.map_err(|error| own_environment::of_own(error, TASK))? {
            Some((shown, before, now)) => {
                let announcer = self.quiet.announcer(&caller);
                announcer.announce(&Attached { eid: &eid, before: &before, now: &now });
                caller.refresh(&shown.for_shell())?;
            }
            None => print_note(NOTHING),
        }
        Ok(())
    }
}
