//! `genv config`

use std::io::{self, Write as _};
use std::path::Path;

use clap::{Args, ValueEnum};
use genv_core::state::{Configuration, ConfigurationChange, Facts, Permission, Request};

use super::home;
use super::shell::refresh;
use crate::announce::{Announcer, Configured};
use crate::failure::Failure;
use crate::local_config::Source;
use crate::machine::Machine;
use crate::output::{harmless, print_note};
use crate::own_environment::{self, EnvironmentView};
use crate::shell::Caller;
use crate::values;

const EXAMPLE: &str = "Example: configure two devices, save this for new environments in this directory, and attach
  genv config gpus 2
  mkdir -p .genv && genv config --save
  genv attach";

/// Show or change the configuration of the environment.
///
/// A change does not affect attached devices until 'genv attach'.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Config {
    /// Value to show or change. Default: show all.
    field: Option<ConfigField>,

    /// New value. Default: show the present one.
    #[arg(requires = "field", allow_negative_numbers = true)]
    value: Option<String>,

    /// Remove the value, or all values.
    #[arg(long, conflicts_with_all = ["value", "load"])]
    clear: bool,

    /// Load all values from the folder or file that 'genv home' prints.
    #[arg(long)]
    load: bool,

    /// Save all values to the .genv folder, which takes precedence over a file beside it.
    #[arg(long)]
    save: bool,

    /// Print nothing.
    #[arg(short, long)]
    quiet: bool,

    /// Update this shell's variables to the configuration, and change nothing else.
    #[arg(long, conflicts_with_all = ["field", "clear", "load", "save"])]
    refresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ConfigField {
    Name,
    Gpus,
    GpuMemory,
}

const TASK: &str = "configure";

impl Config {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let eid = own_environment::active_eid(TASK)?;
        if self.refresh {
            return refresh();
        }
        let mut machine = Machine::here()?;
        let loaded_from = match self.load {
            true => Some(home::source("load the configuration")?),
            false => None,
        };
        let loaded = loaded_from.as_ref().map(Source::load).transpose()?;
        // An invalid value is an error before the state is read.
        let change = self.change(loaded.map(|it| it.configuration))?;
        let saved_to = match self.save {
            true => Some(home::source("save the configuration")?),
            false => None,
        };
        let changed = self.value.is_some() || self.clear || self.load;
        let caller = (changed || self.save).then(Caller::from_environment);
        let announcer = caller.as_ref().and_then(|it| it.as_ref().ok());
        let announcer = announcer.map(Announcer::of);
        let (before, configuration) = if let Some(caller) = caller.filter(|_| changed) {
            let caller = caller?;
            let request = Request::Configure { eid: eid.clone(), permission: Permission::Owner, change };
            let configured = machine.change(&request, &Facts::default(), |before, after, _| {
                Ok((before.configuration(&eid)?, EnvironmentView::changed(after, &eid)))
            });
            let (before, shown) = configured.map_err(|error| own_environment::of_own(error, TASK))?;
            caller.refresh(&shown.for_shell())?;
            (before, shown.configuration)
        } else {
            let state = machine.state()?;
            let environment = own_environment::find_own(&state.environments, &eid, TASK)?;
            let configuration = own_environment::configuration(environment);
            (configuration.clone(), configuration)
        };
        if let Some(source) = &saved_to {
            source.save(&configuration)?;
        }
        if let Some(announcer) = announcer {
            announcer.unless(self.quiet).announce(&Configured {
                before: &before,
                now: &configuration,
                loaded: loaded_from.as_ref().map(Source::path),
                saved: saved_to.as_ref().map(Source::folder).as_deref(),
            });
        }
        if let Some(source) = saved_to.filter(|_| !self.quiet)
            && let Some(file) = source.behind_folder()
        {
            note_precedence(&source.folder(), &file);
        }
        if self.quiet || self.clear || self.value.is_some() {
            return Ok(());
        }
        Ok(io::stdout().write_all(text(&configuration, self.field).as_bytes())?)
    }

    /// The new values, on the basis of a loaded configuration.
    fn change(&self, loaded: Option<Configuration>) -> Result<ConfigurationChange, Failure> {
        let mut change = ConfigurationChange { base: loaded, ..ConfigurationChange::default() };
        let value = self.value.as_deref();
        match self.field {
            Some(_) if value.is_none() && !self.clear => {}
            Some(ConfigField::Name) => change.name = Some(parsed("name", value, values::name)?),
            Some(ConfigField::Gpus) => change.gpus = Some(parsed("gpus", value, values::gpus)?),
            Some(ConfigField::GpuMemory) => {
                change.gpu_memory = Some(parsed("gpu-memory", value, values::gpu_memory)?);
            }
            None if self.clear => change.base = Some(Configuration::default()),
            None => {}
        }
        Ok(change)
    }
}

/// Notes that a file beside the saved folder has no effect any more.
fn note_precedence(folder: &Path, file: &Path) {
    let shown = |path: &Path| harmless(&path.display().to_string());
    let (folder, file) = (shown(folder), shown(file));
    print_note(&format!("{folder} takes precedence over {file}, which has no effect while the folder is there"));
}

fn parsed<T, E: ToString>(
    field: &str,
    value: Option<&str>,
    parse: fn(&str) -> Result<T, E>,
) -> Result<Option<T>, Failure> {
    let Some(value) = value else { return Ok(None) };
    let parsed = parse(value).map_err(|why| {
        let shown: String = value.chars().take(40).collect();
        let (shown, why) = (harmless(&shown), why.to_string());
        Failure::Usage(format!("cannot set {field} to '{shown}': {why}"))
    })?;
    Ok(Some(parsed))
}

/// The configuration in the format of genv 1.4.3. Missing values are omitted.
fn text(configuration: &Configuration, field: Option<ConfigField>) -> String {
    let name = configuration.name.as_deref().map(harmless);
    let gpus = configuration.gpus.map(|gpus| gpus.to_string());
    let gpu_memory = configuration.gpu_memory.map(|amount| amount.to_string());
    let line = |value: Option<String>| value.map_or_else(String::new, |value| value + "\n");
    match field {
        Some(ConfigField::Name) => line(name),
        Some(ConfigField::Gpus) => line(gpus),
        Some(ConfigField::GpuMemory) => line(gpu_memory),
        None => [("gpu-memory", gpu_memory), ("gpus", gpus), ("name", name)]
            .into_iter()
            .map(|(key, value)| line(value.map(|value| format!("{key}: {value}"))))
            .collect(),
    }
}
