//! Running a command that the user names, and ending as it ends.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::thread;

use anyhow::Context as _;
use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::emulate_default_handler;

use crate::failure::Failure;

/// The command of these words; clap sees to it that there is one.
pub(crate) fn command(words: &[OsString]) -> anyhow::Result<Command> {
    let (program, arguments) = words.split_first().context("there is no command")?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// Looks for the program of a command, as its start will: in `first` and the folders of PATH.
///
/// # Errors
/// It is not there, or cannot be run.
pub(crate) fn look_up(command: &Command, first: Option<&OsStr>) -> Result<(), Failure> {
    let program = command.get_program();
    let found = if program.is_empty() {
        Err(Errno::NOENT)
    } else if program.as_encoded_bytes().contains(&b'/') {
        executable(Path::new(program))
    } else {
        // Without PATH the C library has folders of its own.
        let Some(path) = env::var_os("PATH").filter(|it| !it.is_empty()) else {
            return Ok(());
        };
        let folders = first.map(Into::into).into_iter();
        let mut missing = Errno::NOENT;
        let is_found = folders.chain(env::split_paths(&path)).any(|folder| {
            let answer = executable(&folder.join(program));
            if answer == Err(Errno::ACCESS) {
                missing = Errno::ACCESS;
            }
            answer.is_ok()
        });
        if is_found { Ok(()) } else { Err(missing) }
    };
    found.map_err(|errno| cannot_run(command, &errno.into()))
}

fn executable(path: &Path) -> Result<(), Errno> {
    access(path, Access::EXEC_OK)?;
    if path.is_dir() {
        return Err(Errno::ACCESS);
    }
    Ok(())
}

/// Becomes the command; returns only if that fails.
pub(crate) fn become_command(mut command: Command) -> anyhow::Error {
    let error = command.exec();
    cannot_run(&command, &error).into()
}

/// Signals that are on their way to a command: caught from before it starts.
pub(crate) struct Forwarding(SignalsInfo<WithOrigin>);

impl Forwarding {
    /// Catches signals from now on.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let signals = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2];
        let caught = SignalsInfo::new(signals);
        Ok(Self(caught.context("cannot hand on signals")?))
    }

    /// Starts the command.
    ///
    /// # Errors
    /// It is not there, or cannot be run.
    pub(crate) fn start(self, mut command: Command) -> anyhow::Result<Running> {
        let spawned = command.spawn();
        let child = spawned.map_err(|error| cannot_run(&command, &error))?;
        Ok(Running { child, signals: self.0 })
    }
}

/// A command that runs.
pub(crate) struct Running {
    child: Child,
    signals: SignalsInfo<WithOrigin>,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process.
    pub(crate) fn kill(mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }

    /// Waits for its end, and hands on the signals that others send to this program meanwhile.
    ///
    /// Those that a terminal sends reach the command without it: they go to everyone at work there.
    pub(crate) fn wait(self) -> anyhow::Result<ExitStatus> {
        let Self { mut child, mut signals } = self;
        // By number the signal might reach another process, once the command has ended.
        let target = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let target = target.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(target) = target {
            thread::Builder::new()
                .name("signals".to_owned())
                .spawn(move || {
                    for origin in signals.forever() {
                        // The shell goes on only when this program has stopped as well.
                        if origin.signal == SIGTSTP {
                            let _ = emulate_default_handler(SIGTSTP);
                            continue;
                        }
                        let sent = origin.process.is_some();
                        if let Some(signal) = Signal::from_named_raw(origin.signal).filter(|_| sent) {
                            // It fails if the command has ended, which is being waited for.
                            let _ = pidfd_send_signal(&target, signal);
                        }
                    }
                })
                .context("cannot hand on signals")?;
        }
        child.wait().context("cannot wait for the command")
    }
}

/// The exit code for the end of a command: 128 + n for signal n.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, signal) => 128 + signal.unwrap_or_default(),
    };
    u8::try_from(code).unwrap_or(1)
}

/// Success, or the command's exit code.
pub(crate) fn handed_on(code: u8) -> anyhow::Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Failure::Silent(code).into()),
    }
}

fn cannot_run(command: &Command, error: &io::Error) -> Failure {
    let program = command.get_program().to_string_lossy();
    let program = program.escape_debug();
    match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::NotFound(format!("cannot run {program}: {error}: see whether it is installed and on PATH"))
        }
        _ => Failure::CannotRun(format!(
            "cannot run {program}: {error}: see whether it is a program, and yours to execute"
        )),
    }
}
