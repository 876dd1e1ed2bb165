//! `genv config`

use std::io::{self, Write as _};
use std::path::Path;

use clap::{Args, ValueEnum};
use genv_core::state::Configuration;

use super::home;
use super::shell::refresh;
use crate::announce::{Announcer, Configured};
use crate::failure::Failure;
use crate::local_config::Source;
use crate::machine::{Machine, tell};
use crate::output::harmless;
use crate::own_environment::{self, Shown};
use crate::shell::Caller;
use crate::values;

const EXAMPLE: &str = "Example: two devices, from now on and in every environment activated below this directory
  genv config gpus 2
  mkdir -p .genv && genv config --save
  genv attach";

/// Show or change how the environment is configured.
///
/// Attached devices stay as they are until 'genv attach'.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Config {
    /// Which part of the configuration; without it: all.
    field: Option<Field>,

    /// What it shall be; without it: show it.
    #[arg(requires = "field", allow_negative_numbers = true)]
    value: Option<String>,

    /// Remove it.
    #[arg(long, conflicts_with_all = ["value", "load"])]
    clear: bool,

    /// Load all of it from the .genv folder or the file that 'genv home' prints.
    #[arg(long)]
    load: bool,

    /// Save all of it to the .genv folder, which takes precedence over a file beside it.
    #[arg(long)]
    save: bool,

    /// Show nothing.
    #[arg(short, long)]
    quiet: bool,

    /// Only show this shell how the environment is configured now.
    #[arg(long, conflicts_with_all = ["field", "clear", "load", "save"])]
    refresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Field {
    Name,
    Gpus,
    GpuMemory,
}

const TASK: &str = "configure";

impl Config {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let eid = own_environment::active(TASK)?;
        if self.refresh {
            return refresh();
        }
        let mut machine = Machine::here()?;
        let loaded_from = match self.load {
            true => Some(home::source("load the configuration")?),
            false => None,
        };
        let loaded = loaded_from.as_ref().map(Source::load).transpose()?;
        let change = Change {
            field: self.field,
            value: self.value.as_deref(),
            clear: self.clear,
            loaded: loaded.map(|it| it.configuration),
        };
        // What is wrong with it is told before anything is asked.
        change.of(Configuration::default())?;
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
            let (before, shown) = machine.update(|state| {
                own_environment::own(state.environments(), &eid, TASK)?;
                let before = state.configuration(&eid)?;
                state.configure(&eid, change.of(before.clone())?)?;
                Ok::<_, anyhow::Error>((before, Shown::changed(state, &eid)))
            })?;
            caller.refresh(&shown.for_shell())?;
            (before, shown.configuration)
        } else {
            let state = machine.state()?;
            let environment = own_environment::own(&state.environments, &eid, TASK)?;
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
}

/// A file does not contradict what was saved beside it, since it no longer counts.
fn note_precedence(folder: &Path, file: &Path) {
    let shown = |path: &Path| harmless(&path.display().to_string());
    let (folder, file) = (shown(folder), shown(file));
    tell(&format!("{folder} takes precedence over {file}, which has no effect while the folder is there"));
}

/// What is changed.
struct Change<'a> {
    field: Option<Field>,
    value: Option<&'a str>,
    clear: bool,
    loaded: Option<Configuration>,
}

impl Change<'_> {
    fn of(&self, known: Configuration) -> Result<Configuration, Failure> {
        let mut configuration = self.loaded.clone().unwrap_or(known);
        let value = self.value;
        match self.field {
            Some(_) if value.is_none() && !self.clear => {}
            Some(Field::Name) => configuration.name = parsed("name", value, values::name)?,
            Some(Field::Gpus) => configuration.gpus = parsed("gpus", value, values::gpus)?,
            Some(Field::GpuMemory) => {
                configuration.gpu_memory = parsed("gpu-memory", value, values::gpu_memory)?;
            }
            None if self.clear => configuration = Configuration::default(),
            None => {}
        }
        Ok(configuration)
    }
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

/// The configuration as genv 1.4.3 prints it: what is not configured is left out.
fn text(configuration: &Configuration, field: Option<Field>) -> String {
    let name = configuration.name.as_deref().map(harmless);
    let gpus = configuration.gpus.map(|gpus| gpus.to_string());
    let gpu_memory = configuration.gpu_memory.map(|amount| amount.to_string());
    let line = |value: Option<String>| value.map_or_else(String::new, |value| value + "\n");
    match field {
        Some(Field::Name) => line(name),
        Some(Field::Gpus) => line(gpus),
        Some(Field::GpuMemory) => line(gpu_memory),
        None => [("gpu-memory", gpu_memory), ("gpus", gpus), ("name", name)]
            .into_iter()
            .map(|(key, value)| line(value.map(|value| format!("{key}: {value}"))))
            .collect(),
    }
}
