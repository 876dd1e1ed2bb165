//! Real processes under the real `/proc`, and where they are found to belong.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use genv_tests::exporter::{Exporter, Setup};
use genv_tests::nvml_sim::{Simulation, used_by};
use genv_tests::patience::until;
use genv_tests::process::{Sleeper, children};
use genv_tests::state::{self, Environment};

/// Where each process is, in the words of the snapshot: state, then environment or reason.
fn attributions(exporter: &Exporter) -> Result<BTreeMap<u64, String>> {
    let snapshot: serde_json::Value = serde_json::from_slice(&exporter.get("/snapshot")?.body)?;
    let processes = snapshot["processes"].as_array().context("no processes")?;
    processes
        .iter()
        .map(|process| {
            let attribution = &process["attribution"];
            let word = |key: &str| attribution[key].as_str();
            let detail = word("eid").or(word("reason")).context("no detail")?;
            let pid = process["pid"].as_u64().context("no pid")?;
            Ok((pid, format!("{} {detail}", word("state").context("no state")?)))
        })
        .collect()
}

fn environment(eid: &str, member: &Sleeper) -> Environment {
    Environment::new(eid, rustix::process::getuid().as_raw(), member.pid(), &[0])
}

/// A process with just these bytes in its environ.
fn with_variable(name: &[u8], value: &[u8]) -> Result<Sleeper> {
    let mut command = Command::new("/bin/sleep");
    command.env_clear().env(OsStr::from_bytes(name), OsStr::from_bytes(value));
    Sleeper::spawn(command.arg("1000000"))
}

/// A process that this one did not start; it ends with the value.
struct Foreign(u32);

impl Drop for Foreign {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = genv_tests::process::signal(self.0, rustix::process::Signal::KILL);
    }
}

/// The one child of a shell, once it sleeps.
fn only_child(parent: u32) -> Result<Foreign> {
    let mut child = None;
    until("it has a child that sleeps", || {
        child = children(parent).first().copied();
        Ok(match child {
            Some(pid) => std::fs::read_to_string(format!("/proc/{pid}/comm"))? == "sleep\n",
            None => false,
        })
    })?;
    child.map(Foreign).context("no child")
}

#[test]
fn each_process_is_where_its_evidence_puts_it() -> Result<()> {
    let path = ("PATH", "/bin");
    let member = Sleeper::start(&[path])?;
    // A member whose child has nothing in its environ: where it comes from tells.
    let mut parent = Command::new("sh");
    let parent = Sleeper::spawn(parent.args(["-c", "env -i sleep 1000000 & exec sleep 1000000"]))?;
    let child = only_child(parent.pid())?;
    let mut overwritten = Command::new("perl");
    overwritten.env("GENV_ENVIRONMENT_ID", "e1").args(["-e", "$0 = 'x' x 100000; sleep 1000000"]);
    let gone = Sleeper::start(&[path])?;
    let gone_pid = gone.pid();

    let cases = [
        (Sleeper::start(&[path, ("GENV_ENVIRONMENT_ID", "e1")])?, "environment e1"),
        (Sleeper::start(&[path])?, "outside no_claim"),
        (Sleeper::start(&[("GENV_ENVIRONMENT_ID", "nosuch")])?, "outside no_such_environment"),
        (Sleeper::start(&[("GENV_ENVIRONMENT_ID", "")])?, "outside no_such_environment"),
        (with_variable(b"GENV_ENVIRONMENT_ID", b"\xff\xfe")?, "outside no_such_environment"),
        (with_variable(b"OTHER\xff", b"\xfe")?, "outside no_claim"),
        (Sleeper::start(&[])?, "unknown environ_empty"),
        (Sleeper::spawn(&mut overwritten).context("perl, of the package perl-base")?, "unknown environ_overwritten"),
    ];
    let pids = cases.iter().map(|(process, _)| process.pid());
    let pids: Vec<u32> = pids.chain([member.pid(), child.0, gone_pid]).collect();
    let simulation = Simulation::new(&used_by(&pids));
    let setup = Setup::with_driver(&simulation)?;
    let environments = [environment("e1", &member), environment("e2", &parent)];
    state::write(&setup.folder().join("state"), 2, &environments)?;
    let exporter = setup.start()?;
    drop(gone);
    exporter.wait_for("the end of a process", |_| {
        let all = attributions(&exporter).unwrap_or_default();
        all.len() == pids.len() && all[&u64::from(gone_pid)] == "unknown vanished"
    })?;

    let attributions = attributions(&exporter)?;
    for (process, wanted) in &cases {
        let environ = std::fs::read(format!("/proc/{}/environ", process.pid()))?;
        let environ = String::from_utf8_lossy(&environ);
        let environ = &environ[..environ.len().min(100)];
        assert_eq!(&attributions[&u64::from(process.pid())], wanted, "{environ:?}");
    }
    assert_eq!(attributions[&u64::from(member.pid())], "environment e1");
    assert_eq!(attributions[&u64::from(child.0)], "environment e2");

    let scrape = exporter.scrape()?;
    for (state, processes) in [("environment", 3.0), ("outside", 5.0), ("unknown", 3.0)] {
        let count = scrape.value("genv_processes", &[("state", state)])?;
        ensure!(count == processes, "{count} processes {state}");
    }
    Ok(())
}

#[test]
fn processes_that_come_and_go_all_the_time_do_not_end_the_exporter() -> Result<()> {
    let simulation = Simulation::new(&used_by(&[]));
    let setup = Setup::with_driver(&simulation)?;
    let mut exporter = setup.start()?;
    for round in 0..100 {
        let processes: Vec<_> =
            (0..10).map(|_| Sleeper::start(&[("GENV_ENVIRONMENT_ID", "e1")])).collect::<Result<_>>()?;
        simulation.rewrite(&used_by(&processes.iter().map(Sleeper::pid).collect::<Vec<_>>()));
        let scrape = exporter.scrape()?;
        ensure!(scrape.value("genv_host_up", &[])? == 1.0, "down in round {round}");
    }
    // The last ten are gone, and so is what was said of them.
    simulation.rewrite(&used_by(&[]));
    exporter.wait_for("an idle device", |scrape| {
        scrape.all("genv_device_processes", &[]).iter().all(|(_, processes)| *processes == 0.0)
            && scrape.all("genv_process_memory_used_bytes", &[]).is_empty()
    })?;
    ensure!(exporter.is_running()?);
    Ok(())
}
