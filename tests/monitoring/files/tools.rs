//! What promtool and amtool say.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use genv_tests::tools::program;

use crate::files::{files, read, shipped};

const PROMETHEUS: [&str; 2] = ["prometheus", "prometheus-3"];
pub(crate) const ALERTMANAGER: [&str; 2] = ["alertmanager", "alertmanager-sid"];

pub(crate) fn says(tool: &str, name: &str, arguments: &[&str], files: &[PathBuf]) -> Result<String> {
    let output = Command::new(program(tool, name)).args(arguments).args(files).output()?;
    let said = String::from_utf8([output.stdout, output.stderr].concat())?;
    ensure!(output.status.success(), "{name} {arguments:?} of {tool} ends with {}: {said}", output.status);
    Ok(said)
}

/// Whether promtool of each version accepts a configuration of Prometheus.
pub(crate) fn accepts_configuration(file: &Path) -> Result<()> {
    for tool in PROMETHEUS {
        says(tool, "promtool", &["check", "config", "--lint-fatal"], &[file.to_owned()])?;
    }
    Ok(())
}

#[test]
fn promtool_accepts_the_configuration_and_its_rules() -> Result<()> {
    for tool in PROMETHEUS {
        let check = ["check", "config", "--lint=all", "--lint-fatal"];
        let said = says(tool, "promtool", &check, &[shipped("prometheus/prometheus.yml")])?;
        // It ends with 0 all the same if a file is missing.
        ensure!(said.contains("2 rule files found"), "{tool}: {said}");
        for file in files("prometheus/rules", ".yml")? {
            let text = std::fs::read_to_string(&file)?;
            let is_rule =
                |line: &&str| ["- alert: ", "- record: "].iter().any(|key| line.trim_start().starts_with(key));
            let found = format!("SUCCESS: {} rules found", text.lines().filter(is_rule).count());
            ensure!(said.contains(&found), "{tool}: {}: {found}: {said}", file.display());
        }
        let warnings: Vec<&str> = said.lines().filter(|it| it.contains("WARN")).collect();
        // Nothing but that nobody listed further exporters and enforcers yet.
        ensure!(
            matches!(
                warnings.as_slice(),
                [one, two] if one.contains("targets/*.yml") && two.contains("targets/enforcers/*.yml")
            ),
            "{tool}: {said}"
        );
    }
    Ok(())
}

#[test]
fn rules_give_what_their_tests_want_in_prometheus_2() -> Result<()> {
    let tests = files("prometheus/tests", ".yml")?;
    says("prometheus", "promtool", &["test", "rules"], &tests).map(drop)
}

#[test]
fn rules_give_what_their_tests_want_in_prometheus_3() -> Result<()> {
    let tests = files("prometheus/tests", ".yml")?;
    says("prometheus-3", "promtool", &["test", "rules"], &tests).map(drop)
}

#[test]
fn amtool_accepts_the_configuration() -> Result<()> {
    for tool in ALERTMANAGER {
        let said = says(tool, "amtool", &["check-config"], &[shipped("prometheus/alertmanager.yml")])?;
        // Mail and webhook are no comments: what is to be filled in is checked too.
        ensure!(said.contains("3 receivers"), "{tool}: {said}");
    }
    Ok(())
}

#[test]
fn whoever_fills_in_the_receivers_is_notified() -> Result<()> {
    let shipped = read("prometheus/alertmanager.yml")?;
    let mail = shipped.replacen("receiver: nobody", "receiver: mail", 1);
    let both = mail.replace("    # - {", "    - {");
    ensure!(both != mail && mail != shipped);
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("alertmanager.yml");
    for tool in ALERTMANAGER {
        for (configuration, severity, receivers) in [
            (&shipped, "critical", "nobody"),
            (&mail, "critical", "mail"),
            (&mail, "info", "nobody"),
            (&both, "critical", "webhook,mail"),
            (&both, "warning", "mail"),
            (&both, "info", "nobody"),
        ] {
            std::fs::write(&file, configuration)?;
            let (config, severity) = (format!("--config.file={}", file.display()), format!("severity={severity}"));
            let said = says(tool, "amtool", &["config", "routes", "test", &config, &severity], &[])?;
            let told = said.lines().next();
            ensure!(told == Some(receivers), "{tool}, {severity}: {said}");
        }
    }
    Ok(())
}
