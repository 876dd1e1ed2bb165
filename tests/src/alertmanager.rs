//! The real Alertmanager, and what it makes of alerts.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::http::{self, free_port};
use crate::metrics::Labels;
use crate::patience::until;
use crate::server::Server;
use crate::tools;

pub struct Alertmanager {
    port: u16,
    server: Server,
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

    pub fn fire(&self, alerts: &[Labels]) -> Result<()> {
        let alerts: Vec<_> = alerts.iter().map(|labels| json!({ "labels": labels })).collect();
        let headers = [("Content-Type", "application/json")];
        let answer = http::post(self.port, "/api/v2/alerts", &headers, &serde_json::to_vec(&alerts)?)?;
        ensure!(answer.status == 200, "Alertmanager answered {}: {}", answer.status, answer.text()?);
        Ok(())
    }

    pub fn wait_for(&self, what: &str, holds: impl Fn(&[Value]) -> bool) -> Result<Vec<Value>> {
        let mut alerts = Vec::new();
        until(what, || {
            alerts = serde_json::from_slice(&http::get(self.port, "/api/v2/alerts")?.body)?;
            Ok(holds(&alerts))
        })
        .with_context(|| format!("{alerts:?}; log: {}", self.server.log()))?;
        Ok(alerts)
    }
}
