//! A shell in a real terminal, with somebody who types.

use std::fmt;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};
use rexpect::process::PtyProcess;
use rexpect::session::{PtySession, spawn_command};
use rustix::process::Signal;

use crate::process::signal;
use crate::shell::{Account, Shell};

pub const PROMPT: &str = "READY> ";

const PATIENCE_MILLISECONDS: u64 = 120_000;

pub struct Terminal {
    shell: Shell,
    session: PtySession,
    lines: usize,
}

impl fmt::Debug for Terminal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terminal").field("shell", &self.shell).finish_non_exhaustive()
    }
}

/// Writes a start-up file that sets genv up, between other lines.
pub fn start_up(account: &Account, shell: Shell, before: &str, after: &str) -> Result<()> {
    start_up_in(&account.home(), shell, before, after)
}

/// As [`start_up`], in a home directory.
pub fn start_up_in(home: &Path, shell: Shell, before: &str, after: &str) -> Result<()> {
    let prompt = match shell {
        Shell::Bash | Shell::Zsh => format!("PS1='{PROMPT}'"),
        Shell::Fish => {
            format!("function fish_prompt; echo -n '{PROMPT}'; end\nset -g fish_greeting")
        }
    };
    let file = home.join(shell.startup_file());
    fs::create_dir_all(file.parent().context("a file lies in a folder")?)?;
    let setup = shell.setup();
    fs::write(file, format!("{prompt}\n{before}\n{setup}\n{after}\n"))?;
    Ok(())
}

impl Terminal {
    /// A shell that reads the account's start-up file, with these variables besides the account's.
    pub fn start(account: &Account, shell: Shell, variables: &[(&str, &str)]) -> Result<Self> {
        let mut command = account.command(shell.name())?;
        if shell == Shell::Bash {
            command.arg("--noprofile");
        }
        command.arg("-i").env("TERM", "xterm").envs(variables.iter().copied());
        Self::run_in(command, shell)
    }

    /// A program that ends up in a shell of this kind, such as ssh.
    pub fn run_in(command: Command, shell: Shell) -> Result<Self> {
        let session = spawn_command(command, Some(PATIENCE_MILLISECONDS)).map_err(said)?;
        Ok(Self { shell, session, lines: 0 })
    }

    pub fn pid(&self) -> u32 {
        self.session.process().child_pid.as_raw().unsigned_abs()
    }

    pub fn wait(&mut self, text: &str) -> Result<String> {
        let shown = self.session.exp_string(text).map_err(said);
        shown.with_context(|| format!("{} never shows {text:?}", self.shell))
    }

    pub fn type_line(&mut self, line: &str) -> Result<()> {
        self.session.send_line(line).map_err(said)?;
        Ok(())
    }

    /// Types a line, and waits until this text is shown; returns what was shown before.
    pub fn enter(&mut self, line: &str, text: &str) -> Result<String> {
        self.type_line(line)?;
        self.wait(text)
    }

    pub fn type_text(&mut self, text: &str) -> Result<()> {
        self.session.send(text).map_err(said)?;
        self.session.flush().map_err(said)
    }

    pub fn press_control(&mut self, letter: char) -> Result<()> {
        self.session.send_control(letter).map_err(said)
    }

    /// Runs a line, and returns what was shown meanwhile and its exit code. An empty line: that of the last one.
    pub fn run(&mut self, line: &str) -> Result<(String, i32)> {
        self.lines += 1;
        let number = self.lines;
        let separator = if line.is_empty() { "" } else { "; " };
        // What is typed is shown too, but without the code.
        self.type_line(&format!("{line}{separator}echo \"<{number}:{}>\"", self.shell.code()))?;
        let shown = self.session.exp_regex(&format!("<{number}:[0-9]+>")).map_err(said);
        let (before, mark) = shown.with_context(|| format!("{} never ends {line:?}", self.shell))?;
        let code = mark.trim_end_matches('>').split(':').nth(1).context("no code")?;
        Ok((before, code.parse()?))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Interactive shells do not heed SIGTERM, with which the crate would try for a minute. It may have ended by itself.
        let _ = signal(self.pid(), Signal::KILL);
    }
}

/// A program in a terminal of 80 columns, whose output is read without a delay. The drop ends the program by SIGTERM.
pub struct DirectTerminal {
    process: PtyProcess,
    output: File,
    shown: Vec<u8>,
}

impl DirectTerminal {
    pub fn start(command: Command) -> Result<Self> {
        let process = PtyProcess::new(command).map_err(said)?;
        let output = process.get_file_handle().map_err(said)?;
        Ok(Self { process, output, shown: Vec::new() })
    }

    pub fn pid(&self) -> u32 {
        self.process.child_pid.as_raw().unsigned_abs()
    }

    /// Waits until this text was shown.
    pub fn wait(&mut self, text: &str) -> Result<()> {
        while !self.shown.windows(text.len()).any(|it| it == text.as_bytes()) {
            self.read().with_context(|| format!("{text:?} is never shown"))?;
        }
        Ok(())
    }

    /// Waits until the program has closed the terminal.
    pub fn wait_until_closed(&mut self) {
        while self.read().is_ok() {}
    }

    /// Waits for more output.
    pub fn read(&mut self) -> Result<()> {
        let mut buffer = [0; 64 << 10];
        let length = self.output.read(&mut buffer)?;
        ensure!(length > 0, "the program has ended");
        self.shown.extend(&buffer[..length]);
        Ok(())
    }
}

fn said(error: rexpect::error::Error) -> anyhow::Error {
    anyhow!("{error}")
}
