//! The real Alertmanager, and what it makes of alerts.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::http::{self, free_port};
use crate::metrics::Labels;
use crate::patience::PATIENCE;
use crate::server::Server;
use crate::tools;

/// A running Alertmanager; it ends with the value.
#[derive(Debug)]
pub struct Alertmanager {
    port: u16,
    server: Server,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Alert {
    pub labels: Labels,
    pub annotations: Labels,
    pub receivers: Vec<Receiver>,
    pub status: Status,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Receiver {
    pub name: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Fingerprints of the alerts that inhibit it.
    pub inhibited_by: Vec<String>,
}

impl Alertmanager {
    /// Starts the one of `tool` (`alertmanager` or `alertmanager-sid`) with this configuration.
    pub fn start(tool: &str, configuration: &Path) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let port = free_port()?;
        let data = folder.path().join("data");
        let program = tools::program(tool, "alertmanager-here");
        let templates = "../files/usr/share/prometheus/alertmanager";
        let mut command = Command::new(&program);
        command
            .current_dir(program.with_file_name(templates))
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!("--storage.path={}", data.display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--cluster.listen-address=");
        let server = Server::start(&mut command, port, folder)?;
        Ok(Self { port, server })
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Gives it alerts with these labels, as Prometheus does.
    pub fn fire(&self, alerts: &[Labels]) -> Result<()> {
        let alerts: Vec<_> = alerts.iter().map(|labels| serde_json::json!({ "labels": labels })).collect();
        let answer = http::post(
            self.port,
            "/api/v2/alerts",
            &[("Content-Type", "application/json")],
            &serde_json::to_vec(&alerts)?,
        )?;
        ensure!(answer.status == 200, "Alertmanager answered {}: {}", answer.status, answer.text()?);
        Ok(())
    }

    pub fn alerts(&self) -> Result<Vec<Alert>> {
        Ok(serde_json::from_slice(&http::get(self.port, "/api/v2/alerts")?.body)?)
    }

    /// Asks for all alerts until they `hold`, and returns them.
    pub fn wait_for(&self, what: &str, holds: impl Fn(&[Alert]) -> bool) -> Result<Vec<Alert>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let alerts = self.alerts()?;
            if holds(&alerts) {
                return Ok(alerts);
            }
            ensure!(Instant::now() < deadline, "waited in vain for {what}; alerts: {alerts:?}; log: {}", self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
