//! Which processes may become members of an environment, and who may change one.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{self, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};
use genv_core::proc::is_kernel_thread;
use genv_tests::enforcer::process_of_another;
use genv_tests::patience::{DRIVER_PATIENCE, output, until};
use genv_tests::process::{Orphan, Running, Sleeper, shared_folder};
use genv_tests::root::FIRST_UID;
use genv_tests::state::{self, Environment};
use rustix::process::getuid;

/// Another user than the one of a [`Machine`].
pub(crate) const BOB: u32 = FIRST_UID + 1;

/// A state directory and a program that all users share.
pub(crate) struct Machine {
    folder: tempfile::TempDir,
    /// An ordinary user: the one who runs the test; for root one of its own, since commands look at all processes of a user
    /// for those that name an environment.
    pub(crate) user: u32,
}

impl Machine {
    pub(crate) fn new() -> Result<Self> {
        let own = getuid().as_raw();
        let user = if own == 0 { user_of_its_own() } else { own };
        Ok(Self { folder: shared_folder()?, user })
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// A line of sh; `user` is for root alone.
    fn sh(&self, user: Option<u32>, line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]).env_clear();
        command.env("PATH", format!("{}:/usr/bin:/bin", self.folder.path().display()));
        command.env("GENV_TMPDIR", self.state()).env("GENV_DEVICES", "4").envs([DRIVER_PATIENCE]);
        command.current_dir(self.state());
        if let Some(user) = user.filter(|_| is_root()) {
            command.uid(user).gid(user);
        }
        command
    }

    pub(crate) fn run(&self, user: Option<u32>, line: &str) -> Result<Output> {
        output(&mut self.sh(user, line))
    }

    pub(crate) fn succeeds(&self, user: Option<u32>, line: &str) -> Result<String> {
        let done = self.run(user, line)?;
        ensure!(done.status.success(), "{line}: {done:?}");
        Ok(String::from_utf8(done.stdout)?)
    }

    /// Fails unless the line is refused with these words, and changes nothing.
    fn refuses(&self, user: u32, line: &str, words: &str) -> Result<()> {
        let before = self.content();
        let done = self.run(Some(user), line)?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.code() == Some(1), "{line}: {done:?}");
        ensure!(said.contains(words), "{line}: {said}");
        ensure!(self.content() == before, "{line}");
        Ok(())
    }

    /// The content of the state.
    fn content(&self) -> String {
        fs::read_to_string(self.state().join(state::FILE)).unwrap_or_default()
    }

    pub(crate) fn sleeper(&self, user: u32) -> Result<Sleeper> {
        let mut command = self.sh(Some(user), "exec sleep 1000");
        Sleeper::spawn(&mut command)
    }
}

/// An uid that no other test uses now.
fn user_of_its_own() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // A process of tests makes fewer than 256 machines, and pids have 22 bits.
    0x4000_0000 + process::id() * 256 + NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn is_root() -> bool {
    getuid().is_root()
}

#[test]
fn a_process_of_another_user_becomes_no_member() -> Result<()> {
    let machine = Machine::new()?;
    let user = machine.user;
    let own = machine.sleeper(user)?;
    let add = |pid: u32| format!("genv envs activate --eid e1 --uid {user} --pid {pid}");
    machine.succeeds(Some(user), &add(own.pid()))?;
    let bobs = machine.sleeper(BOB)?;
    let other = if is_root() { bobs.pid() } else { process_of_another()?.1 };
    let words = format!("cannot add process {other}: it runs as user ");
    machine.refuses(user, &add(other), &words)?;
    let new = format!("genv envs activate --eid e2 --uid {user} --pid {other}");
    machine.refuses(user, &new, &words)?;
    // The shell function names the shell's pid by a variable, which anybody can set.
    let call = |pid: u32, command: &str| {
        format!("f=$(mktemp -u); mkfifo $f; exec 9<>$f; rm $f; export GENV_CALLER='3 bash {pid} script'; {command}")
    };
    machine.refuses(user, &call(other, "genv activate --id e1"), &words)?;
    machine.refuses(user, &call(other, "genv activate"), &words)?;
    let before = machine.content();
    machine.run(Some(user), &call(other, "GENV_ENVIRONMENT_ID=e1 genv shell --join"))?;
    ensure!(machine.content() == before);
    if is_root() {
        // A command of another user does not take the process out either.
        let leave = call(own.pid(), "GENV_ENVIRONMENT_ID=e1 genv deactivate");
        machine.run(Some(BOB), &leave)?;
        ensure!(machine.content() == before);
        machine.succeeds(None, &add(bobs.pid()))?;
        ensure!(machine.content().contains(&format!("\"pid\":{},", bobs.pid())));
    }
    Ok(())
}

#[test]
fn a_thread_of_the_kernel_becomes_no_member() -> Result<()> {
    let machine = Machine::new()?;
    let entries = fs::read_dir("/proc")?.flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let Some(thread) = pids.find(|pid| is_kernel_thread(*pid)) else {
        // A container shows none.
        return Ok(());
    };
    for user in [0, machine.user] {
        let line = format!("genv envs activate --eid e1 --uid {user} --pid {thread}");
        if user != 0 || is_root() {
            machine.refuses(user, &line, "it is a thread of the kernel")?;
        }
    }
    Ok(())
}

pub(crate) struct Job {
    pub(crate) command: Orphan,
    _genv: Running,
}

impl Machine {
    /// A job in the environment e1, with the devices 0 and 1.
    pub(crate) fn job(&self) -> Result<Job> {
        let line = "exec genv exec --eid e1 --gpus 2 --name training -- sleep 1000";
        let mut job = self.sh(Some(self.user), line);
        job.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let genv = Running::spawn(&mut job)?;
        let mut command = 0;
        // The copy is written last.
        until("the job has its devices", || {
            command = genv_tests::process::children(genv.id()).pop().unwrap_or_default();
            let copy = fs::read_to_string(self.state().join(state::COPY)).unwrap_or_default();
            Ok(copy.contains(&format!("\"pid\":{command},")))
        })?;
        Ok(Job { command: Orphan(command), _genv: genv })
    }
}

#[test]
fn only_its_user_and_root_change_an_environment() -> Result<()> {
    const OWNER: u32 = FIRST_UID;
    let machine = Machine::new()?;
    let state = machine.state();
    let member = machine.sleeper(OWNER)?;
    let write = || state::write(&state, 4, &[Environment::new("e1", OWNER, member.pid(), &[0])]);
    let line = |line: &str| format!("genv {}", line.replace("PID", &member.pid().to_string()));
    write()?;
    let other = if is_root() { BOB } else { machine.user };
    let refused = "devices detach --eid e1|devices detach --eid e1 --index 0|devices attach --eid e1 --count 0|\
        devices attach --eid e1 --index 1 -o|devices --reset|envs --reset|envs config --eid e1 gpus --count 0|\
        envs deactivate --pid PID|envs activate --eid e1 --uid 54322 --pid PID|\
        envs activate --eid e2 --uid 54321 --pid PID";
    for command in refused.split('|') {
        machine.refuses(other, &line(command), "the user 54321: only this user and root may do so")?;
    }
    if is_root() {
        let allowed = "devices attach --eid e1 --count 2|devices detach --eid e1|\
            envs config --eid e1 gpus --count 0|devices --reset|envs deactivate --pid PID";
        for command in allowed.split('|') {
            machine.succeeds(Some(OWNER), &line(command))?;
        }
        write()?;
        ensure!(machine.succeeds(None, "genv devices detach --eid e1")? == "\n");
    }
    Ok(())
}
