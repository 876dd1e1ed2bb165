//! A user with a terminal.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::is_alive;
use genv_tests::patience::{DRIVER_PATIENCE, output, until};
use genv_tests::shell::{Shell, search_path};
use genv_tests::terminal::{PROMPT, Terminal};

/// The mark in the prompt of a shell that is in an environment.
const MARK: &str = "(genv) ";

/// A login: the terminal belongs to the user, and takes messages.
const LOGIN: &str = "if [ -t 0 ]; then chown \"$1\" \"$(tty)\"; chmod 620 \"$(tty)\"; fi; user=$1; shift; \
    exec setpriv --reuid \"$user\" --regid \"$user\" --clear-groups -- \"$@\"";

#[derive(Debug)]
pub(super) struct Person {
    pub(super) name: &'static str,
    pub(super) uid: u32,
    pub(super) shell: Shell,
    pub(super) terminal: Option<Terminal>,
    /// A command in the foreground has not ended.
    pub(super) waits: bool,
    /// All that the terminal showed in this scene.
    pub(super) shown: String,
}

impl Person {
    /// A program of the machine in this folder, with the variables of a login.
    fn command(&self, folder: &Path, words: &[&str]) -> Result<Command> {
        let home = folder.join("home").join(self.name);
        let mut path = folder.join("bin:").into_os_string();
        path.push(search_path()?);
        let mut command = Command::new("sh");
        command.args(["-c", LOGIN, "login", &self.uid.to_string()]).args(words).current_dir(&home).env_clear();
        command
            .env("GENV_NVML_LIBRARY", folder.join("lib/libnvidia-ml.so.1"))
            .env("GENV_SCENARIO", folder.join("scenario.yaml"))
            .env("GENV_TMPDIR", folder.join("genv"))
            .env("HOME", &home)
            .env("XDG_RUNTIME_DIR", &home)
            .env("PATH", path)
            .envs([DRIVER_PATIENCE, ("TERM", "xterm"), ("USER", self.name), ("TZ", "UTC")]);
        Ok(command)
    }

    /// The devices as this user sees them on a terminal: `0 ann train 2.0 until | 1 free | 2 ben used, not held 2.0 +1 | 3
    /// free`. For each device the user and the environment, the memory in use in GiB, `until` if it has the end of a lease,
    /// and the number of processes outside.
    pub(super) fn devices(&self, folder: &Path) -> Result<String> {
        let line = "stty cols 120; genv devices --color never";
        let output = output(&mut self.command(folder, &["script", "-qec", line, "/dev/null"])?)?;
        let shown = String::from_utf8_lossy(&output.stdout).replace('\r', "").replace('…', ".");
        ensure!(output.status.success(), "{shown}");
        let header = shown.lines().next().context("no line")?;
        let column = |name: &str| header.find(name).with_context(|| format!("no {name}: {shown}"));
        let (user, environment, since, memory) =
            (column("USER")?, column("ENVIRONMENT")?, column("SINCE")?, column("MEMORY GiB")?);
        let mut devices = Vec::new();
        for line in shown.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit())) {
            let cell = |from: usize, to: usize| line.get(from..to).unwrap_or_default().trim();
            let used = cell(memory, line.len()).split('/').next().unwrap_or_default().trim();
            let has_end = header.find("UNTIL").is_some_and(|until| !cell(until, memory).is_empty());
            let outside = format!("+{}", line.split_whitespace().next_back().unwrap_or_default());
            let mut parts = vec![cell(0, 3), cell(user, environment), cell(environment, since)];
            parts.extend([used, if has_end { "until" } else { "" }, outside.as_str()]);
            parts.retain(|part| !["", "0.0", "+0"].contains(part));
            devices.push(parts.join(" "));
        }
        Ok(devices.join(" | "))
    }

    fn terminal(&mut self) -> Result<&mut Terminal> {
        self.terminal.as_mut().with_context(|| format!("{} is not logged in", self.name))
    }

    pub(super) fn logs_in(&mut self, folder: &Path) -> Result<()> {
        let command = self.command(folder, &[self.shell.name(), "-i"])?;
        self.terminal = Some(Terminal::run_in(command, self.shell)?);
        self.terminal()?.wait(PROMPT).map(drop)
    }

    pub(super) fn logs_out(&mut self) -> Result<()> {
        self.terminal()?.type_line("exit")?;
        let terminal = self.terminal.take().context("the terminal is open")?;
        until("the shell ends", || Ok(!is_alive(terminal.pid())))
    }

    /// Types a line; the shown text up to the next prompt, and the exit code.
    fn types(&mut self, line: &str) -> Result<(String, i32)> {
        let terminal = self.terminal()?;
        let (mut shown, code) = terminal.run(line)?;
        shown.push_str(&terminal.wait(PROMPT)?);
        self.shown.push_str(&shown);
        Ok((shown, code))
    }

    pub(super) fn does(&mut self, line: &str, shows: &str) -> Result<()> {
        self.ends(line, 0, shows)
    }

    /// A line that ends with this code and shows this text.
    pub(super) fn ends(&mut self, line: &str, code: i32, shows: &str) -> Result<()> {
        let (shown, ended) = self.types(line)?;
        ensure!(ended == code, "{}: {line}: {ended} and not {code}: {shown}", self.name);
        ensure!(shown.contains(shows), "{}: {line}: no {shows:?}: {shown}", self.name);
        Ok(())
    }

    /// Starts a process in the background that sleeps; its pid.
    pub(super) fn trains(&mut self) -> Result<u32> {
        let (line, echo) = match self.shell {
            Shell::Bash | Shell::Zsh => ("{ sleep 1d & }", "echo pid $!"),
            Shell::Fish => ("sleep 1d &", "echo pid $last_pid"),
        };
        self.does(line, "")?;
        let (shown, _) = self.types(echo)?;
        let pid = shown.rsplit_once("pid ").and_then(|(_, rest)| rest.split_whitespace().next());
        pid.and_then(|pid| pid.parse().ok()).with_context(|| format!("no pid: {shown}"))
    }

    /// Types a line that does not end, and waits for its text.
    pub(super) fn begins(&mut self, line: &str, shows: &str) -> Result<()> {
        self.waits = true;
        self.terminal()?.type_line(line)?;
        self.shows(shows)
    }

    /// The terminal has shown this text in this scene, or shows it without a key being pressed. What comes by itself may
    /// come before the prompt of the last line or behind it.
    pub(super) fn shows(&mut self, text: &str) -> Result<()> {
        if !self.shown.contains(text) {
            let shown = self.terminal()?.wait(text)?;
            self.shown.push_str(&shown);
            self.shown.push_str(text);
        }
        Ok(())
    }

    /// The line that did not end has shown this text, or shows it, and ends.
    pub(super) fn goes_on(&mut self, shows: &str) -> Result<()> {
        self.shows(shows)?;
        self.waits = false;
        self.terminal()?.wait(PROMPT).map(drop)
    }

    /// Repeats a line, or presses Enter, until the terminal has shown this text in this scene.
    pub(super) fn reads(&mut self, line: &str, text: &str) -> Result<()> {
        let what = format!("{} reads {text:?} from {line:?}", self.name);
        let read = until(&what, || {
            self.types(line)?;
            Ok(self.shown.contains(text))
        });
        read.with_context(|| self.shown.clone())
    }

    /// The mark of the prompt and the devices that a new program gets.
    pub(super) fn state(&mut self) -> Result<String> {
        if self.terminal.is_none() || self.waits {
            return Ok(format!("{} {}", self.name, if self.waits { "waits" } else { "away" }));
        }
        // The shell looks for changes before the prompt.
        let (shown, _) = self.types("")?;
        let mark = if shown.ends_with(MARK) { MARK } else { "" };
        let (shown, _) = self.types("echo \"devices <$CUDA_VISIBLE_DEVICES>\"")?;
        let (_, rest) = shown.rsplit_once("devices <").context("no devices")?;
        let (devices, _) = rest.split_once('>').context("no devices")?;
        Ok(format!("{} {mark}{}", self.name, if devices.is_empty() { "-" } else { devices }))
    }
}
