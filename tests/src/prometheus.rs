//! The real Prometheus, and what it answers to PromQL.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::http::{self, Response, free_port};
use crate::metrics::Labels;
use crate::patience::PATIENCE;
use crate::server::Server;
use crate::tools;

/// Labels of a series, and its values with their Unix times.
pub type Series = (Labels, Vec<(f64, f64)>);

#[derive(Deserialize)]
struct RangeAnswer {
    data: RangeData,
}

#[derive(Deserialize)]
struct RangeData {
    result: Vec<RangeSeries>,
}

#[derive(Deserialize)]
struct RangeSeries {
    metric: Labels,
    values: Vec<(f64, String)>,
}

/// A running Prometheus; one that was started here ends with the value.
pub struct Prometheus {
    port: u16,
    own: Option<Server>,
}

impl Prometheus {
    /// One that somebody else runs, on this port of 127.0.0.1.
    pub const fn at(port: u16) -> Self {
        Self { port, own: None }
    }

    /// Starts `tool` (`prometheus` or `prometheus-3`), which scrapes `/metrics` of 127.0.0.1:`target` every second, with
    /// `honor_labels` as shipped scrape configurations have it, and with further lines.
    pub fn start_with(tool: &str, target: u16, more: &str) -> Result<Self> {
        let more: String = more.lines().map(|line| format!("  {line}\n")).collect();
        let configuration = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
             scrape_configs:\n\
             - job_name: genv\n\
             \x20 honor_labels: true\n\
             \x20 static_configs: [{{targets: ['127.0.0.1:{target}']}}]\n{more}"
        );
        Self::start_configured(tool, &configuration, &[])
    }

    pub fn start_configured(tool: &str, configuration: &str, flags: &[String]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("prometheus.yml");
        std::fs::write(&file, configuration)?;
        Self::start_in(folder, tool, free_port()?, &file, flags)
    }

    /// Starts `tool` on this port of 127.0.0.1 with a configuration file that lies beside its rules.
    pub fn start_on(tool: &str, port: u16, configuration: &Path) -> Result<Self> {
        Self::start_in(tempfile::tempdir()?, tool, port, configuration, &[])
    }

    fn start_in(
        folder: tempfile::TempDir,
        tool: &str,
        port: u16,
        configuration: &Path,
        flags: &[String],
    ) -> Result<Self> {
        let data = folder.path().join("data");
        let mut command = Command::new(tools::program(tool, "prometheus"));
        command
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .args(flags);
        let own = Some(Server::start(&mut command, port, folder)?);
        Ok(Self { port, own })
    }

    pub fn log(&self) -> String {
        self.own.as_ref().map(Server::log).unwrap_or_default()
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    pub fn query(&self, promql: &str) -> Result<Vec<(Labels, f64)>> {
        self.instant(&[("query", promql)])
    }

    pub fn query_at(&self, promql: &str, moment: SystemTime) -> Result<Vec<(Labels, f64)>> {
        self.instant(&[("query", promql), ("time", &unix_time(moment)?)])
    }

    fn instant(&self, parameters: &[(&str, &str)]) -> Result<Vec<(Labels, f64)>> {
        let data = self.ask("/api/v1/query", parameters)?;
        if data["resultType"] == "scalar" {
            let value = data["result"][1].as_str().context("no value")?.parse()?;
            return Ok(vec![(Labels::new(), value)]);
        }
        let elements = data["result"].as_array().context("no result")?;
        elements
            .iter()
            .map(|element| {
                let value = element["value"][1].as_str().context("no value")?;
                Ok((serde_json::from_value(element["metric"].clone())?, value.parse()?))
            })
            .collect()
    }

    /// Asks for a query's values from one moment to another, `step` apart: each series with pairs of Unix time and value.
    pub fn query_range(&self, promql: &str, from: SystemTime, to: SystemTime, step: Duration) -> Result<Vec<Series>> {
        let parameters = [
            ("query", promql),
            ("start", &unix_time(from)?),
            ("end", &unix_time(to)?),
            ("step", &step.as_secs_f64().to_string()),
        ];
        let response = self.request("/api/v1/query_range", &parameters)?;
        let answer: RangeAnswer = serde_json::from_slice(&response.body)
            .with_context(|| String::from_utf8_lossy(&response.body).into_owned())?;
        let series = answer.data.result.into_iter();
        series
            .map(|series| {
                let values = series.values.into_iter();
                let values = values.map(|(at, value)| Ok((at, value.parse()?)));
                Ok((series.metric, values.collect::<Result<_>>()?))
            })
            .collect()
    }

    pub fn value(&self, promql: &str) -> Result<f64> {
        match self.query(promql)?.as_slice() {
            [(_, value)] => Ok(*value),
            other => bail!("{promql} gives {other:?}, not one value"),
        }
    }

    pub fn wait_for(&self, promql: &str, holds: impl Fn(&[(Labels, f64)]) -> bool) -> Result<Vec<(Labels, f64)>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.query(promql)?;
            if holds(&answer) {
                return Ok(answer);
            }
            ensure!(
                Instant::now() < deadline,
                "waited in vain for {promql}; the last answer was {answer:?}; targets: {}",
                self.ask("/api/v1/targets", &[])?
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn wait_for_value(&self, promql: &str, wanted: f64) -> Result<()> {
        self.wait_for(
            promql,
            |answer| matches!(answer, [(_, value)] if (value - wanted).abs() <= wanted.abs() * 1e-9),
        )?;
        Ok(())
    }

    /// Asks the HTTP API, and returns `data` of its answer.
    pub fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value> {
        let response = self.request(path, parameters)?;
        let mut answer: Value = serde_json::from_slice(&response.body)?;
        ensure!(answer["status"] == "success", "{parameters:?}: {answer}");
        Ok(answer["data"].take())
    }

    /// Deletes series; it needs the flag `--web.enable-admin-api`.
    pub fn forget(&self, selector: &str) -> Result<()> {
        let path = "/api/v1/admin/tsdb/delete_series?match[]=";
        let path = format!("{path}{}", percent_encoded(selector));
        let response = http::post(self.port, &path, &[], &[])?;
        ensure!(response.status == 204, "{}", response.text()?);
        Ok(())
    }

    fn request(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Response> {
        let pairs: Vec<String> =
            parameters.iter().map(|(name, value)| format!("{name}={}", percent_encoded(value))).collect();
        http::get(self.port, &format!("{path}?{}", pairs.join("&")))
    }
}

/// Runs `promtool check metrics` of `tool` on a scrape: whether it exits with 0, and all that it says.
pub fn check_metrics(tool: &str, scrape: &[u8]) -> Result<(bool, String)> {
    let promtool = tools::program(tool, "promtool");
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child.stdin.take().context("no stdin")?.write_all(scrape)?;
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8(said)?))
}

fn unix_time(moment: SystemTime) -> Result<String> {
    Ok(moment.duration_since(UNIX_EPOCH)?.as_secs_f64().to_string())
}

fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}
