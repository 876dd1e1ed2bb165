//! The shipped compose files on a real Docker engine, as `scripts/docker-engine` gives to the suite docker.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::http::{self, Response, free_port};
use crate::metrics::Scrape;
use crate::patience::PATIENCE;
use crate::prometheus::Prometheus;

/// The services of the stack, with the port of each and the variable that changes it.
pub const SERVICES: [(&str, u16, &str); 5] = [
    ("exporter", 9820, "GENV_EXPORTER_PORT"),
    ("enforcer", 9821, "GENV_ENFORCER_PORT"),
    ("prometheus", 9090, "GENV_PROMETHEUS_PORT"),
    ("alertmanager", 9093, "GENV_ALERTMANAGER_PORT"),
    ("grafana", 3000, "GENV_GRAFANA_PORT"),
];

/// One project of the shipped files; it is taken down with the value, volumes included.
pub struct Stack {
    project: String,
    files: Vec<PathBuf>,
    variables: BTreeMap<String, String>,
    ports: BTreeMap<&'static str, u16>,
}

impl Stack {
    /// The shipped `docker-compose.yml` as it is, with no variable set.
    pub fn shipped() -> Result<Self> {
        require_engine()?;
        Ok(Self {
            project: "genv".to_owned(),
            files: Vec::new(),
            variables: BTreeMap::new(),
            ports: SERVICES.map(|(name, port, _)| (name, port)).into(),
        })
    }

    /// The shipped `docker-compose.yml` as another project on free ports, both by variables alone.
    pub fn named(project: &str) -> Result<Self> {
        let mut stack = Self::shipped()?;
        stack.project = project.to_owned();
        for (name, _, variable) in SERVICES {
            let port = free_port()?;
            stack.ports.insert(name, port);
            stack = stack.variable(variable, &port.to_string());
        }
        Ok(stack.variable("COMPOSE_PROJECT_NAME", project))
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Adds a file over `docker-compose.yml`, by its path in the repository.
    pub fn file(mut self, path: &str) -> Self {
        if self.files.is_empty() {
            self.files.push("docker-compose.yml".into());
        }
        self.files.push(path.into());
        self
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.current_dir(repository());
        // What somebody has set for a stack of their own is not ours.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["GENV_", "GRAFANA_", "COMPOSE_"].iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.envs(&self.variables);
        command.args(["compose", "--ansi=never", "--env-file=/dev/null"]);
        for file in &self.files {
            command.arg("--file").arg(file);
        }
        command.args(arguments);
        command
    }

    /// Runs `docker compose`, whatever becomes of it.
    pub fn attempt(&self, arguments: &[&str]) -> Result<Output> {
        let output = self.command(arguments).output();
        output.context("docker, of scripts/debian-tools docker")
    }

    pub fn compose(&self, arguments: &[&str]) -> Result<String> {
        let output = self.attempt(arguments)?;
        if !output.status.success() {
            let containers = self.attempt(&["ps", "--all"])?;
            let logs = self.attempt(&["logs", "--tail=20"])?;
            let said = [output.stderr, containers.stdout, logs.stdout].concat();
            bail!("docker compose {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&said));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Starts services, all if none are named, and waits until they are healthy.
    pub fn up(&self, services: &[&str]) -> Result<()> {
        let arguments = [&["up", "--detach", "--wait", "--no-build"], services].concat();
        self.compose(&arguments)?;
        Ok(())
    }

    pub fn inspect(&self, service: &str) -> Result<Value> {
        let containers = docker(&[
            "ps",
            "--all",
            "--quiet",
            "--no-trunc",
            // An image that Compose built has the labels of its service too, and hands them on.
            "--filter=label=com.docker.compose.oneoff=False",
            &format!("--filter=label=com.docker.compose.project={}", self.project),
            &format!("--filter=label=com.docker.compose.service={service}"),
        ])?;
        let containers: Vec<_> = containers.split_whitespace().collect();
        let [container] = containers.as_slice() else {
            bail!("{service} has {} containers", containers.len());
        };
        let mut inspected: Vec<Value> = serde_json::from_str(&docker(&["inspect", container])?)?;
        inspected.pop().context("nothing inspected")
    }

    /// The pid, on the host, of the first process of a service's container; 0 if it does not run.
    pub fn pid(&self, service: &str) -> Result<u32> {
        let pid = self.inspect(service)?["State"]["Pid"].as_u64();
        Ok(pid.context("no pid")?.try_into()?)
    }

    pub fn is_healthy(&self, service: &str) -> Result<bool> {
        Ok(self.inspect(service)?["State"]["Health"]["Status"] == "healthy")
    }

    pub fn port(&self, service: &str) -> u16 {
        self.ports[service]
    }

    pub fn get(&self, service: &str, path: &str) -> Result<Response> {
        http::get(self.port(service), path)
    }

    pub fn scrape(&self) -> Result<Scrape> {
        let answer = self.get("exporter", "/metrics")?;
        ensure!(answer.status == 200, "{}", answer.text()?);
        Scrape::parse(&answer.text()?)
    }

    pub fn prometheus(&self) -> Prometheus {
        Prometheus::at(self.port("prometheus"))
    }

    /// What is there of the project: containers, networks and volumes, by name.
    pub fn remains(&self) -> Result<Vec<String>> {
        let filter = format!("--filter=label=com.docker.compose.project={}", self.project);
        let name = "--format={{.Name}}";
        let containers = docker(&["ps", "--all", "--format={{.Names}}", &filter])?;
        let networks = docker(&["network", "ls", name, &filter])?;
        let volumes = docker(&["volume", "ls", name, &filter])?;
        let all = [containers, networks, volumes].concat();
        Ok(all.lines().map(str::to_owned).collect())
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // The engine of the suite, and all that it runs, ends anyway.
        let _ = self.attempt(&["down", "--volumes", "--timeout=1"]);
    }
}

pub fn docker(arguments: &[&str]) -> Result<String> {
    let output = Command::new("docker").args(arguments).output();
    let output = output.context("docker, of scripts/debian-tools docker")?;
    ensure!(
        output.status.success(),
        "docker {} failed: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

pub fn eventually<T>(what: &str, attempt: impl Fn() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("waited in vain until {what}")));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
            success => return success,
        }
    }
}

pub fn repository() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the package lies in a folder")
}

/// Never another engine than the suite's own: what tests do to a host they do to that one.
fn require_engine() -> Result<()> {
    let host = std::env::var("DOCKER_HOST").unwrap_or_default();
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    ensure!(
        host == "unix:///run/docker.sock" && hostname.trim() == HOSTNAME,
        "cannot test the stack: this is not the machine that scripts/docker-engine makes. Run 'scripts/test docker'"
    );
    Ok(())
}

pub const HOSTNAME: &str = "genv-host";
