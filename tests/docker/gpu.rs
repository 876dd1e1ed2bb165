//! The stack over a machine's GPUs: `docker-compose.gpu.yml`, with a simulated driver where NVIDIA's toolkit would put
//! the real one.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use genv_tests::docker::{HOSTNAME, Stack, docker, eventually};
use genv_tests::enforcer::sleeper_of;
use genv_tests::metrics::Scrape;
use genv_tests::nvml_sim::{self, Simulation, on_device_0};
use genv_tests::process::Sleeper;
use genv_tests::state::{self, Environment};

use crate::security::{assert_powers, assert_read_only, processes};

/// Capabilities by their bits, of linux/capability.h.
const DAC_READ_SEARCH: u64 = 1 << 2;
const KILL: u64 = 1 << 5;
const SYS_PTRACE: u64 = 1 << 19;

/// Users of the host, the second not yet there when the exporter starts.
const EARLY: (&str, u32) = ("genv-early", 54_931);
const LATE: (&str, u32) = ("genv-late", 54_932);

/// An exporter and an enforcer in containers of a stack, over a simulated driver and a state directory of the host, which a
/// variable of compose names.
struct Machine {
    stack: Stack,
    simulation: Simulation,
    folder: tempfile::TempDir,
}

impl Machine {
    fn new(project: &str) -> Result<Self> {
        let simulation = Simulation::new("version: 1\nhosts:\n- devices: [{}]\n");
        let folder = tempfile::tempdir()?;
        let library = nvml_sim::library();
        let service = |name: &str| {
            format!(
                "  {name}:\n    deploy: !reset null\n    \
                 environment: {{GENV_SCENARIO: /host{}, GENV_NVML_LIBRARY: libnvidia-ml.so.1}}\n    \
                 volumes: ['{}:/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1:ro']\n",
                simulation.scenario().display(),
                library.display(),
            )
        };
        let overlay = format!("services:\n{}{}", service("enforcer"), service("exporter"));
        let overlay_file = folder.path().join("overlay.yml");
        std::fs::write(&overlay_file, overlay)?;
        let stack = Stack::named(project)?
            .file("docker-compose.gpu.yml")
            .file(overlay_file.to_str().context("a path that is not UTF-8")?)
            .variable("GENV_TMPDIR", folder.path().join("state").to_str().context("a path that is not UTF-8")?);
        Ok(Self { stack, simulation, folder })
    }

    fn state_directory(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn used_by(&self, pids: &[u32]) {
        let processes = on_device_0(pids);
        self.simulation.rewrite(&format!("version: 1\nhosts:\n- devices: [{{}}]\n  processes: [{processes}]\n"));
    }

    fn wait_for(&self, pid: u32, eid: &str, username: &str) -> Result<()> {
        let pid = pid.to_string();
        let labels = [("pid", pid.as_str()), ("eid", eid), ("username", username), ("hostname", HOSTNAME)];
        eventually(&format!("{labels:?} is shown"), || {
            let scrape = self.stack.scrape()?;
            scrape
                .value("genv_process_memory_used_bytes", &labels)
                .with_context(|| format!("{:?}", scrape.all("genv_process_memory_used_bytes", &[])))
        })?;
        Ok(())
    }
}

fn process_of((_, uid): (&str, u32), eid: &str) -> Result<Sleeper> {
    sleeper_of(uid, &[("GENV_ENVIRONMENT_ID", eid)])
}

fn add_user((name, uid): (&str, u32)) -> Result<()> {
    let uid = format!("--uid={uid}");
    let output = Command::new("useradd").args(["--no-create-home", &uid, name]).output();
    let output = output.context("useradd, of the package passwd")?;
    ensure!(output.status.success(), "{}", String::from_utf8(output.stderr)?);
    Ok(())
}

#[test]
fn processes_of_the_host_and_of_containers_have_their_environment_and_user() -> Result<()> {
    let machine = Machine::new("genv-gpu")?;
    add_user(EARLY)?;
    let (early, late) = (process_of(EARLY, "one")?, process_of(LATE, "two")?);
    let run = ["run", "--detach", "--env=GENV_ENVIRONMENT_ID=two", "debian:bookworm-slim", "sleep", "1000000"];
    let contained: u32 = docker(&["inspect", "--format={{.State.Pid}}", docker(&run)?.trim()])?.trim().parse()?;
    let environment = |eid: &str, (_, uid): (&str, u32), member: &Sleeper| Environment {
        gpu_memory: Some("1gi"),
        ..Environment::new(eid, uid, member.pid(), &[0])
    };
    let environments = [environment("one", EARLY, &early), environment("two", LATE, &late)];
    state::write(&machine.state_directory(), 1, &environments)?;
    machine.used_by(&[early.pid(), late.pid(), contained]);
    machine.stack.up(&["exporter"])?;

    machine.wait_for(early.pid(), "one", EARLY.0)?;
    machine.wait_for(contained, "two", "uid:54932")?;
    add_user(LATE)?;
    machine.wait_for(late.pid(), "two", LATE.0)?;
    machine.wait_for(contained, "two", LATE.0)?;
    // One that starts later, and after the state was written anew.
    let second = process_of(EARLY, "one")?;
    state::write(&machine.state_directory(), 1, &environments)?;
    machine.used_by(&[early.pid(), second.pid()]);
    machine.wait_for(second.pid(), "one", EARLY.0)
}

#[test]
fn over_gpus_both_have_their_powers_and_the_enforcer_names_who_breaks_a_rule() -> Result<()> {
    let machine = Machine::new("genv-powers")?;
    let process = process_of(EARLY, "one")?;
    state::write(&machine.state_directory(), 1, &[])?;
    machine.used_by(&[process.pid()]);
    machine.stack.up(&["exporter", "enforcer"])?;
    // Mounts of the host below its root are mounts of their own, of which /run and /var/tmp are two here.
    let of_host = ["", "/host", "/host/etc", "/host/run", "/host/var/tmp"];
    for (service, powers) in
        [("exporter", SYS_PTRACE | DAC_READ_SEARCH), ("enforcer", SYS_PTRACE | DAC_READ_SEARCH | KILL)]
    {
        for process in processes(&machine.stack, service)? {
            assert_powers(&process, powers)?;
        }
        for folder in of_host {
            assert_read_only(&machine.stack, service, folder)?;
        }
    }
    assert_read_only(&machine.stack, "enforcer", "/etc/genv")?;
    eventually("the process breaks a rule", || {
        let answer = machine.stack.get("enforcer", "/metrics")?;
        let scrape = Scrape::parse(&answer.text()?)?;
        let rule = [("rule", "non-env-processes"), ("hostname", HOSTNAME)];
        let broken = scrape.all("genv_enforcer_violations", &rule);
        ensure!(broken.iter().any(|(_, count)| *count == 1.0), "{broken:?}");
        ensure!(scrape.value("genv_enforcer_faults", &[])? == 0.0, "faults");
        Ok(())
    })?;
    let history = "/var/lib/genv-enforcer/history.json";
    machine.stack.compose(&["exec", "-T", "enforcer", "test", "-s", history])?;
    Ok(())
}
