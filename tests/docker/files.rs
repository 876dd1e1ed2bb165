//! What Compose says of the shipped files.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use genv_tests::docker::{Stack, repository};
use genv_tests::tools;
use serde_json::{Value, json};

fn configuration(stack: &Stack) -> Result<Value> {
    Ok(serde_json::from_str(&stack.compose(&["config", "--format=json"])?)?)
}

fn named() -> Result<Stack> {
    Stack::named("genv-config")
}

fn services(configuration: &Value) -> Result<Vec<(&String, &Value)>> {
    let services = configuration["services"].as_object();
    Ok(services.context("no services")?.iter().collect())
}

#[test]
fn compose_accepts_the_files_without_a_word() -> Result<()> {
    let mut composes = Vec::new();
    for (tool, version) in [("compose-2.26", "2.26."), ("docker", "")] {
        let compose = tools::program(tool, "docker-compose");
        let said = Command::new(&compose).args(["version", "--short"]).output()?;
        ensure!(String::from_utf8(said.stdout)?.starts_with(version), "{tool}");
        composes.push(compose);
    }
    for compose in composes {
        for files in [vec![], vec!["docker-compose.yml", "docker-compose.gpu.yml"]] {
            let mut command = Command::new(&compose);
            command.current_dir(repository()).arg("--env-file=/dev/null");
            for file in &files {
                command.args(["--file", file]);
            }
            let output = command.args(["config", "--quiet"]).output()?;
            let said = String::from_utf8([output.stdout, output.stderr].concat())?;
            ensure!(output.status.success() && said.is_empty(), "{compose:?} {files:?}: {said}");
        }
    }
    Ok(())
}

#[test]
fn addresses_ports_and_files_follow_their_variables() -> Result<()> {
    let stack = named()?
        .variable("GENV_BIND_ADDRESS", "192.0.2.1")
        .variable("GENV_GRAFANA_BIND_ADDRESS", "192.0.2.2")
        .variable("GENV_PROMETHEUS_CONFIG", "prometheus.local.yml")
        .variable("GENV_ALERTMANAGER_CONFIG", "alertmanager.local.yml")
        .variable("GENV_ENFORCER_CONFIG", "own.yaml");
    let (shipped, changed) = (configuration(&named()?)?, configuration(&stack)?);
    for (configuration, address, of_grafana) in
        [(&shipped, "127.0.0.1", "127.0.0.1"), (&changed, "192.0.2.1", "192.0.2.2")]
    {
        for (name, service) in services(configuration)? {
            let address = if name == "grafana" { of_grafana } else { address };
            let ports = service["ports"].as_array().context("no ports")?;
            assert_eq!(ports.len(), 1, "{name}");
            assert_eq!(ports[0]["host_ip"], address, "{name}");
        }
    }
    for (name, service) in services(&changed)? {
        assert_eq!(service["ports"][0]["published"], stack.port(name).to_string(), "{name}");
    }
    for service in ["prometheus", "alertmanager"] {
        let reads = |configuration: &Value| configuration["services"][service]["command"][0].clone();
        assert_eq!(reads(&shipped), format!("--config.file=/etc/{service}/{service}.yml"));
        assert_eq!(reads(&changed), format!("--config.file=/etc/{service}/{service}.local.yml"));
    }
    for configuration in [changed, configuration(&stack.file("docker-compose.gpu.yml"))?] {
        assert_eq!(configuration["services"]["enforcer"]["command"][2], "--config=/etc/genv/own.yaml");
    }
    Ok(())
}

#[test]
fn images_are_pinned_services_restart_and_only_genvs_own_are_given_the_host_for_gpus() -> Result<()> {
    let folder = repository().to_str().context("a path that is not UTF-8")?;
    for (gpu, stack) in [(false, named()?), (true, named()?.file("docker-compose.gpu.yml"))] {
        for (name, service) in services(&configuration(&stack)?)? {
            let image = service["image"].as_str().context("no image")?;
            let (_, tag) = image.split_once(':').context("no tag")?;
            ensure!(tag.contains(|letter: char| letter.is_ascii_digit()), "{image}");
            assert_eq!(service["restart"], "unless-stopped", "{name}");
            let of_gpus = gpu && ["exporter", "enforcer"].contains(&name.as_str());
            let allowed = if of_gpus { json!("host") } else { Value::Null };
            for of_host in ["pid", "uts", "userns_mode"] {
                assert_eq!(service[of_host], allowed, "{name}: {of_host}");
            }
            for never in ["privileged", "network_mode", "ipc", "devices", "cgroup"] {
                assert_eq!(service[never], Value::Null, "{name}: {never}");
            }
            let powers = match name.as_str() {
                "exporter" if gpu => json!(["SYS_PTRACE", "DAC_READ_SEARCH"]),
                "enforcer" if gpu => json!(["SYS_PTRACE", "DAC_READ_SEARCH", "KILL"]),
                _ => Value::Null,
            };
            assert_eq!(service["cap_add"], powers, "{name}");
            for volume in service["volumes"].as_array().into_iter().flatten() {
                let source = volume["source"].as_str().context("no source")?;
                let own = source.starts_with(folder) || volume["type"] == "volume";
                ensure!(own || (of_gpus && source == "/"), "{name}: {volume}");
                ensure!(volume["type"] == "volume" || volume["read_only"] == true, "{name}: {volume}");
            }
        }
    }
    Ok(())
}
