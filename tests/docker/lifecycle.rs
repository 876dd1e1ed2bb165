//! What stays after the end of the stack, and when a service counts as healthy.

use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use genv_tests::docker::{SERVICES, Stack, docker, eventually};
use serde_json::Value;

use crate::shipped;

fn password(stack: &Stack) -> Result<String> {
    stack.compose(&["exec", "-T", "grafana", "cat", "/var/lib/grafana/genv-admin-password"])
}

/// The arguments that name the Alertmanager of its own container to amtool.
const AMTOOL: [&str; 5] = ["exec", "-T", "alertmanager", "amtool", "--alertmanager.url=http://127.0.0.1:9093"];

#[test]
fn down_leaves_the_volumes_and_down_with_volumes_leaves_nothing() -> Result<()> {
    let stack = Stack::named("genv-down")?;
    stack.up(&[])?;
    let moment = eventually("Prometheus has samples", || {
        ensure!(!stack.prometheus().query("genv_host_up")?.is_empty());
        Ok(SystemTime::now())
    })?;
    let silence = ["silence", "add", "--comment=remember", "--author=test", "alertname=Any"];
    stack.compose(&[&AMTOOL[..], &silence].concat())?;
    let before = password(&stack)?;

    stack.compose(&["stop"])?;
    for (service, ..) in SERVICES {
        let code = stack.inspect(service)?["State"]["ExitCode"].clone();
        assert_eq!(code, 0, "{service} did not end in peace");
    }
    stack.compose(&["down"])?;
    let mut volumes = stack.remains()?;
    volumes.sort();
    assert_eq!(volumes, ["genv-down_alertmanager-data", "genv-down_grafana-data", "genv-down_prometheus-data"]);

    stack.up(&[])?;
    assert_eq!(password(&stack)?, before);
    let samples = stack.prometheus().query_at("genv_host_up", moment)?;
    ensure!(!samples.is_empty(), "Prometheus has forgotten");
    let answer = stack.get("alertmanager", "/api/v2/silences")?;
    let silences: Vec<Value> = serde_json::from_slice(&answer.body)?;
    ensure!(silences.len() == 1 && silences[0]["comment"] == "remember", "{silences:?}");
    stack.compose(&["down", "--volumes"])?;
    assert_eq!(stack.remains()?, [""; 0]);
    // What the exporter reads on a host it does not make.
    ensure!(!Path::new("/var/tmp/genv").exists(), "there is a state directory");
    Ok(())
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
