//! `genv monitor`

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use clap::Args;
use rustix::process::geteuid;

use crate::handover;
use crate::machine::Machine;
use crate::output::print_note;

const EXAMPLE: &str = "Example: serve metrics on http://this-machine:8000/metrics to all hosts of the network
  genv monitor
It runs genv-exporter, which has more options: 'genv-exporter --help'.";

/// Serve metrics to Prometheus, and write the files that Prometheus and Grafana need.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Monitor {
    /// Folder for the files of Prometheus and Grafana. Default: metrics/ in the state directory.
    #[arg(long, value_name = "FOLDER")]
    config_dir: Option<PathBuf>,

    /// Port to listen on, on all interfaces.
    #[arg(short, long, value_name = "PORT", default_value_t = 8000)]
    port: u16,

    /// Seconds between two collections.
    #[arg(short, long, value_name = "SECONDS", default_value = "10")]
    interval: u32,
}

/// Checks that a folder in the shared state directory is not a link or another user's.
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
        self.run_for_hosts(Vec::new())
    }

    /// Serves metrics of other hosts. `hosts`: flags of genv-exporter that name them.
    pub(super) fn run_for_hosts(self, hosts: Vec<OsString>) -> anyhow::Result<()> {
        let exporter = handover::find("genv-exporter")
            .context("cannot serve metrics: genv-exporter is neither next to genv nor on PATH. Install it")?;
        if let Err(why) = self.publish(&exporter) {
            print_note(&format!(
                "the files for Prometheus and Grafana were not written: {why:#}. Metrics are served nevertheless; \
                 choose another folder with --config-dir"
            ));
        }
        let flags = [format!("--web.listen-address=:{}", self.port), format!("--interval={}s", self.interval)];
        let flags = flags.into_iter().map(OsString::from);
        handover::exec_program(&exporter, flags.chain(hosts))
    }

    fn publish(&self, exporter: &Path) -> anyhow::Result<()> {
        let folder = match &self.config_dir {
            Some(folder) => folder.clone(),
            None => {
                let mut machine = Machine::here()?;
                let folder = machine.state_directory().join("metrics");
                // genv creates this directory with write access for all users, and the exporter would not.
                if !machine.state_directory().exists() {
                    machine.create_state_directory()?;
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_that_somebody_put_in_the_folders_place_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("metrics");
        check(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
        check(&folder).unwrap();
        let link = place.path().join("link");
        symlink(&folder, &link).unwrap();
        assert!(check(&link).unwrap_err().to_string().ends_with("link is a link, or belongs to another user"));
    }
}
