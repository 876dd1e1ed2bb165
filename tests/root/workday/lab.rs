//! A machine of a lab: users with shells and environments of their own, processes that are real, and GPUs that are not.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Setup, is_alive};
use genv_tests::patience::{Lines, ended, until};
use genv_tests::process::{Running, Sleeper, children, signal};
use genv_tests::root::FIRST_UID;
use genv_tests::shell::{installed, search_path};
use rustix::process::Signal;

/// By their uids, from [`FIRST_UID`] on.
pub(crate) const USERS: [&str; 5] = ["alice", "bob", "carol", "dave", "eve"];

const DEVICES: u32 = 12;

pub(crate) fn uid_of(user: &str) -> u32 {
    let position = USERS.iter().position(|it| *it == user);
    FIRST_UID + u32::try_from(position.expect("a user of the lab")).expect("a few users")
}

/// Lets every user read the enforcer's folder, and make environments.
pub(crate) fn open_to_everybody(setup: &Setup) -> Result<()> {
    let mode = fs::Permissions::from_mode;
    fs::set_permissions(setup.folder(), mode(0o755))?;
    fs::create_dir(setup.genv_directory())?;
    // Whatever the umask.
    Ok(fs::set_permissions(setup.genv_directory(), mode(0o777))?)
}

/// A command of a user, without any environment.
pub(crate) fn command_of(user: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    let uid = if user == "root" { 0 } else { uid_of(user) };
    command.env_clear().env("PATH", "/usr/bin:/bin");
    command.uid(uid).gid(uid);
    command
}

/// As [`command_of`], with genv and its state.
pub(crate) fn genv_command(user: &str, program: &str, setup: &Setup) -> Result<Command> {
    let mut command = command_of(user, installed(program));
    command
        .env("PATH", search_path()?)
        .env("HOME", setup.folder())
        .env("GENV_TMPDIR", setup.genv_directory())
        .env("GENV_SCENARIO", setup.folder().join("scenario.yaml"))
        .current_dir("/");
    Ok(command)
}

/// A user's shell with genv in it; it ends with the value.
#[derive(Debug)]
pub(crate) struct Shell {
    child: Running,
    input: ChildStdin,
    lines: Lines,
    complaints: PathBuf,
}

impl Shell {
    /// Starts one, and activates an environment with these flags.
    pub(crate) fn activated(user: &str, flags: &str, setup: &Setup) -> Result<Self> {
        let complaints = tempfile::NamedTempFile::new_in(setup.folder())?;
        let (complaints, path) = complaints.keep()?;
        let mut bash = genv_command(user, "bash", setup)?;
        bash.args(["--norc", "--noprofile", "-s"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(complaints);
        let mut child = Running::spawn(&mut bash)?;
        let mut shell = Self {
            input: child.stdin.take().context("no input")?,
            lines: Lines::of(child.stdout.take().context("no output")?),
            child,
            complaints: path,
        };
        shell.run(r#"eval "$(genv shell --init)""#)?;
        shell.run(&format!("genv activate {flags}"))?;
        Ok(shell)
    }

    /// Runs a line, which must succeed; what it printed.
    pub(crate) fn run(&mut self, line: &str) -> Result<String> {
        let (code, printed) = self.code_of(line)?;
        let complaints = || fs::read_to_string(&self.complaints).unwrap_or_default();
        ensure!(code == 0, "{line}: {code}: {printed}{}", complaints());
        Ok(printed)
    }

    fn code_of(&mut self, line: &str) -> Result<(i32, String)> {
        writeln!(self.input, "{line}\necho \"= $?\"")?;
        let mut printed = Vec::new();
        loop {
            let next = self.lines.next_line().with_context(|| line.to_owned())?;
            if let Some(code) = next.strip_prefix("= ") {
                return Ok((code.parse()?, printed.join("\n")));
            }
            printed.push(next);
        }
    }

    /// The devices that programs started here see.
    pub(crate) fn devices(&mut self) -> Result<Vec<u32>> {
        indices(&self.run("echo $CUDA_VISIBLE_DEVICES")?)
    }

    /// Starts `sleep` in the background with these words before it, and returns its pid once it is that program.
    pub(crate) fn start(&mut self, before: &str) -> Result<u32> {
        let pid = self.run(&format!("{before} sleep 1000000 & echo $!"))?;
        sleeps(pid.parse()?)
    }

    /// The signal that ended a process which was started here.
    fn signal_of(&mut self, pid: u32) -> Result<Option<Signal>> {
        let (code, _) = self.code_of(&format!("wait {pid}"))?;
        Ok(Signal::from_named_raw(code - 128))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Any of them may have ended by itself.
        for pid in children(self.child.id()) {
            let _ = signal(pid, Signal::KILL);
        }
    }
}

/// Waits until a process that was started runs `sleep`.
fn sleeps(pid: u32) -> Result<u32> {
    let name = format!("/proc/{pid}/comm");
    until("it sleeps", || Ok(fs::read_to_string(&name)? == "sleep\n"))?;
    Ok(pid)
}

fn indices(text: &str) -> Result<Vec<u32>> {
    let indices = text.split(',').filter(|index| !index.is_empty());
    Ok(indices.map(str::parse).collect::<Result<_, _>>()?)
}

/// `genv exec`, and the program in its environment.
#[derive(Debug)]
pub(crate) struct Executed {
    pub(crate) genv: Running,
    pub(crate) pid: u32,
    pub(crate) eid: String,
    pub(crate) devices: Vec<u32>,
}

impl Executed {
    pub(crate) fn start(user: &str, flags: &[&str], setup: &Setup) -> Result<Self> {
        let path = setup.folder().join(format!("{user}.executed"));
        let script = "echo $$ $GENV_ENVIRONMENT_ID $CUDA_VISIBLE_DEVICES; exec sleep 1000000";
        let mut command = genv_command(user, "env", setup)?;
        command
            .args(["genv", "exec"])
            .args(flags)
            .args(["--", "sh", "-c", script])
            .stdin(Stdio::null())
            .stdout(File::create(&path)?);
        let genv = Running::spawn(&mut command)?;
        let mut printed = String::new();
        until("the command runs", || {
            printed = fs::read_to_string(&path)?;
            Ok(printed.ends_with('\n'))
        })?;
        let [pid, eid, devices] = printed.split_whitespace().collect::<Vec<_>>()[..] else {
            anyhow::bail!("it has no devices: {printed}");
        };
        Ok(Self { genv, pid: sleeps(pid.parse()?)?, eid: eid.to_owned(), devices: indices(devices)? })
    }
}

/// What is to become of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is there in the evening.
    Stays,
    /// The enforcer ends it.
    Ended(Signal),
    /// It ends by itself.
    Leaves,
}

/// Who can tell how a process ended.
#[derive(Debug)]
pub(crate) enum Parent {
    /// This program.
    Test(Sleeper),
    /// The shell of this name.
    Shell(&'static str),
    /// `genv exec`, whose exit code tells.
    Genv(Running),
}

/// A process that uses GPUs.
#[derive(Debug)]
pub(crate) struct Actor {
    pub(crate) name: &'static str,
    pub(crate) pid: u32,
    pub(crate) parent: Parent,
    pub(crate) devices: Vec<u32>,
    pub(crate) gibibytes: u32,
    pub(crate) utilization: f32,
    pub(crate) fate: Fate,
}

impl Actor {
    /// A process that was started by [`command_of`], on one device.
    pub(crate) fn outside(name: &'static str, command: &mut Command, device: u32, fate: Fate) -> Result<Self> {
        let process = Sleeper::spawn(command)?;
        Ok(Self {
            name,
            pid: process.pid(),
            parent: Parent::Test(process),
            devices: vec![device],
            gibibytes: 1,
            utilization: 0.1,
            fate,
        })
    }

    /// The signal that ended it.
    pub(crate) fn signal(
        &mut self,
        shells: &mut std::collections::BTreeMap<&'static str, Shell>,
    ) -> Result<Option<Signal>> {
        Ok(match &mut self.parent {
            Parent::Test(process) => {
                let status = process.ended()?;
                status.signal().and_then(Signal::from_named_raw)
            }
            Parent::Shell(name) => shells.get_mut(name).context("no such shell")?.signal_of(self.pid)?,
            Parent::Genv(genv) => {
                let code = ended(genv)?.code().unwrap_or_default();
                Signal::from_named_raw(code - 128)
            }
        })
    }
}

/// Who uses what, of those who are alive.
pub(crate) fn scenario(actors: &[Actor]) -> String {
    let alive = actors.iter().filter(|actor| is_alive(actor.pid));
    let uses: Vec<String> = alive
        .map(|actor| {
            let devices: Vec<String> = actor
                .devices
                .iter()
                .map(|index| {
                    let (memory, utilization) = (actor.gibibytes, actor.utilization);
                    format!("{{index: {index}, memory: {memory}gi, utilization: {utilization}}}")
                })
                .collect();
            let (pid, devices) = (actor.pid, devices.join(", "));
            format!("{{pid: {pid}, devices: [{devices}]}}")
        })
        .collect();
    let uses = uses.join(",\n    ");
    format!("version: 1\nhosts:\n- devices: [{{count: {DEVICES}, memory: 80gi}}]\n  processes: [{uses}]\n")
}
