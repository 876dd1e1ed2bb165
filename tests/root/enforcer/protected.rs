//! Programs that are never ended: by their file, and by who can have changed what they do.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use genv_enforcer::execute::Executor;
use genv_enforcer::plan::Outcome;
use genv_tests::changed_user::ChangedUser;
use genv_tests::enforcer::{copy_of_sleep, ends, is_alive, terminate};
use genv_tests::own_file_system::OwnFileSystem;
use genv_tests::process::Running;
use genv_tests::root::{apart, own_mounts, require_root};
use rustix::mount::{MountFlags, mount};

use crate::enforcer::refused;
use crate::enforcer::stage::{Stage, target};
use crate::{ALICE, ANYTHING};

/// A user of the system, whom every machine has.
const DAEMON: u32 = 1;

const SSHD: &str = "/usr/local/sbin/sshd";

/// What comes of ending a process.
fn attempt(executor: &mut Executor, stage: &Stage, pid: u32) -> Result<Outcome> {
    stage.uses_gpu(pid);
    Ok(executor.execute(&terminate(&target(pid)?), "why"))
}

#[test]
fn promise_06_sshd_is_out_of_reach_of_a_user_of_the_system_and_as_the_child_of_roots() -> Result<()> {
    require_root();
    apart(|| {
        own_mounts();
        mount("tmpfs", "/usr/local/sbin", "tmpfs", MountFlags::empty(), c"mode=755")?;
        // By another process: a file that this process had open could not be run.
        let mut install = Command::new("install");
        ensure!(install.args(["--mode=755", "/usr/bin/perl", SSHD]).status()?.success());
        let stage = Stage::new();
        let mut executor = stage.executor();
        let serves = ChangedUser::of_program(SSHD, 0, ALICE, &ANYTHING)?;
        let why = "/usr/local/sbin/sshd, which is never ended";
        refused(&attempt(&mut executor, &stage, serves.child())?, why);
        // One below a user's own, and one below another program of root's.
        let below_own = ChangedUser::of_program(SSHD, ALICE, ALICE, &ANYTHING)?;
        assert_eq!(attempt(&mut executor, &stage, below_own.child())?, Outcome::Done);
        let own = copy_of_sleep(Path::new("/bin/sleep"), ALICE, &ANYTHING)?;
        assert_eq!(attempt(&mut executor, &stage, own.pid())?, Outcome::Done);
        // A user of the system is trusted with it, also once an update has replaced the file.
        let of_system = ChangedUser::of_program(SSHD, DAEMON, DAEMON, &ANYTHING)?;
        refused(&attempt(&mut executor, &stage, of_system.child())?, why);
        fs::remove_file(SSHD)?;
        refused(&attempt(&mut executor, &stage, of_system.child())?, why);
        assert!(is_alive(serves.child()) && is_alive(of_system.child()));
        Ok(())
    })
}

#[test]
fn a_program_in_a_file_system_of_the_users_own_is_ended_like_any_other() -> Result<()> {
    require_root();
    apart(|| {
        own_mounts();
        let own = OwnFileSystem::with(Path::new("/bin/sleep"), ALICE)?;
        // An AppImage, or a container of Apptainer, runs so.
        let hog = copy_of_sleep(&own.program(), ALICE, &ANYTHING)?;
        let file = fs::metadata(format!("/proc/{}/exe", hog.pid()));
        ensure!(file.is_err(), "root sees the file: {file:?}");
        let stage = Stage::new();
        let mut executor = stage.executor();
        assert_eq!(attempt(&mut executor, &stage, hog.pid())?, Outcome::Done);
        ends(hog.pid())
    })
}

/// Makes a path of more than a page, step by step, and runs a program there.
const FAR_BELOW: &str = r#"
    my $name = "d" x 250;
    for (1 .. 20) { mkdir $name or die; chdir $name or die }
    system "cp", "/bin/sleep", "."; exec "./sleep", "1000000";
"#;

#[test]
fn a_program_whose_path_is_too_long_for_a_name_is_ended_like_any_other() -> Result<()> {
    require_root();
    let folder = tempfile::tempdir()?;
    chown(folder.path(), Some(ALICE), Some(ALICE))?;
    let mut command = Command::new("/usr/bin/perl");
    command.args(["-e", FAR_BELOW]).current_dir(folder.path());
    command.env_clear().envs(ANYTHING).env("PATH", "/usr/bin:/bin");
    let hog = Running::spawn(command.uid(ALICE).gid(ALICE))?;
    let link = format!("/proc/{}/exe", hog.id());
    genv_tests::patience::until("it runs", || Ok(fs::read_link(&link).is_err()))?;
    let stage = Stage::new();
    let mut executor = stage.executor();
    assert_eq!(attempt(&mut executor, &stage, hog.id())?, Outcome::Done);
    ends(hog.id())
}
