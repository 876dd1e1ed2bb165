//! A job that outlived its shell, and another user who writes into the state: no action hits the job until its
//! own user ends the environment.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use anyhow::{Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, ends, enforcing, is_alive, sleeper_of};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience;
use genv_tests::process::Orphan;
use genv_tests::root::require_root;
use genv_tests::state;
use serde_json::json;

use crate::{ALICE, ANYTHING, BOB};

/// These rules end a process on a device at once if the process is in no environment, or in an environment that does
/// not hold the device.
const AT_ONCE: &str = "\
     - {kind: non-env-processes, action: terminate, for: 0s, warn: []}\n\
     - {kind: env-devices, action: terminate, for: 0s, warn: []}\n";

/// The output of a bash line that a user runs.
fn printed(setup: &Setup, uid: u32, line: &str) -> Result<String> {
    let output = patience::output(setup.shell(line)?.uid(uid).gid(uid))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{line}: {stderr}");
    Ok(String::from_utf8(output.stdout)?)
}

/// An enforcer, and a job of Bob on device 0 of an environment whose shell has ended.
struct Lab {
    enforcer: Enforcer,
    job: Orphan,
}

impl Lab {
    /// `is_recorded`: a command of Bob recorded the job.
    fn new(is_recorded: bool) -> Result<Self> {
        let setup = Setup::new(&used_by(&[]), &enforcing(AT_ONCE))?;
        fs::create_dir(setup.genv_directory())?;
        for (path, mode) in [(setup.folder(), 0o755), (&setup.genv_directory(), 0o777)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
        let start = "genv activate --id e1 --gpus 1 > /dev/null
            nohup sleep 1000000 > /dev/null 2>&1 < /dev/null &
            echo $!";
        let job = Orphan(printed(&setup, BOB, start)?.trim().parse()?);
        let outside = sleeper_of(ALICE, &ANYTHING)?;
        setup.rewrite_scenario(&used_by(&[job.0, outside.pid()]))?;
        if is_recorded {
            printed(&setup, BOB, "genv devices")?;
        }
        let enforcer = setup.start()?;
        ends(outside.pid())?;
        let lab = Self { enforcer, job };
        lab.lives("before")?;
        Ok(lab)
    }

    fn folder(&self) -> std::path::PathBuf {
        self.enforcer.setup().genv_directory()
    }

    /// An ordinary command of another user.
    fn command_of_another(&self) -> Result<()> {
        self.enforcer.wait_for_cycles(2)?;
        printed(self.enforcer.setup(), ALICE, "genv exec --gpus 1 -- true").map(drop)
    }

    fn lives(&self, when: &str) -> Result<()> {
        self.enforcer.wait_for_cycles(6)?;
        ensure!(is_alive(self.job.0), "{when}: {}", self.enforcer.log());
        Ok(())
    }
}

/// An act of another user, with its name.
type Mischief = (&'static str, fn(&Lab) -> Result<()>);

const MISCHIEF: [Mischief; 4] = [
    ("the record is removed", |lab| {
        state::edit(&lab.folder(), |state| {
            state["environments"] = json!([]);
            Ok(())
        })
    }),
    ("the file is damaged, and a command runs", |lab| {
        fs::write(lab.folder().join(state::FILE), "{\"version\": 1, \"environments\": [ nonsense")?;
        lab.command_of_another()
    }),
    ("the file is removed, and a command runs", |lab| {
        fs::remove_file(lab.folder().join(state::FILE))?;
        lab.command_of_another()
    }),
    ("the file and its copy are removed, and a command runs", |lab| {
        for name in [state::FILE, state::COPY] {
            fs::remove_file(lab.folder().join(name))?;
        }
        lab.command_of_another()
    }),
];

#[test]
fn a_job_that_outlived_its_shell_goes_on_whatever_others_write() -> Result<()> {
    require_root();
    for is_recorded in [false, true] {
        for (what, mischief) in MISCHIEF {
            let lab = Lab::new(is_recorded)?;
            mischief(&lab)?;
            lab.lives(&format!("{what}, recorded: {is_recorded}"))?;
            // A restart must not change this.
            let Lab { enforcer, job } = lab;
            let (_, setup) = enforcer.terminate()?;
            let enforcer = setup.start()?;
            let lab = Lab { enforcer, job };
            lab.lives(&format!("{what}, recorded: {is_recorded}, restarted"))?;
        }
    }
    Ok(())
}

#[test]
fn a_job_that_outlived_its_shell_ends_when_its_user_ends_the_environment() -> Result<()> {
    require_root();
    let lab = Lab::new(true)?;
    let line = format!("genv envs deactivate --pid {}", lab.job.0);
    printed(lab.enforcer.setup(), BOB, &line)?;
    ends(lab.job.0)
}
