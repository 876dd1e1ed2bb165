//! Runs a user's command, and ends with its exit code.

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

/// The command with this program and these arguments. clap requires at least one word.
pub(crate) fn command(words: &[OsString]) -> anyhow::Result<Command> {
    let (program, arguments) = words.split_first().context("there is no command")?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// Checks that the program of a command exists in `first` or in the folders of PATH, where the start will search it.
pub(crate) fn look_up(command: &Command, first: Option<&OsStr>) -> Result<(), Failure> {
    let program = command.get_program();
    let found = if program.is_empty() {
        Err(Errno::NOENT)
    } else if program.as_encoded_bytes().contains(&b'/') {
        executable(Path::new(program))
    } else {
        // Without PATH the C library uses default folders.
        let Some(path) = env::var_os("PATH").filter(|it| !it.is_empty()) else {
            return Ok(());
        };
        let folders = first.map(Into::into).into_iter();
        let mut missing = Errno::NOENT;
        let is_found = folders.chain(env::split_paths(&path)).any(|folder| {
            let check = executable(&folder.join(program));
            if check == Err(Errno::ACCESS) {
                missing = Errno::ACCESS;
            }
            check.is_ok()
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

/// Replaces this program by the command (execve(2)). Returns only after an error.
pub(crate) fn exec_command(mut command: Command) -> anyhow::Error {
    let error = command.exec();
    cannot_run(&command, &error).into()
}

/// Catches signals and forwards them to a command, from before its start.
pub(crate) struct SignalForwarding(SignalsInfo<WithOrigin>);

impl SignalForwarding {
    /// Catches signals from now on.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let signals = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2];
        let caught = SignalsInfo::new(signals);
        Ok(Self(caught.context("cannot forward signals")?))
    }

    pub(crate) fn start(self, mut command: Command) -> anyhow::Result<RunningCommand> {
        let spawned = command.spawn();
        let child = spawned.map_err(|error| cannot_run(&command, &error))?;
        Ok(RunningCommand { child, signals: self.0 })
    }
}

pub(crate) struct RunningCommand {
    child: Child,
    signals: SignalsInfo<WithOrigin>,
}

impl RunningCommand {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process.
    pub(crate) fn kill(mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }

    /// Waits for the end of the command. Meanwhile forwards the signals that other processes send to this program.
    ///
    /// A terminal sends its signals to the command too, so that they are not forwarded.
    pub(crate) fn wait(self) -> anyhow::Result<ExitStatus> {
        let Self { mut child, mut signals } = self;
        // A pidfd, since the kernel may give the pid to another process after the end of the command.
        let target = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let target = target.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(target) = target {
            thread::Builder::new()
                .name("signals".to_owned())
                .spawn(move || {
                    for origin in signals.forever() {
                        // The shell continues only after this program has stopped too.
                        if origin.signal == SIGTSTP {
                            let _ = emulate_default_handler(SIGTSTP);
                            continue;
                        }
                        let sent = origin.process.is_some();
                        if let Some(signal) = Signal::from_named_raw(origin.signal).filter(|_| sent) {
                            // This fails if the command has ended.
                            let _ = pidfd_send_signal(&target, signal);
                        }
                    }
                })
                .context("cannot forward signals")?;
        }
        child.wait().context("cannot wait for the command")
    }
}

/// The exit code of an ended command: 128 + n for signal n.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, signal) => 128 + signal.unwrap_or_default(),
    };
    u8::try_from(code).unwrap_or(1)
}

/// Success for exit code 0, or an error with the exit code.
pub(crate) fn exit_code_result(code: u8) -> anyhow::Result<()> {
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
            "cannot run {program}: {error}: see whether it is a program that you may execute"
        )),
    }
}
