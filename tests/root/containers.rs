//! Containers that share the machine's state directory: a pid in a container belongs to another process.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience;
use genv_tests::process::{children, shared_folder};
use genv_tests::root::require_root;
use genv_tests::state;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;

use crate::{ALICE, BOB};

/// The command that starts a program in a new pid namespace.
const CONTAINER: [&str; 4] = ["unshare", "-pf", "--mount-proc", "--kill-child"];
/// An open shell with a device. The shell writes its own pid to a file, and the pid of a process without a claim to
/// another.
const SHELL: &str = "eval \"$(genv shell --init)\"; genv activate --gpus 1; \
    env -i PATH=/usr/bin:/bin sleep 1000 & echo $! > state/job.$1; echo $$ > state/shell.$1; wait";

/// A machine with four simulated devices and users who share a state directory.
struct Lab {
    folder: tempfile::TempDir,
}

/// An open shell, in a container or not, which ends with this value.
struct Shell(Child);

impl Drop for Shell {
    fn drop(&mut self) {
        // Kill the processes that the shell started too. They may have ended already.
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

impl Lab {
    fn new() -> Result<Self> {
        require_root();
        let lab = Self { folder: shared_folder()? };
        lab.driver(&[])?;
        Ok(lab)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn driver(&self, pids: &[u32]) -> Result<()> {
        let scenario = used_by(pids);
        Ok(fs::write(self.path().join("driver.yaml"), scenario)?)
    }

    /// A command of a user with genv on its PATH.
    fn command(&self, place: &[&str], uid: u32, words: &[&str]) -> Command {
        let uid = uid.to_string();
        let mut all = place.to_vec();
        all.extend(["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups"]);
        all.extend(words);
        let mut command = Command::new(all[0]);
        command.args(&all[1..]).current_dir(self.path()).env_clear();
        command
            .env("PATH", format!("{}:/usr/bin:/bin", self.path().display()))
            .env("HOME", "/nonexistent")
            .env("GENV_SCENARIO", self.path().join("driver.yaml"))
            .env("GENV_TMPDIR", self.path().join("state"));
        command
    }

    fn run(&self, place: &[&str], uid: u32, line: &str) -> Result<String> {
        let output = patience::output(&mut self.command(place, uid, &["sh", "-c", line]))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{line}: {stderr}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Opens a shell with one device. Returns the shell and its pid in its own namespace.
    fn open_shell(&self, place: &[&str], uid: u32, name: &str) -> Result<(Shell, u32)> {
        let words = ["bash", "--norc", "-c", SHELL, "bash", name];
        let mut command = self.command(place, uid, &words);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        let shell = Shell(command.process_group(0).spawn()?);
        let file = self.path().join(format!("state/shell.{name}"));
        let pid = || fs::read_to_string(&file).ok()?.trim().parse().ok();
        patience::until("the shell is active", || Ok(pid().is_some()))?;
        Ok((shell, pid().context("no shell")?))
    }

    /// The environments of the devices.
    fn held(&self, place: &[&str], uid: u32) -> Result<Vec<(u32, String)>> {
        let text = self.run(place, uid, "genv devices --json")?;
        let devices: serde_json::Value = serde_json::from_str(&text)?;
        let mut held = Vec::new();
        for device in devices["devices"].as_array().context("no devices")? {
            let index = device["index"].as_u64().context("no index")?;
            for attachment in device["attachments"].as_array().into_iter().flatten() {
                let eid = attachment["eid"].as_str().context("no id")?;
                held.push((u32::try_from(index)?, eid.to_owned()));
            }
        }
        Ok(held)
    }
}

/// The users whose commands read the state, each on the machine and in a container.
const CALLERS: [(&[&str], u32); 6] =
    [(&[], ALICE), (&[], BOB), (&[], 0), (&CONTAINER, ALICE), (&CONTAINER, BOB), (&CONTAINER, 0)];

#[test]
fn a_command_in_a_container_ends_no_environment_of_the_machine() -> Result<()> {
    let lab = Lab::new()?;
    let (shell, pid) = lab.open_shell(&[], ALICE, "a")?;
    let held = vec![(0, pid.to_string())];
    for (place, uid) in CALLERS {
        lab.run(place, uid, "genv exec --gpus 1 -- true")?;
        ensure!(lab.held(place, uid)? == held, "{place:?} {uid}");
        ensure!(lab.held(&[], BOB)? == held, "{place:?} {uid}");
    }
    drop(shell);
    ensure!(lab.held(&CONTAINER, ALICE)? == held, "nobody there can know");
    patience::until("the environment ends", || {
        lab.run(&[], ALICE, "genv exec --gpus 1 -- true")?;
        Ok(lab.held(&CONTAINER, ALICE)?.is_empty())
    })
}

#[test]
fn the_shells_of_containers_have_environments_of_their_own_which_end_with_them() -> Result<()> {
    let lab = Lab::new()?;
    let (alices, pid) = lab.open_shell(&CONTAINER, ALICE, "a")?;
    let (bobs, _) = lab.open_shell(&CONTAINER, BOB, "b")?;
    ensure!(pid == 1);
    let held = lab.held(&[], BOB)?;
    ensure!(held.len() == 2 && held[0].1 != held[1].1, "{held:?}");
    for (place, uid) in CALLERS {
        lab.run(place, uid, "genv exec -- true")?;
        ensure!(lab.held(&[], BOB)? == held, "{place:?} {uid}");
    }
    // The next container gets another number: the open file keeps the kernel from reusing this one.
    let inner = *children(alices.0.id()).first().context("no process")?;
    let _namespace = fs::File::open(format!("/proc/{inner}/ns/pid"))?;
    drop(alices);
    lab.run(&CONTAINER, ALICE, "genv exec -- true")?;
    ensure!(lab.held(&CONTAINER, ALICE)? == held, "nobody there can know");
    patience::until("the environment of the ended container ends", || {
        lab.run(&[], ALICE, "genv exec -- true")?;
        Ok(lab.held(&[], BOB)? == held[1..])
    })?;
    drop(bobs);
    patience::until("the other environment ends", || {
        lab.run(&[], 0, "genv exec -- true")?;
        Ok(lab.held(&[], BOB)?.is_empty())
    })
}

#[test]
fn what_genv_1_made_in_a_container_ends_with_its_shell_and_by_no_command() -> Result<()> {
    let lab = Lab::new()?;
    let (shell, pid) = lab.open_shell(&CONTAINER, ALICE, "a")?;
    ensure!(pid == 1);
    let held = lab.held(&[], BOB)?;
    // genv 1.x writes the pid alone.
    let folder = lab.path().join("state");
    state::edit(&folder, |state| {
        for member in state["environments"][0]["members"].as_array_mut().context("no members")? {
            *member = json!({ "pid": member["pid"] });
        }
        Ok(())
    })?;
    fs::remove_file(folder.join(format!("genv-confirmed-{ALICE}.json")))?;
    for (place, uid) in CALLERS {
        lab.run(place, uid, "genv exec --gpus 1 -- true")?;
        ensure!(lab.held(&[], BOB)? == held, "{place:?} {uid}");
    }
    drop(shell);
    patience::until("the environment ends", || {
        lab.run(&[], BOB, "genv exec -- true")?;
        Ok(lab.held(&CONTAINER, ALICE)?.is_empty())
    })
}

#[test]
fn a_process_below_a_shell_of_a_container_is_in_its_environment() -> Result<()> {
    let lab = Lab::new()?;
    let (shell, _) = lab.open_shell(&CONTAINER, ALICE, "a")?;
    let eid = lab.held(&[], BOB)?.remove(0).1;
    let inner = *children(shell.0.id()).first().context("no shell")?;
    let job = *children(inner).first().context("no job")?;
    lab.driver(&[job])?;
    let text = lab.run(&[], 0, "genv snapshot")?;
    let snapshot: serde_json::Value = serde_json::from_str(&text)?;
    let attribution = &snapshot["processes"][0]["attribution"];
    ensure!(attribution["eid"] == eid.as_str(), "{attribution}");
    // On the machine this pid is the first process, and all other processes are its descendants.
    let mut outside = Command::new("sleep");
    let outside = outside.arg("1000").env_clear().uid(ALICE).process_group(0).spawn();
    let outside = Shell(outside?);
    lab.driver(&[outside.0.id()])?;
    let text = lab.run(&[], 0, "genv snapshot")?;
    let snapshot: serde_json::Value = serde_json::from_str(&text)?;
    let attribution = &snapshot["processes"][0]["attribution"];
    ensure!(attribution.get("eid").is_none(), "{attribution}");
    Ok(())
}
