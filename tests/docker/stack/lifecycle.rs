//! Starting, stopping, dying and coming back.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use genv_tests::docker::{SERVICES, Stack, docker, eventually};
use genv_tests::process;
use rustix::process::Signal;
use serde_json::Value;

use crate::stack::shipped;

/// What a stack must not forget: the password of Grafana's admin, a sample of Prometheus, a silence of Alertmanager.
struct Memory {
    password: String,
    moment: SystemTime,
}

fn password(stack: &Stack) -> Result<String> {
    stack.compose(&["exec", "-T", "grafana", "cat", "/var/lib/grafana/genv-admin-password"])
}

fn silences(stack: &Stack) -> Result<Vec<Value>> {
    let answer = stack.get("alertmanager", "/api/v2/silences", &[])?;
    Ok(serde_json::from_slice(&answer.body)?)
}

impl Memory {
    fn make(stack: &Stack) -> Result<Self> {
        let prometheus = stack.prometheus();
        let moment = eventually("Prometheus has samples", || {
            ensure!(!prometheus.query("genv_host_up")?.is_empty());
            Ok(SystemTime::now())
        })?;
        stack.compose(&[
            "exec",
            "-T",
            "alertmanager",
            "amtool",
            "--alertmanager.url=http://127.0.0.1:9093",
            "silence",
            "add",
            "--comment=remember",
            "--author=test",
            "alertname=Any",
        ])?;
        Ok(Self { password: password(stack)?, moment })
    }

    fn is_kept(&self, stack: &Stack) -> Result<()> {
        assert_eq!(password(stack)?, self.password);
        let samples = stack.prometheus().query_at("genv_host_up", self.moment)?;
        ensure!(!samples.is_empty(), "Prometheus has forgotten");
        let silences = silences(stack)?;
        ensure!(silences.len() == 1 && silences[0]["comment"] == "remember", "{silences:?}");
        Ok(())
    }
}

#[test]
fn each_service_comes_back_from_a_restart_and_forgets_nothing() -> Result<()> {
    let stack = Stack::named("genv-restart")?;
    stack.up(&[])?;
    let memory = Memory::make(&stack)?;
    for (service, ..) in SERVICES {
        let before = stack.pid(service)?;
        stack.compose(&["restart", service])?;
        ensure!(stack.pid(service)? != before, "{service} was not restarted");
    }
    for (service, ..) in SERVICES {
        stack.wait_until_healthy(service)?;
    }
    memory.is_kept(&stack)?;
    let prometheus = stack.prometheus();
    eventually("every target is up again", || {
        let up = prometheus.query("up == 1")?;
        ensure!(up.len() == SERVICES.len(), "{up:?}");
        Ok(())
    })
}

#[test]
fn down_leaves_the_volumes_and_down_with_volumes_leaves_nothing() -> Result<()> {
    let stack = Stack::named("genv-down")?;
    stack.up(&[])?;
    let memory = Memory::make(&stack)?;
    let network = stack.inspect("grafana")?["NetworkSettings"]["Networks"].clone();
    let (_, network) = network.as_object().and_then(|it| it.iter().next()).context("no network")?;
    let network = network["NetworkID"].as_str().context("no id")?;
    let bridge = format!("/sys/class/net/br-{}", &network[..12]);
    let pids: BTreeMap<_, _> =
        SERVICES.iter().map(|(service, ..)| Ok((service, stack.pid(service)?))).collect::<Result<_>>()?;

    stack.compose(&["stop"])?;
    for (service, ..) in SERVICES {
        let code = stack.inspect(service)?["State"]["ExitCode"].clone();
        assert_eq!(code, 0, "{service} did not end in peace");
    }
    stack.compose(&["down"])?;
    let mut volumes = stack.remains()?;
    volumes.sort();
    assert_eq!(volumes, ["genv-down_alertmanager-data", "genv-down_grafana-data", "genv-down_prometheus-data"]);
    for (service, pid) in pids {
        ensure!(!Path::new(&format!("/proc/{pid}")).exists(), "{service} still runs");
    }
    ensure!(!interfaces()?.contains(&bridge[15..]), "{bridge} is still there");

    stack.up(&[])?;
    memory.is_kept(&stack)?;
    stack.compose(&["down", "--volumes"])?;
    assert_eq!(stack.remains()?, [""; 0]);
    // What the exporter reads on a host it does not make.
    ensure!(!Path::new("/var/tmp/genv").exists(), "there is a state directory");
    Ok(())
}

/// The network interfaces of this machine.
fn interfaces() -> Result<String> {
    Ok(std::fs::read_to_string("/proc/net/dev")?)
}

#[test]
fn a_service_that_dies_is_started_again() -> Result<()> {
    let stack = Stack::named("genv-killed")?;
    stack.up(&["exporter"])?;
    process::signal(stack.pid("exporter")?, Signal::KILL)?;
    eventually("the exporter was started again", || {
        ensure!(stack.inspect("exporter")?["RestartCount"] == 1);
        ensure!(!stack.scrape()?.all("genv_host_up", &[]).is_empty());
        Ok(())
    })?;
    stack.wait_until_healthy("exporter")
}

#[test]
fn what_does_not_answer_is_not_called_healthy() -> Result<()> {
    let stack = shipped()?;
    for (service, ..) in SERVICES {
        let inspected = stack.inspect(service)?;
        let test = inspected["Config"]["Healthcheck"]["Test"].clone();
        let test: Vec<String> = serde_json::from_value(test)?;
        let (kind, check) = test.split_first().context("no check")?;
        let (program, arguments) = check.split_first().context("no program")?;
        assert_eq!(kind, "CMD");
        // Beside the server it succeeds, and where there is none it fails.
        let mut beside = vec!["exec", "-T", service, program];
        beside.extend(arguments.iter().map(String::as_str));
        ensure!(stack.attempt(&beside)?.status.success(), "{service}");
        let image = inspected["Config"]["Image"].as_str().context("no image")?;
        let mut alone = vec!["run", "--rm", "--volumes-from", inspected["Id"].as_str().context("no id")?];
        alone.extend(["--network=none", "--entrypoint", program, image]);
        alone.extend(arguments.iter().map(String::as_str));
        ensure!(docker(&alone).is_err(), "{service} is called healthy where nobody listens");
    }
    Ok(())
}
