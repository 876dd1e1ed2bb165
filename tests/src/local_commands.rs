//! This machine in the place of a host: what sshd would run there is run here.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use genv_core::collect::CollectOptions;
use genv_core::model::Snapshot;
use genv_remote::fallback::{Commands, Poller};
use genv_remote::protocol::HostProgram;
use genv_remote::session::{CommandEnd, CommandOutput, RunLimits};
use genv_remote::{FailureKind, HostFailure};

/// Who polls the host `gpu01`, which has what answers so.
pub fn poller(answers: HostProgram) -> Poller {
    let options = CollectOptions::default();
    Poller::new("gpu01", answers, false, &options, Duration::from_secs(60))
}

/// Polls a user of this machine, whose login shell is this command.
pub fn poll(poller: &mut Poller, shell: impl Fn() -> Command + Sync) -> Result<Snapshot> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    Ok(runtime.block_on(poller.poll(&LocalCommands(shell)))?)
}

/// A user of this machine whose login shell runs commands.
struct LocalCommands<F>(F);

impl<F: Fn() -> Command + Sync> LocalCommands<F> {
    fn output(&self, command: &str, stdin: &[u8]) -> std::io::Result<CommandOutput> {
        let mut shell = (self.0)();
        let shell = shell.arg("-c").arg(command).stdin(Stdio::piped());
        let mut child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let (mut stdout, mut stderr) = (Vec::new(), String::new());
        std::thread::scope(|scope| {
            // Who does not read their input has ended.
            scope.spawn(move || input.map(|mut input| input.write_all(stdin)));
            let complaint = child.stderr.take();
            let complaint = scope.spawn(move || {
                let mut text = String::new();
                if let Some(mut complaint) = complaint {
                    let _ = complaint.read_to_string(&mut text);
                }
                text
            });
            if let Some(mut pipe) = child.stdout.take() {
                let _ = pipe.read_to_end(&mut stdout);
            }
            stderr = complaint.join().unwrap_or_default();
        });
        let code = child.wait()?.code().and_then(|code| u32::try_from(code).ok());
        Ok(CommandOutput { end: code.map_or(CommandEnd::Unknown, CommandEnd::Exited), stdout, stderr })
    }
}

impl<F: Fn() -> Command + Sync> Commands for LocalCommands<F> {
    async fn run(&self, command: &str, stdin: &[u8], _limits: &RunLimits) -> Result<CommandOutput, HostFailure> {
        self.output(command, stdin).map_err(|error| HostFailure::new(FailureKind::Command, error))
    }
}
