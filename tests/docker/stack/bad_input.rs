//! What goes wrong on other people's machines, and that the documentation names the message which they see.

use std::net::TcpListener;

use anyhow::{Context, Result, ensure};
use genv_tests::docker::{Stack, docker, eventually, repository};

use crate::stack::shipped;

/// Asserts that something failed with this message, and that the documentation of the stack quotes it.
fn assert_documented(said: &str, message: &str) -> Result<()> {
    ensure!(said.contains(message), "{message:?} is not what was said: {said}");
    let documentation = std::fs::read_to_string(repository().join("docs/stack.md"))?;
    ensure!(documentation.contains(message), "docs/stack.md does not quote {message:?}");
    Ok(())
}

/// What `up` says as it fails.
fn failure(stack: &Stack, services: &[&str]) -> Result<String> {
    let error = stack.up(services).err();
    Ok(format!("{:#}", error.context("it came up")?))
}

#[test]
fn the_message_of_a_missing_gpu_toolkit_is_documented() -> Result<()> {
    let stack = Stack::named("genv-no-toolkit")?.file("docker-compose.gpu.yml");
    let said = failure(&stack, &["exporter"])?;
    assert_documented(&said, r#"could not select device driver "nvidia""#)
}

#[test]
fn the_message_of_a_port_that_is_taken_is_documented() -> Result<()> {
    let stack = Stack::named("genv-taken")?;
    let _taken = TcpListener::bind(("127.0.0.1", stack.port("exporter")))?;
    let said = failure(&stack, &["exporter"])?;
    assert_documented(&said, "address already in use")
}

#[test]
fn the_message_of_a_port_that_another_container_has_is_documented() -> Result<()> {
    shipped()?;
    let stack = Stack::named("genv-taken-too")?.variable("GENV_EXPORTER_PORT", "9820");
    let said = failure(&stack, &["exporter"])?;
    assert_documented(&said, "failed: port is already allocated")
}

#[test]
fn the_message_of_compose_1_is_documented() -> Result<()> {
    shipped()?;
    let mount = format!("--volume={}:/stack:ro", repository().display());
    let run = ["run", "--rm", "--workdir=/stack", &mount, "genv-test/compose-1", "docker-compose", "config"];
    let said = format!("{:#}", docker(&run).err().context("it was accepted")?);
    assert_documented(&said, "is invalid because:")?;
    assert_documented(&said, "'name' does not match any of the regexes: '^x-'")
}

#[test]
fn all_of_grafana_asks_for_a_login_while_the_folder_about_people_cannot_be_closed() -> Result<()> {
    let first = ("GRAFANA_ADMIN_PASSWORD", "first");
    let mut stack = Stack::named("genv-unclosed")?.variable(first.0, first.1);
    stack.up(&["grafana"])?;
    let overview = |stack: &Stack| -> Result<u16> {
        let path = "/api/dashboards/uid/genv-overview";
        Ok(stack.get("grafana", path, &[])?.status)
    };
    assert_eq!(overview(&stack)?, 200);
    let closed = "/var/lib/grafana/genv-private-closed";
    stack.compose(&["exec", "-T", "grafana", "rm", closed])?;

    stack = stack.variable("GRAFANA_ADMIN_PASSWORD", "second");
    stack.compose(&["up", "--detach", "--no-build", "grafana"])?;
    let message = "Grafana refuses the admin's password";
    eventually("Grafana's log tells it", || {
        let logs = stack.compose(&["logs", "--no-log-prefix", "grafana"])?;
        assert_documented(&logs, message)
    })?;
    assert_eq!(overview(&stack)?, 401);
    let check = stack.inspect("grafana")?["Config"]["Healthcheck"]["Test"].clone();
    let check = check[3].as_str().context("no check")?.to_owned();
    let checked = stack.attempt(&["exec", "-T", "grafana", "sh", "-c", &check])?;
    ensure!(!checked.status.success(), "the health check succeeds");
    ensure!(!stack.is_healthy("grafana")?, "it is called healthy");

    // As the log says.
    stack = stack.variable(first.0, first.1);
    stack.up(&["grafana"])?;
    assert_eq!(overview(&stack)?, 200);
    Ok(())
}
