//! What the exporter is told wrong, beside its flags, and that it writes nothing anywhere.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use genv_tests::exporter::{Exporter, Setup};
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience::until;
use genv_tests::process::{Sleeper, copy_program};
use genv_tests::root::FIRST_UID;
use genv_tests::state::{self, Environment};

#[test]
fn a_mistake_in_a_scenario_is_pointed_at() -> Result<()> {
    let simulation = Simulation::new("version: 1\nhosts:\n- name: gpu01\n  devices:\n  - {name: A100, memroy: 40gi}\n");
    let (code, said) = Setup::with_scenario(&simulation)?.fails()?;
    assert_eq!(code, Some(1), "{said}");
    let place = format!("genv-exporter: {}:5:18: unknown field `memroy`", simulation.scenario().display());
    ensure!(said.starts_with(&place), "{said}");
    Ok(())
}

fn simulated_devices() -> Result<Setup> {
    Ok(Setup::new()?.flag("--gpu.source=simulated").env("GENV_DEVICES", "2"))
}

/// Waits until the state collector works, or fails with an error that has this part.
fn wait_for_state(exporter: &Exporter, failure: Option<&str>) -> Result<()> {
    let mut collectors = serde_json::Value::Null;
    until("the state collector", || {
        let scrape = exporter.scrape()?;
        let success = |collector| scrape.value("genv_collector_success", &[("collector", collector)]).ok();
        let mut snapshot: serde_json::Value = serde_json::from_slice(&exporter.get("/snapshot")?.body)?;
        collectors = snapshot["collectors"].take();
        let error = collectors["state"]["error"].as_str();
        let has_error = failure.map_or(error.is_none(), |part| error.is_some_and(|error| error.contains(part)));
        let works = f64::from(u8::from(failure.is_none()));
        Ok(has_error && success("state") == Some(works) && success("gpu") == Some(1.0))
    })
    .with_context(|| format!("{collectors:#}"))
}

#[test]
fn a_state_directory_that_does_not_exist_is_a_machine_without_environments() -> Result<()> {
    let exporter = simulated_devices()?.start()?;
    wait_for_state(&exporter, None)?;
    assert_eq!(exporter.scrape()?.value("genv_environments", &[])?, 0.0);
    Ok(())
}

#[test]
fn a_state_directory_that_may_not_be_read_is_a_failed_collector_that_says_so() -> Result<()> {
    let folder = tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o755)).tempdir()?;
    let member = Sleeper::start(&[])?;
    let state = folder.path().join("state");
    let environment = Environment::new("e1", FIRST_UID, member.pid(), &[0]);
    state::write(&state, 2, &[environment])?;
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o000))?;

    let mut setup = simulated_devices()?.env("GENV_TMPDIR", &state);
    // Root may read everything: then somebody else runs it, from where they may.
    if rustix::process::getuid().is_root() {
        let copy = folder.path().join("genv-exporter");
        copy_program("genv-exporter", &copy)?;
        setup = setup.program(&copy).user(FIRST_UID);
    }
    let exporter = setup.start()?;
    wait_for_state(&exporter, Some(&state.display().to_string()))?;
    // What is not known is not told: neither environments nor that there are none.
    ensure!(exporter.scrape()?.all("genv_environments", &[]).is_empty());

    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o755))?;
    wait_for_state(&exporter, None)
}

fn listing(folder: &Path) -> Result<Vec<(PathBuf, SystemTime, u64)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        found.push((entry.path(), metadata.modified()?, metadata.len()));
        if metadata.is_dir() {
            found.extend(listing(&entry.path())?);
        }
    }
    found.sort();
    Ok(found)
}

/// Files that a process has open for writing, other than sockets, pipes and the kernel's own.
fn open_for_writing(pid: u32) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        let (Ok(target), Some(number)) = (std::fs::read_link(&path), path.file_name()) else {
            continue;
        };
        let info = Path::new(&format!("/proc/{pid}/fdinfo")).join(number);
        let info = std::fs::read_to_string(info).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = u32::from_str_radix(flags.unwrap_or("0").trim(), 8)?;
        if flags & 0b11 != 0 && target.is_absolute() {
            found.push(target.display().to_string());
        }
    }
    Ok(found)
}

#[test]
fn nothing_is_ever_written() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    // A damaged file beside its copy, and a dead member: all that a writer would be tempted to mend.
    let environment = Environment {
        eid: "e1".to_owned(),
        uid: rustix::process::getuid().as_raw(),
        pids: vec![1 << 22],
        devices: vec![0],
        gpu_memory: Some("1gi"),
    };
    state::write(&state, 2, &[environment])?;
    std::fs::copy(state.join(state::FILE), state.join(state::COPY))?;
    std::fs::write(state.join(state::FILE), "{\"version\": 1, \"environments\": [")?;
    std::fs::write(state.join("genv.lock"), "")?;
    let (home, temporary) = (folder.path().join("home"), folder.path().join("tmp"));
    std::fs::create_dir(&home)?;
    std::fs::create_dir(&temporary)?;

    let setup = simulated_devices()?;
    let log = setup.folder().join("exporter.log").display().to_string();
    let mut exporter = setup.env("GENV_TMPDIR", &state).env("HOME", &home).env("TMPDIR", &temporary).start()?;
    let before = listing(folder.path())?;
    for path in ["/", "/metrics", "/metrics/genv1", "/snapshot", "/sd", "/-/ready"] {
        ensure!(exporter.get(path)?.status == 200, "{path}");
    }
    for _ in 0..3 {
        exporter.next_collection("gpu")?;
        let writing = open_for_writing(exporter.pid())?;
        let other = writing.iter().find(|target| **target != log);
        ensure!(other.is_none(), "open for writing: {other:?}");
    }
    exporter.terminate()?;
    assert_eq!(before, listing(folder.path())?);
    Ok(())
}
