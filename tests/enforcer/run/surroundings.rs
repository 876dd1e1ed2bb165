use std::fs;

use anyhow::{Result, ensure};
use genv_tests::enforcer::Setup;
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::until;
use genv_tests::prometheus::check_metrics;

use crate::run::outsider;

#[test]
fn without_a_socket_of_the_service_manager_it_ends() -> Result<()> {
    let setup = Setup::new(&used_by(&[]), "version: 1\nrules: []\n")?;
    let stderr = setup.ended(&["run", "--web.systemd-socket", &setup.config_flag()], 1)?;
    ensure!(stderr.contains("LISTEN_FDS"), "{stderr}");
    Ok(())
}

#[test]
fn prometheus_finds_nothing_wrong_with_its_metrics() -> Result<()> {
    let (_process, setup) = outsider("enforce", "for: 1h, warn: []")?;
    let enforcer = setup.start()?;
    let page = enforcer.get("/metrics")?;
    assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    for tool in ["prometheus", "prometheus-3"] {
        let (fine, said) = check_metrics(tool, &page.body)?;
        ensure!(fine && said.is_empty(), "{tool}: {said}");
    }
    for (path, status) in [("/", 200), ("/-/healthy", 200), ("/-/ready", 200), ("/nosuch", 404)] {
        until(path, || Ok(enforcer.get(path)?.status == status))?;
    }
    Ok(())
}

#[test]
fn two_do_not_work_in_one_directory() -> Result<()> {
    let enforcer = Setup::new(&used_by(&[]), "version: 1\nrules: []\n")?.start()?;
    let config = enforcer.setup().config_flag();
    let stderr = enforcer.setup().ended(&["run", "--once", &config], 1)?;
    ensure!(stderr.contains("another genv-enforcer has"), "{stderr}");

    let setup = enforcer.kill()?;
    let lock = setup.state_directory().join("run.lock");
    fs::remove_file(&lock)?;
    std::os::unix::fs::symlink("/dev/null", &lock)?;
    let stderr = setup.ended(&["run", "--once", &config], 1)?;
    ensure!(stderr.contains("it is a symbolic link"), "{stderr}");
    ensure!(!stderr.contains("another genv-enforcer"), "{stderr}");
    Ok(())
}
