//! Devices that other users' processes use without holding them are not assigned. Only root can start such processes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Setup, sleeper_of};
use genv_tests::nvml_sim::{library, used_by};
use genv_tests::patience::{self, Lines};
use genv_tests::process::{Sleeper, shared_folder};
use genv_tests::root::{apart, own_mounts, require_root};
use genv_tests::state::{self, Environment};
use rustix::mount::mount_bind;
use serde_json::json;
use tempfile::TempDir;

use crate::{ALICE, ANYTHING, BOB};

/// These print the devices of an environment.
const ONE: &str = "genv exec --gpus 1 -- sh -c 'echo $CUDA_VISIBLE_DEVICES'";
const BOTH: &str = "genv exec --gpus 2 -- sh -c 'echo $CUDA_VISIBLE_DEVICES'";

/// A machine with two GPUs for all users, with a simulated driver.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new(scenario: &str) -> Result<Self> {
        let machine = Self { folder: shared_folder()? };
        fs::copy(library(), machine.path().join("libnvidia-ml.so.1"))?;
        machine.drives(scenario)?;
        Ok(machine)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Makes the driver answer from this scenario.
    fn drives(&self, scenario: &str) -> Result<()> {
        let next = self.path().join("next.yaml");
        fs::write(&next, scenario)?;
        Ok(fs::rename(next, self.path().join("driver.yaml"))?)
    }

    /// A line of sh that Alice runs.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.path()).env_clear();
        command
            .env("PATH", format!("{}:/usr/bin:/bin", self.path().display()))
            .env("GENV_NVML_LIBRARY", self.path().join("libnvidia-ml.so.1"))
            .env("GENV_SCENARIO", self.path().join("driver.yaml"))
            .env("GENV_TMPDIR", self.path().join("state"))
            .env("TZ", "UTC")
            .envs([patience::DRIVER_PATIENCE])
            .uid(ALICE)
            .gid(ALICE);
        command
    }

    fn output(&self, line: &str) -> Result<Output> {
        patience::output(&mut self.command(line))
    }

    /// The stdout and stderr of a line of Alice.
    fn printed(&self, line: &str) -> Result<(String, String)> {
        let output = self.output(line)?;
        let stderr = String::from_utf8(output.stderr)?;
        ensure!(output.status.success(), "{line}: {stderr}");
        Ok((String::from_utf8(output.stdout)?, stderr))
    }

    /// genv 1.x assigns devices whatever processes use them.
    fn hands_both_out_as_genv_1_does(&self) -> Result<()> {
        let printed = self.printed(&format!("GENV_ATTACH_USED=1 {BOTH}"))?;
        assert_eq!(printed, ("0,1\n".to_owned(), String::new()));
        Ok(())
    }

    /// The stderr of a line of Alice that is refused for lack of devices.
    fn refused(&self, line: &str) -> Result<String> {
        let output = self.output(line)?;
        let stderr = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(4), "{line}: {}: {stderr}", output.status);
        Ok(stderr)
    }
}

/// The form in which an error names a process of Bob on device 0.
fn whose(process: &Sleeper) -> String {
    format!("process {} of uid:{BOB} (1.0 GiB, since 20", process.pid())
}

#[test]
fn a_device_that_another_users_process_uses_is_not_handed_out() -> Result<()> {
    require_root();
    let process = sleeper_of(BOB, &ANYTHING)?;
    let machine = Machine::new(&used_by(&[process.pid()]))?;
    assert_eq!(machine.printed(ONE)?, ("1\n".to_owned(), String::new()));

    let stderr = machine.refused(BOTH)?;
    ensure!(
        stderr.starts_with("genv: cannot attach 2 devices: 1 of 2 can be had. Device 0: ")
            && stderr.contains(&whose(&process))
            && stderr.ends_with(
                ") uses it and does not hold it. '--wait' waits until that ends, '--force' takes the device all the same\n"
            ),
        "{stderr}"
    );
    // The warning is the only difference.
    let forced = BOTH.replace("exec", "exec --force");
    let (printed, stderr) = machine.printed(&forced)?;
    ensure!(printed == "0,1\n" && stderr.contains(&whose(&process)), "{printed} {stderr}");
    ensure!(stderr.starts_with("genv: device 0 is used by process "), "{stderr}");
    machine.hands_both_out_as_genv_1_does()
}

#[test]
fn a_device_by_its_index_is_refused_likewise() -> Result<()> {
    require_root();
    let process = sleeper_of(BOB, &ANYTHING)?;
    let machine = Machine::new(&used_by(&[process.pid()]))?;
    let within = |line: &str| {
        format!(
            "bash -c 'eval \"$(genv shell --init)\"; genv activate --gpus 1; {line}; echo code $?; \
             genv devices find --eid $GENV_ENVIRONMENT_ID'"
        )
    };
    for line in ["genv attach --index 0", "genv devices attach --eid $GENV_ENVIRONMENT_ID --index 0"] {
        let (printed, stderr) = machine.printed(&within(line))?;
        ensure!(
            printed == "code 4\n1\n"
                && stderr.contains(&whose(&process))
                && stderr.starts_with("genv: cannot attach device 0: "),
            "{line}: {printed} {stderr}"
        );
        let (printed, stderr) = machine.printed(&within(&format!("{line} --force")))?;
        ensure!(
            printed.ends_with("code 0\n0,1\n") && stderr.contains("which does not hold it"),
            "{line}: {printed} {stderr}"
        );
    }
    // A shell that starts an environment.
    let activates = |flags: &str| format!("bash -c 'eval \"$(genv shell --init)\"; genv activate {flags}'");
    let stderr = machine.refused(&activates("--gpus 2"))?;
    ensure!(stderr.contains(&whose(&process)), "{stderr}");
    let (_, stderr) = machine.printed(&activates("--gpus 2 --force"))?;
    ensure!(stderr.contains("which does not hold it"), "{stderr}");
    Ok(())
}

#[test]
fn what_is_no_computing_process_of_another_user_outside_keeps_nobody_from_a_device() -> Result<()> {
    require_root();
    let bobs = sleeper_of(BOB, &ANYTHING)?;
    let own = sleeper_of(ALICE, &ANYTHING)?;
    let roots = sleeper_of(0, &ANYTHING)?;
    let graphics = used_by(&[bobs.pid()]).replace("devices: [{index", "type: graphics, devices: [{index");
    for (what, scenario) in
        [("graphics", graphics), ("own", used_by(&[own.pid()])), ("root's", used_by(&[roots.pid()]))]
    {
        let machine = Machine::new(&scenario)?;
        let (printed, stderr) = machine.printed(BOTH)?;
        ensure!(printed == "0,1\n" && stderr.is_empty(), "{what}: {printed} {stderr}");
    }
    Ok(())
}

/// Gives Bob an environment with this process as its member, and a part of a device.
fn holds(machine: &Machine, member: &Sleeper, device: usize) -> Result<()> {
    let environment = Environment { gpu_memory: Some("1gi"), ..Environment::new("b", BOB, member.pid(), &[device]) };
    let folder = machine.path().join("state");
    state::write(&folder, 2, &[environment])?;
    Ok(fs::set_permissions(folder.join(state::FILE), fs::Permissions::from_mode(0o666))?)
}

#[test]
fn who_holds_a_part_of_a_device_keeps_nobody_from_the_rest() -> Result<()> {
    require_root();
    let inside = sleeper_of(BOB, &[("GENV_ENVIRONMENT_ID", "b")])?;
    let machine = Machine::new(&used_by(&[inside.pid()]))?;
    holds(&machine, &inside, 0)?;
    let shared = BOTH.replace("--gpus 2", "--gpus 2 --gpu-memory 1g");
    assert_eq!(machine.printed(&shared)?, ("0,1\n".to_owned(), String::new()));
    Ok(())
}

#[test]
fn a_device_of_which_another_user_cleared_the_attachment_is_not_handed_out() -> Result<()> {
    require_root();
    let inside = sleeper_of(BOB, &[("GENV_ENVIRONMENT_ID", "b")])?;
    let machine = Machine::new(&used_by(&[inside.pid()]))?;
    holds(&machine, &inside, 0)?;
    state::edit(&machine.path().join("state"), |state| {
        state["devices"][0]["attachments"] = json!([]);
        Ok(())
    })?;
    assert_eq!(machine.printed(ONE)?, ("1\n".to_owned(), String::new()));
    let stderr = machine.refused(BOTH)?;
    ensure!(stderr.contains(&whose(&inside)), "{stderr}");
    Ok(())
}

#[test]
fn who_waits_is_told_whom_for() -> Result<()> {
    require_root();
    let process = sleeper_of(BOB, &ANYTHING)?;
    let machine = Machine::new(&used_by(&[process.pid()]))?;
    let mut waiting = machine.command(&BOTH.replace("exec", "exec --wait"));
    let mut waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let stderr = Lines::of(waiting.stderr.take().context("no stderr")?).next_line()?;
    ensure!(
        stderr.starts_with("genv: waiting for devices: next in the queue, device 0 waits for ")
            && stderr.contains(&whose(&process)),
        "{stderr}"
    );
    machine.drives(&used_by(&[]))?;
    let printed = Lines::of(waiting.stdout.take().context("no stdout")?);
    ensure!(printed.next_line()? == "0,1");
    ensure!(patience::ended(&mut waiting)?.success());
    // The wait has a limit.
    machine.drives(&used_by(&[process.pid()]))?;
    let output = machine.output(&BOTH.replace("exec", "exec --wait=300ms"))?;
    let stderr = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(6) && stderr.contains(&whose(&process)), "{stderr}");
    Ok(())
}

#[test]
fn without_a_driver_devices_are_handed_out_with_a_note() -> Result<()> {
    require_root();
    let process = sleeper_of(BOB, &ANYTHING)?;
    let machine = Machine::new(&used_by(&[process.pid()]))?;
    machine.printed("genv devices")?;
    fs::remove_file(machine.path().join("libnvidia-ml.so.1"))?;
    let (printed, stderr) = machine.printed(BOTH)?;
    ensure!(
        printed == "0,1\n"
            && stderr.starts_with(
                "genv: it is unknown whether other users use device 0, 1, which was attached nevertheless: "
            ),
        "{printed} {stderr}"
    );
    machine.hands_both_out_as_genv_1_does()
}

#[test]
fn lists_show_what_is_used_and_not_held() -> Result<()> {
    require_root();
    let process = sleeper_of(BOB, &ANYTHING)?;
    let machine = Machine::new(&used_by(&[process.pid()]))?;
    // A terminal shows the use; the output for a program is unchanged.
    let user = BOB.to_string();
    for (line, expected) in [
        ("genv free", &["used, not held"][..]),
        ("genv free --json | tr -d ' \\n'", &["\"available\":false", "\"available\":true"]),
        ("script -qec 'genv devices' /dev/null", &["used, not held", &user]),
    ] {
        let (shown, _) = machine.printed(line)?;
        ensure!(expected.iter().all(|it| shown.contains(it)), "{line}: {shown}");
    }
    let (piped, _) = machine.printed("genv devices")?;
    ensure!(!piped.contains("used"), "{piped}");
    Ok(())
}

#[test]
fn what_the_enforcer_publishes_decides_who_is_in_the_way() -> Result<()> {
    require_root();
    let member = sleeper_of(BOB, &[("GENV_ENVIRONMENT_ID", "b")])?;
    let process = sleeper_of(BOB, &ANYTHING)?;
    let machine = Machine::new(&used_by(&[process.pid()]))?;
    holds(&machine, &member, 1)?;
    // Alice cannot see whether the process is in Bob's environment. But that environment does not hold the device.
    let stderr = machine.refused(ONE)?;
    ensure!(stderr.contains(&whose(&process)), "{stderr}");

    let library = machine.path().join("libnvidia-ml.so.1");
    let state = machine.path().join("state");
    let rules = |never: &str| {
        format!(
            "version: 1\nmode: dry-run\nnever: {{users: [{never}]}}\nrules:\n- {{kind: non-env-processes, action: report}}\n"
        )
    };
    let setup = Setup::new(&used_by(&[process.pid()]), &rules("root"))?
        .flag("--gpu.source=nvml")
        .env("GENV_NVML_LIBRARY", &library.display().to_string())
        .env("GENV_TMPDIR", &state.display().to_string());
    fs::set_permissions(setup.folder(), fs::Permissions::from_mode(0o755))?;
    let enforcer = setup.start()?;
    enforcer.wait_for_status("the process is outside", |status| status["outside"][0]["pid"] == process.pid())?;
    apart(|| -> Result<()> {
        own_mounts();
        let usual = Path::new("/var/lib");
        let shown = machine.path().join("lib");
        fs::create_dir_all(shown.join("genv-enforcer"))?;
        mount_bind(&shown, usual)?;
        mount_bind(enforcer.setup().state_directory(), usual.join("genv-enforcer"))?;
        let stderr = machine.refused(ONE)?;
        ensure!(stderr.contains(&whose(&process)), "{stderr}");
        // The driver does not answer.
        fs::rename(&library, machine.path().join("away"))?;
        let stderr = machine.refused(ONE)?;
        ensure!(stderr.contains(&whose(&process)), "{stderr}");
        fs::rename(machine.path().join("away"), &library)?;
        // An exempt process keeps no user from a device.
        enforcer.setup().rewrite_config(&rules(&format!("'uid:{BOB}'")))?;
        enforcer
            .wait_for_status("nobody is outside", |status| status["outside"].as_array().is_some_and(Vec::is_empty))?;
        assert_eq!(machine.printed(ONE)?, ("0\n".to_owned(), String::new()));
        enforcer.setup().rewrite_config(&rules("root"))?;
        enforcer.wait_for_status("the process is outside", |status| status["outside"][0]["pid"] == process.pid())?;
        machine.refused(ONE)?;
        // The process that the enforcer last saw has ended.
        machine.drives(&used_by(&[]))?;
        assert_eq!(machine.printed(ONE)?, ("0\n".to_owned(), String::new()));
        machine.drives(&used_by(&[process.pid()]))?;
        drop(process);
        assert_eq!(machine.printed(ONE)?, ("0\n".to_owned(), String::new()));
        Ok(())
    })
}
