//! The programs around it: service manager, Prometheus, other enforcers.

use std::fs;
use std::io::Write as _;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Setup, ends_outsiders, sleeper};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::PATIENCE;
use genv_tests::tools;

#[test]
fn the_service_manager_is_told_how_it_goes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path)?;
    manager.set_read_timeout(Some(PATIENCE))?;
    let enforcer = Setup::new(&used_by(&[]), "version: 1\nrules: []\n")?
        .env("NOTIFY_SOCKET", &path.display().to_string())
        .env("WATCHDOG_USEC", "1000000")
        .start()?;
    let next = || -> Result<String> {
        let mut buffer = [0; 4096];
        let length = manager.recv(&mut buffer).context("nothing is told")?;
        Ok(String::from_utf8(buffer[..length].to_vec())?)
    };
    let wait_for = |what: &str| -> Result<()> {
        while !next()?.starts_with(what) {}
        Ok(())
    };
    wait_for("READY=1")?;
    wait_for("STATUS=dry-run: 0 rules, 0 violations")?;
    wait_for("WATCHDOG=1")?;
    enforcer.signal(rustix::process::Signal::HUP)?;
    wait_for("RELOADING=1\nMONOTONIC_USEC=")?;
    wait_for("READY=1")?;
    let (status, _) = enforcer.terminate()?;
    ensure!(status.success());
    wait_for("STOPPING=1")
}

#[test]
fn metrics_are_served_on_a_socket_of_the_service_manager() -> Result<()> {
    let setup = Setup::new(&used_by(&[]), "version: 1\nrules: []\n")?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let folder = setup.folder().to_owned();
    let config = format!("--config={}", setup.config().display());
    let words = ["run", "--web.systemd-socket", "--interval=100ms", &config];
    let alone = setup.output(&words)?;
    assert_eq!(alone.status.code(), Some(1));
    let stderr = String::from_utf8(alone.stderr)?;
    ensure!(stderr.contains("LISTEN_FDS"), "{stderr}");

    // As systemd passes it: descriptor 3 of the process that LISTEN_PID names.
    let program = setup.command(&words)?;
    let mut shell = Command::new("sh");
    shell
        .envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .args(["-c", "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\""])
        .arg(program.get_program())
        .args(program.get_args())
        .arg(format!("--gpu.scenario={}", folder.join("scenario.yaml").display()))
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)));
    let process = genv_tests::process::Running::spawn(&mut shell)?;
    genv_tests::patience::until("it answers", || {
        let page = genv_tests::http::get(port, "/-/ready");
        Ok(page.is_ok_and(|page| page.status == 200))
    })?;
    drop(process);
    Ok(())
}

#[test]
fn prometheus_finds_nothing_wrong_with_its_metrics() -> Result<()> {
    let process = sleeper(&[])?;
    let config = ends_outsiders("enforce", "for: 1h, warn: []");
    let enforcer = Setup::new(&used_by(&[process.pid()]), &config)?.start()?;
    let page = enforcer.get("/metrics")?;
    assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    for tool in ["prometheus", "prometheus-3"] {
        let mut promtool = Command::new(tools::program(tool, "promtool"))
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        promtool.stdin.take().context("no stdin")?.write_all(&page.body)?;
        let output = promtool.wait_with_output()?;
        let said = String::from_utf8([output.stdout, output.stderr].concat())?;
        ensure!(output.status.success() && said.is_empty(), "{tool}: {said}");
    }
    for (path, status) in [("/", 200), ("/-/healthy", 200), ("/-/ready", 200), ("/nosuch", 404)] {
        assert_eq!(enforcer.get(path)?.status, status, "{path}");
    }
    Ok(())
}

#[test]
fn two_do_not_work_in_one_directory() -> Result<()> {
    let enforcer = Setup::new(&used_by(&[]), "version: 1\nrules: []\n")?.start()?;
    let config = format!("--config={}", enforcer.setup().config().display());
    let second = enforcer.setup().output(&["run", "--once", &config])?;
    assert_eq!(second.status.code(), Some(1));
    let stderr = String::from_utf8(second.stderr)?;
    ensure!(stderr.contains("another genv-enforcer has"), "{stderr}");

    let setup = enforcer.kill()?;
    let lock = setup.state_directory().join("run.lock");
    fs::remove_file(&lock)?;
    std::os::unix::fs::symlink("/dev/null", &lock)?;
    let planted = setup.output(&["run", "--once", &config])?;
    let stderr = String::from_utf8(planted.stderr)?;
    ensure!(stderr.contains("it is a symbolic link"), "{stderr}");
    ensure!(!stderr.contains("another genv-enforcer"), "{stderr}");
    Ok(())
}

#[test]
fn a_lock_that_cannot_be_taken_is_not_blamed_on_another_enforcer() -> Result<()> {
    let setup = Setup::new(&used_by(&[]), "version: 1\nrules: []\n")?;
    std::os::unix::fs::symlink("/dev/null", setup.state_directory().join("run.lock"))?;
    let config = format!("--config={}", setup.config().display());
    let output = setup.output(&["run", "--once", &config])?;
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr)?;
    ensure!(stderr.contains("run.lock: it is a symbolic link"), "{stderr}");
    ensure!(!stderr.contains("another genv-enforcer"), "{stderr}");
    Ok(())
}
