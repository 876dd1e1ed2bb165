//! `genv monitor`

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use clap::Args;
use genv_core::state::StoreError;
use rustix::process::geteuid;

use crate::handover;
use crate::machine::{Machine, tell};

const EXAMPLE: &str = "Example: metrics on http://this-machine:8000/metrics, for everybody who can reach it
  genv monitor
It becomes genv-exporter, which has more to choose: 'genv-exporter --help'.";

/// Serve metrics to Prometheus, and write the files that Prometheus and Grafana need.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Monitor {
    /// Folder for the files of Prometheus and Grafana. Without: metrics/ in the state directory.
    #[arg(long, value_name = "FOLDER")]
    config_dir: Option<PathBuf>,

    /// Port to listen on, of all interfaces.
    #[arg(short, long, value_name = "PORT", default_value_t = 8000)]
    port: u16,

    /// Seconds between two collections.
    #[arg(short, long, value_name = "SECONDS", default_value = "10")]
    interval: u32,
}

/// Sees to it that nobody put a folder of their own, or a link to another one, where everybody may.
fn check(folder: &Path) -> anyhow::Result<()> {
    let found = match fs::symlink_metadata(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.with_context(|| folder.display().to_string())?,
    };
    let trusted = [0, geteuid().as_raw()].contains(&found.uid());
    anyhow::ensure!(found.is_dir() && trusted, "{} is a link, or belongs to another user", folder.display());
    Ok(())
}

impl Monitor {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        self.run_of(Vec::new())
    }

    /// The same of other hosts, which these flags of genv-exporter name.
    pub(super) fn run_of(self, hosts: Vec<OsString>) -> anyhow::Result<()> {
        let exporter = handover::find("genv-exporter")
            .context("cannot serve metrics: genv-exporter is neither next to genv nor on PATH. Install it")?;
        if let Err(why) = self.publish(&exporter) {
            tell(&format!(
                "the files for Prometheus and Grafana were not written: {why:#}. Metrics are served all the same; \
                 choose another folder with --config-dir"
            ));
        }
        let flags = [format!("--web.listen-address=:{}", self.port), format!("--interval={}s", self.interval)];
        let flags = flags.into_iter().map(OsString::from);
        handover::become_program(&exporter, flags.chain(hosts))
    }

    fn publish(&self, exporter: &Path) -> anyhow::Result<()> {
        let folder = match &self.config_dir {
            Some(folder) => folder.clone(),
            None => {
                let mut machine = Machine::here()?;
                let folder = machine.state_directory().join("metrics");
                // It belongs to everybody, which the exporter would not make it.
                if !machine.state_directory().exists() {
                    machine.update(|_| Ok::<_, StoreError>(()))?;
                }
                check(&folder)?;
                folder
            }
        };
        let published = Command::new(exporter)
            .arg("publish")
            .arg(&folder)
            .arg(format!("--exporter-address=127.0.0.1:{}", self.port))
            .status()
            .context("genv-exporter cannot be started")?;
        let folder = folder.display();
        anyhow::ensure!(published.success(), "genv-exporter could not publish to {folder}");
        Ok(())
    }
}
