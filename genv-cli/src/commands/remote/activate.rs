//! `genv remote activate`

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clap::Args;
use genv_core::collect::occupation;
use genv_core::model::MemoryAmount;
use genv_core::state::allocate::{AttachRequest, DeviceKind, DeviceUsage, Occupation, Selection, choose};
use genv_core::state::{AttachmentState, DeviceState};
use genv_core::text::harmless;
use genv_remote::fetch::Fetched;
use genv_remote::{HostEntry, login_shell, protocol};

use super::devices::knows_environments;
use super::hosts::RemoteFlags;
use super::results::{HostResults, fetch_all};
use crate::choice::KindFlags;
use crate::commands::free::gpus_by_index;
use crate::failure::Failure;
use crate::output::{counted, print_note};
use crate::{handover, values};

const EXAMPLE: &str = "Example: start a shell with 40 GiB of each of two A100, on the first host that has them free
  genv remote -H gpu[01-08] activate --gpus 2 --gpu-type a100 --gpu-memory 40gi

Set up genv in the shell of that host: 'genv shell' there prints how.";

/// Start an environment in a shell on the first host with enough free devices.
///
/// Hosts whose free devices are known to have no process come first. ssh opens the shell, and the environment ends with it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Activate {
    /// Name the environment.
    #[arg(long, value_name = "NAME", value_parser = values::name, allow_negative_numbers = true)]
    name: Option<String>,

    /// Attach this number of devices. Default: none, or one with a type or an amount of memory.
    #[arg(long, value_name = "N", value_parser = values::gpus, allow_negative_numbers = true)]
    gpus: Option<u32>,

    #[command(flatten)]
    kind: KindFlags,

    /// Claim this memory of each device, such as 4g, and share the devices. Default: whole devices.
    #[arg(long, value_name = "AMOUNT", value_parser = values::gpu_memory, allow_negative_numbers = true)]
    gpu_memory: Option<MemoryAmount>,

    /// Do not show the environment in the prompt.
    #[arg(long)]
    no_prompt: bool,
}

/// The devices that a host would assign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Offer {
    /// These devices, at least one of them so occupied.
    Given(Occupation),
    /// The host has suitable devices, but its genv would choose others first.
    Others,
}

impl Activate {
    pub(super) fn run(self, flags: &RemoteFlags) -> anyhow::Result<()> {
        let collectors: &[&str] = if self.devices() > 0 { &["gpu", "state"] } else { &[] };
        let results = fetch_all(flags, collectors)?;
        results.print_failures();
        let host = self.pick(&results)?;
        if !flags.quiet {
            print_note(&format!("opening a shell on {}", harmless(&host.name)));
        }
        handover::exec_program(Path::new("ssh"), self.ssh(host, flags))
    }

    /// The number of requested devices.
    fn devices(&self) -> u32 {
        let particular = !self.kind.kind().is_any() || self.gpu_memory.is_some();
        self.gpus.unwrap_or(u32::from(particular))
    }

    fn pick<'a>(&self, results: &'a HostResults) -> Result<&'a HostEntry, Failure> {
        if results.fetched.is_empty() {
            return Err(Failure::Silent(1));
        }
        let offers = results.fetched.iter().filter_map(|(host, fetched)| {
            let offer = self.offer(fetched)?;
            Some((offer, host))
        });
        // Among equal offers the first host of the list counts.
        match offers.min_by_key(|(offer, _)| *offer) {
            Some((Offer::Given(_), host)) => Ok(host),
            Some((Offer::Others, host)) => Err(self.refused(results, Some(host))),
            None => Err(self.refused(results, None)),
        }
    }

    /// The offer of a host; absent if it does not have the requested devices.
    fn offer(&self, fetched: &Fetched) -> Option<Offer> {
        let snapshot = &fetched.snapshot;
        if !snapshot.installed || self.devices() > 0 && !knows_environments(snapshot) {
            return None;
        }
        let gpus = gpus_by_index(snapshot);
        let occupation = |index: &u32| occupation(*index, snapshot);
        let devices = gpus.values().filter(|device| device.up && !device.mig_unsplit);
        let devices = devices.map(|device| DeviceState {
            index: device.index.gpu,
            total_memory: device.measurements.memory.map(|memory| MemoryAmount::from_bytes(memory.total_bytes)),
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
        let name = |index: &u32| gpus.get(index).and_then(|it| it.name.clone());
        let named = gpus.keys().filter_map(|it| Some((*it, name(it)?)));
        let occupied = |wanted: Occupation| -> BTreeSet<u32> {
            gpus.keys().copied().filter(|it| occupation(it) == wanted).collect()
        };
        let (busy, unknown) = (occupied(Occupation::Used), occupied(Occupation::Unknown));
        let kind = self.kind.kind();
        // The choice of the host's genv for a new environment. genv 1.x ignores memory and kind, and assigns whole devices.
        let (shared, kind_there, models) = match fetched.program {
            protocol::HostProgram::Genv1 => (None, DeviceKind::default(), BTreeMap::new()),
            _ => (self.gpu_memory, kind.clone(), named.collect()),
        };
        let request = AttachRequest {
            kind: kind_there,
            usage: DeviceUsage { busy, unknown, models, ..DeviceUsage::default() },
            ..AttachRequest::new(Selection::Count(self.devices()))
        };
        let choose = |devices: &[DeviceState]| choose(devices, "", shared, &request).ok();
        let given = choose(&devices)?;
        let is_wanted = |index: &u32| {
            gpus.get(index).is_some_and(|device| {
                let memory = device.measurements.memory;
                let total = memory.map(|it| MemoryAmount::from_bytes(it.total_bytes));
                let is_of_kind = kind.accepts(device.name.as_deref(), total);
                let is_large_enough =
                    self.gpu_memory.zip(memory).is_none_or(|(wanted, memory)| wanted.bytes() <= memory.total_bytes);
                is_of_kind && is_large_enough
            })
        };
        if !given.iter().all(is_wanted) {
            devices.retain(|device| is_wanted(&device.index));
            return choose(&devices).map(|_| Offer::Others);
        }
        let given = given.iter().map(occupation).max();
        Some(Offer::Given(given.unwrap_or(Occupation::Unused)))
    }

    fn refused(&self, results: &HostResults, others: Option<&HostEntry>) -> Failure {
        let wanted = counted(self.devices() as usize, "free device");
        let kind = self.kind.kind();
        let memory = self.gpu_memory.map_or_else(String::new, |amount| format!(" with {amount} of unclaimed memory"));
        let failed = match results.failed() {
            0 => String::new(),
            failed => format!("; {failed} more failed"),
        };
        if let Some(host) = others {
            return Failure::NotEnoughDevices(format!(
                "cannot activate: {} has {wanted}{kind}{memory}, but genv there would choose other devices first{failed}. Log \
                                 in there, and attach them by 'genv activate' and 'genv attach --index'",
                harmless(&host.name)
            ));
        }
        Failure::NotEnoughDevices(format!(
            "cannot activate: of {} none has genv and {wanted}{kind}{memory}{failed}. 'genv remote … devices' lists their \
                         devices",
            counted(results.fetched.len(), "host"),
        ))
    }

    /// The arguments of ssh, which uses its own configuration of keys, agents and jump hosts.
    fn ssh(&self, host: &HostEntry, flags: &RemoteFlags) -> Vec<String> {
        let mut arguments = vec![
            "-t".to_owned(),
            // Otherwise ssh would run the command of its configuration.
            "-oRemoteCommand=none".to_owned(),
            format!("-oConnectTimeout={}", flags.hosts.connect_timeout().as_secs()),
        ];
        if let Some(login) = host.user.as_deref().or(flags.hosts.login()) {
            arguments.extend(["-l".to_owned(), login.to_owned()]);
        }
        if let Some(port) = host.port {
            arguments.extend(["-p".to_owned(), port.to_string()]);
        }
        let prompt = if self.no_prompt { "0" } else { "1" };
        let mut variables = vec![("GENV_PREACTIVATE", "1".to_owned()), ("GENV_PREACTIVATE_PROMPT", prompt.to_owned())];
        if self.gpus.is_some() || self.devices() > 0 {
            variables.push(("GENV_PREACTIVATE_GPUS", self.devices().to_string()));
        }
        if let Some(amount) = self.gpu_memory {
            variables.push(("GENV_PREACTIVATE_GPU_MEMORY", amount.to_string()));
        }
        let kind = self.kind.kind();
        if !kind.types.is_empty() {
            variables.push(("GENV_PREACTIVATE_GPU_TYPE", kind.types.join(",")));
        }
        if let Some(least) = kind.memory_at_least {
            variables.push(("GENV_PREACTIVATE_GPU_MEMORY_AT_LEAST", least.to_string()));
        }
        if let Some(name) = &self.name {
            variables.push(("GENV_PREACTIVATE_ENVIRONMENT_NAME", name.clone()));
        }
        let command = login_shell(variables);
        arguments.extend(["--".to_owned(), host.name.clone(), command]);
        arguments
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use genv_core::model::{CollectorStatus, Device, Snapshot};
    use serde_json::{Value, json};

    use super::*;

    const GIB: u64 = 1 << 30;

    const UNUSED: Option<Offer> = Some(Offer::Given(Occupation::Unused));

    /// The arguments after `genv remote`, without the name of the command.
    #[derive(Parser)]
    struct RemoteArguments {
        #[command(flatten)]
        flags: RemoteFlags,
        #[command(flatten)]
        activate: Activate,
    }

    fn line(words: &str) -> RemoteArguments {
        RemoteArguments::parse_from([""].into_iter().chain(words.split(' ')))
    }

    /// A host with devices: the memory of each in GiB, and the amounts that environments hold. `None`: the whole device.
    fn host(program: protocol::HostProgram, devices: &[(u64, &[Option<u64>])]) -> Fetched {
        let device = |(index, (memory, held)): (usize, &(u64, &[Option<u64>]))| {
            let memory = memory * GIB;
            let attachments = held
                .iter()
                .map(|held| json!({"eid": "e", "memory_bytes": held.map(|it| it * GIB), "share_ratio": 1.0}));
            json!({
                "index": index.to_string(),
                "uuid": format!("GPU-{index}"),
                "up": true,
                "processes_measured": true,
                "measurements": {"memory": {"total_bytes": memory, "used_bytes": 0, "free_bytes": memory}},
                "attachments": attachments.collect::<Vec<Value>>(),
            })
        };
        let devices: Vec<Value> = devices.iter().enumerate().map(device).collect();
        let snapshot = Snapshot {
            hostname: "gpu01".to_owned(),
            timestamp_seconds: 1_795_200_000.0,
            interval_seconds: 10.0,
            installed: true,
            collectors: [("state".to_owned(), CollectorStatus { current: true, ..CollectorStatus::default() })].into(),
            devices: serde_json::from_value(devices.into()).unwrap(),
            ..Snapshot::default()
        };
        Fetched { snapshot, program, clock_ahead_seconds: None }
    }

    #[test]
    fn a_host_with_genv_1_offers_only_whole_free_devices_that_are_large_enough() {
        use protocol::HostProgram::{Genv, Genv1};
        let offer =
            |program, words, devices: &[(u64, &[Option<u64>])]| line(words).activate.offer(&host(program, devices));
        let one = "-H x --gpu-memory 8gi";
        // Half of the device is free, and genv 1.x assigns whole devices.
        assert_eq!(offer(Genv, one, &[(16, &[Some(8)])]), UNUSED);
        assert_eq!(offer(Genv1, one, &[(16, &[Some(8)])]), None);
        assert_eq!(offer(Genv, one, &[(16, &[None])]), None);
        assert_eq!(offer(Genv1, one, &[(16, &[None])]), None);
        assert_eq!(offer(Genv1, one, &[(16, &[Some(8)]), (16, &[])]), UNUSED);
        let two = "-H x --gpus 2 --gpu-memory 8gi";
        assert_eq!(offer(Genv1, two, &[(16, &[Some(8)]), (16, &[])]), None);
        assert_eq!(offer(Genv, two, &[(16, &[Some(8)]), (16, &[])]), UNUSED);
        // genv 1.x would assign the small device first; this genv skips it.
        assert_eq!(offer(Genv1, one, &[(4, &[])]), None);
        assert_eq!(offer(Genv1, one, &[(4, &[]), (16, &[])]), Some(Offer::Others));
        assert_eq!(offer(Genv, one, &[(4, &[]), (16, &[])]), UNUSED);
    }

    #[test]
    fn hosts_whose_devices_are_known_to_be_unused_come_first_and_those_in_mig_mode_without_parts_are_none() {
        let offer = |change: &dyn Fn(&mut [Device])| {
            let mut host = host(protocol::HostProgram::Genv, &[(16, &[]), (16, &[])]);
            change(&mut host.snapshot.devices);
            line("-H x --gpus 1").activate.offer(&host)
        };
        let unknown = offer(&|devices| devices.iter_mut().for_each(|it| it.processes_measured = false));
        assert_eq!(unknown, Some(Offer::Given(Occupation::Unknown)));
        assert!(UNUSED < unknown && unknown < Some(Offer::Given(Occupation::Used)));
        assert_eq!(offer(&|devices| devices[0].processes_measured = false), UNUSED, "the other device");
        assert_eq!(offer(&|devices| devices[0].mig_unsplit = true), UNUSED, "the other device");
        assert_eq!(offer(&|devices| devices.iter_mut().for_each(|it| it.mig_unsplit = true)), None);
        let mut without_environments = host(protocol::HostProgram::Genv, &[(16, &[])]);
        without_environments.snapshot.collectors.clear();
        assert_eq!(line("-H x --gpus 1").activate.offer(&without_environments), None);
    }

    #[test]
    fn the_login_name_is_from_the_host_then_the_flag_then_the_configuration_of_ssh() {
        for (words, expected) in [
            ("-H gpu01", &["gpu01"][..]),
            ("-l alice -H gpu01", &["-l", "alice", "gpu01"]),
            ("-H bob@gpu01", &["-l", "bob", "gpu01"]),
            ("-l alice -H bob@gpu01", &["-l", "bob", "gpu01"]),
            ("-l alice -H gpu01:2222", &["-l", "alice", "-p", "2222", "gpu01"]),
        ] {
            let RemoteArguments { flags, activate } = line(words);
            let host = flags.hosts.list().unwrap().into_iter().next().unwrap();
            let arguments = activate.ssh(&host, &flags);
            let [command @ .., _] = &arguments[..] else { panic!("{words}: {arguments:?}") };
            let before = ["-t", "-oRemoteCommand=none", "-oConnectTimeout=10"];
            let (name, login) = expected.split_last().unwrap();
            assert_eq!(command, [&before, login, &["--", name]].concat(), "{words}");
        }
    }
}
