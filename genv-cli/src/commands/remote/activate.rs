//! `genv remote activate`

use std::path::Path;

use clap::Args;
use genv_core::model::{MemoryAmount, Snapshot};
use genv_core::state::allocate::{AttachRequest, DeviceUsage, Selection, choose};
use genv_core::state::{AttachmentState, DeviceState};
use genv_core::text::harmless;
use genv_remote::{HostEntry, login_shell};

use super::answers::{Answers, ask};
use super::hosts::HostFlags;
use crate::commands::free::{processes, told};
use crate::failure::Failure;
use crate::machine::tell;
use crate::output::counted;
use crate::{handover, values};

const EXAMPLE: &str =
    "Example: a shell with two A100 of which 40 GiB each are ours, on the first host that has them
  genv remote -H gpu[01-08] activate --gpus 2 --gpu-type a100 --gpu-memory 40gi

The shell there has to be set up: 'genv shell' there tells how.";

/// Start an environment in a shell on the first host with enough free devices.
///
/// Hosts where nobody's process runs on them come before others. ssh opens the shell; it ends with the environment.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Activate {
    /// Name the environment.
    #[arg(long, value_name = "NAME", value_parser = values::name, allow_negative_numbers = true)]
    name: Option<String>,

    /// How many devices it has. Without: none, or one if a type or memory is asked for.
    #[arg(long, value_name = "N", value_parser = values::gpus, allow_negative_numbers = true)]
    gpus: Option<u32>,

    /// What their model's name has in it, in whatever case: a100.
    #[arg(long, value_name = "TEXT")]
    gpu_type: Option<String>,

    /// How much memory of each it has, such as 4g, and share them. Without: whole devices.
    #[arg(long, value_name = "AMOUNT", value_parser = values::gpu_memory, allow_negative_numbers = true)]
    gpu_memory: Option<MemoryAmount>,

    /// Leave the prompt as it is.
    #[arg(long)]
    no_prompt: bool,
}

/// What a host would give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Offer {
    Unused,
    /// Somebody's process runs on a device that would be given.
    Used,
    /// There are devices as they are asked for, and genv there would choose others first.
    Others,
}

impl Activate {
    pub(super) fn run(self, flags: &HostFlags) -> anyhow::Result<()> {
        let collectors: &[&str] = if self.devices() > 0 {
            &["gpu", "state"]
        } else {
            &[]
        };
        let answers = ask(flags, collectors)?;
        answers.complain();
        let host = self.pick(&answers)?;
        if !flags.quiet {
            tell(&format!("opening a shell on {}", harmless(&host.name)));
        }
        handover::become_program(Path::new("ssh"), self.ssh(host, flags))
    }

    /// How many devices are asked for.
    fn devices(&self) -> u32 {
        let particular = self.gpu_type.is_some() || self.gpu_memory.is_some();
        self.gpus.unwrap_or(u32::from(particular))
    }

    fn pick<'a>(&self, answers: &'a Answers) -> Result<&'a HostEntry, Failure> {
        if answers.told.is_empty() {
            return Err(Failure::Silent(1));
        }
        let offers = answers.told.iter().filter_map(|(host, snapshot)| {
            let offer = self.offer(snapshot)?;
            Some((offer, host))
        });
        // The first of the list among equals.
        match offers.min_by_key(|(offer, _)| *offer) {
            Some((Offer::Unused | Offer::Used, host)) => Ok(host),
            Some((Offer::Others, host)) => Err(self.refused(answers, Some(host))),
            None => Err(self.refused(answers, None)),
        }
    }

    /// What an environment would get there; nothing if it would not get what is asked for.
    fn offer(&self, snapshot: &Snapshot) -> Option<Offer> {
        if !snapshot.installed {
            return None;
        }
        let gpus = told(snapshot);
        let is_used = |index: &u32| processes(*index, snapshot).is_some_and(|it| it > 0);
        let devices = gpus.values().filter(|device| device.up);
        let devices = devices.map(|device| DeviceState {
            index: device.index.gpu,
            total_memory: device
                .measurements
                .memory
                .map(|memory| MemoryAmount::from_bytes(memory.total_bytes)),
            attachments: device
                .attachments
                .iter()
                .map(|it| AttachmentState {
                    eid: it.eid.clone(),
                    gpu_memory: it.memory_bytes.map(MemoryAmount::from_bytes),
                    attached_timestamp_seconds: it.attached_timestamp_seconds,
                })
                .collect(),
        });
        let mut devices: Vec<DeviceState> = devices.collect();
        let request = AttachRequest {
            selection: Selection::Count(self.devices()),
            over_subscribe: false,
            usage: DeviceUsage {
                busy: gpus.keys().copied().filter(is_used).collect(),
                ..DeviceUsage::default()
            },
        };
        // As genv there will choose for a new environment.
        let choose = |devices: &[DeviceState]| choose(devices, "", self.gpu_memory, &request).ok();
        let given = choose(&devices)?;
        let is_wanted = |index: &u32| {
            let name = gpus.get(index).and_then(|device| device.name.as_deref());
            self.gpu_type.as_ref().is_none_or(|wanted| {
                name.is_some_and(|name| name.to_lowercase().contains(&wanted.to_lowercase()))
            })
        };
        if !given.iter().all(is_wanted) {
            devices.retain(|device| is_wanted(&device.index));
            return choose(&devices).map(|_| Offer::Others);
        }
        Some(if given.iter().any(is_used) {
            Offer::Used
        } else {
            Offer::Unused
        })
    }

    fn refused(&self, answers: &Answers, others: Option<&HostEntry>) -> Failure {
        let wanted = counted(self.devices() as usize, "free device");
        let kind = self.gpu_type.as_ref().map_or_else(String::new, |kind| {
            format!(" whose model is called '{}'", harmless(kind))
        });
        let memory = self.gpu_memory.map_or_else(String::new, |amount| {
            format!(" with {amount} of unclaimed memory")
        });
        let failed = match answers.failed() {
            0 => String::new(),
            failed => format!("; {failed} more failed"),
        };
        if let Some(host) = others {
            return Failure::NotEnoughDevices(format!(
                "cannot activate: {} has {wanted}{kind}{memory}, but genv there would choose others before them{failed}. Log \
                 in there, and take them by 'genv activate' and 'genv attach --index'",
                harmless(&host.name)
            ));
        }
        Failure::NotEnoughDevices(format!(
            "cannot activate: of {} none has genv and {wanted}{kind}{memory}{failed}. 'genv remote … devices' tells what \
             they have",
            counted(answers.told.len(), "host"),
        ))
    }

    /// The arguments of ssh. What it is configured to do it does: keys, agents, hosts on the way.
    fn ssh(&self, host: &HostEntry, flags: &HostFlags) -> Vec<String> {
        let mut arguments = vec![
            "-t".to_owned(),
            // A command of the configuration would be run instead of ours.
            "-oRemoteCommand=none".to_owned(),
            format!("-oConnectTimeout={}", flags.connect_timeout().as_secs()),
        ];
        if let Some(login) = host.user.as_deref().or(flags.login()) {
            arguments.extend(["-l".to_owned(), login.to_owned()]);
        }
        if let Some(port) = host.port {
            arguments.extend(["-p".to_owned(), port.to_string()]);
        }
        let prompt = if self.no_prompt { "0" } else { "1" };
        let mut variables = vec![
            ("GENV_PREACTIVATE", "1".to_owned()),
            ("GENV_PREACTIVATE_PROMPT", prompt.to_owned()),
        ];
        if self.gpus.is_some() || self.devices() > 0 {
            variables.push(("GENV_PREACTIVATE_GPUS", self.devices().to_string()));
        }
        if let Some(amount) = self.gpu_memory {
            variables.push(("GENV_PREACTIVATE_GPU_MEMORY", amount.to_string()));
        }
        if let Some(name) = &self.name {
            variables.push(("GENV_PREACTIVATE_ENVIRONMENT_NAME", name.clone()));
        }
        let command = login_shell(variables);
        arguments.extend(["--".to_owned(), host.name.clone(), command]);
        arguments
    }
}
