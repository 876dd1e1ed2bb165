//! A user with a terminal.

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::is_alive;
use genv_tests::patience::until;
use genv_tests::shell::Shell;
use genv_tests::terminal::{PROMPT, Terminal};

use crate::diary::stage::Stage;

/// The mark in the prompt of a shell that is in an environment.
const MARK: &str = "(genv) ";

/// A user.
#[derive(Debug)]
pub(crate) struct Person {
    pub(crate) name: &'static str,
    pub(crate) uid: u32,
    shell: Shell,
    terminal: Option<Terminal>,
    /// A command in the foreground has not ended.
    waits: bool,
    /// The last prompt has the mark.
    is_marked: bool,
    /// All that the terminal showed in this scene.
    pub(crate) shown: String,
}

impl Person {
    pub(crate) const fn new(name: &'static str, uid: u32, shell: Shell) -> Self {
        Self { name, uid, shell, terminal: None, waits: false, is_marked: false, shown: String::new() }
    }

    /// The same user, who opens another terminal.
    pub(crate) const fn once_more(&self) -> Self {
        Self::new(self.name, self.uid, self.shell)
    }

    /// Opens a terminal with the user's shell.
    pub(crate) fn logs_in(&mut self, stage: &Stage) -> Result<()> {
        let words: &[&str] = match self.shell {
            Shell::Bash => &["bash", "--noprofile", "-i"],
            Shell::Zsh => &["zsh", "-i"],
            Shell::Fish => &["fish", "-i"],
        };
        let command = stage.command(self.uid, self.name, words);
        self.terminal = Some(Terminal::run_in(command, self.shell)?);
        self.reads_prompt()
    }

    /// Ends the shell by `exit`.
    pub(crate) fn logs_out(&mut self) -> Result<()> {
        let mut terminal = self.terminal.take().context("nobody is logged in")?;
        terminal.type_line("exit")?;
        until("the shell ends", || Ok(!is_alive(terminal.pid())))
    }

    /// The pid of the shell.
    pub(crate) fn pid(&self) -> Result<u32> {
        Ok(self.terminal.as_ref().context("nobody is logged in")?.pid())
    }

    /// Types a line; the shown text up to the next prompt, and the exit code.
    pub(crate) fn types(&mut self, line: &str) -> Result<(String, i32)> {
        let terminal = self.terminal.as_mut().context("nobody is logged in")?;
        let (shown, code) = terminal.run(line)?;
        let start = self.shown.len();
        self.shown.push_str(&shown);
        self.reads_prompt()?;
        Ok((self.shown[start..].to_owned(), code))
    }

    /// A line that succeeds and shows this text.
    pub(crate) fn does(&mut self, line: &str, shows: &str) -> Result<String> {
        self.ends(line, 0, shows)
    }

    /// A line that ends with this code and shows this text.
    pub(crate) fn ends(&mut self, line: &str, code: i32, shows: &str) -> Result<String> {
        let (shown, ended) = self.types(line)?;
        ensure!(ended == code, "{}: {line}: {ended} and not {code}: {shown}", self.name);
        ensure!(shown.contains(shows), "{}: {line}: no {shows:?}: {shown}", self.name);
        Ok(shown)
    }

    /// Starts a training in the background, with these variables.
    pub(crate) fn trains(&mut self, variables: &str) -> Result<()> {
        let line = match self.shell {
            Shell::Bash | Shell::Zsh => format!("{{ {variables} train 1d & }}"),
            Shell::Fish => format!("{variables} train 1d &"),
        };
        self.does(&line, "").map(drop)
    }

    /// Ends the last training in the background.
    pub(crate) fn stops_training(&mut self) -> Result<()> {
        let line = match self.shell {
            Shell::Bash | Shell::Zsh => "kill $!",
            Shell::Fish => "kill $last_pid",
        };
        self.does(line, "").map(drop)
    }

    /// Types a line that does not end, and waits for its text.
    pub(crate) fn begins(&mut self, line: &str, shows: &str) -> Result<()> {
        let terminal = self.terminal.as_mut().context("nobody is logged in")?;
        terminal.type_line(line)?;
        let shown = terminal.wait(shows)?;
        self.shown.push_str(&shown);
        self.waits = true;
        Ok(())
    }

    /// The terminal has shown this text in this scene, or shows it without a key being pressed. What comes by itself may
    /// come before the prompt of the last line or behind it.
    pub(crate) fn shows(&mut self, text: &str) -> Result<()> {
        if self.shown.contains(text) {
            return Ok(());
        }
        let terminal = self.terminal.as_mut().context("nobody is logged in")?;
        let shown = terminal.wait(text)?;
        self.shown.push_str(&shown);
        self.shown.push_str(text);
        Ok(())
    }

    /// As [`Self::shows`] for each of these texts, one behind the other.
    pub(crate) fn shows_in_order(&mut self, texts: &[&str]) -> Result<()> {
        let mut last = 0;
        for text in texts {
            self.shows(text)?;
            let place = self.shown.find(text).context("it was shown")?;
            ensure!(last <= place, "{}: {text:?} came too early: {}", self.name, self.shown);
            last = place;
        }
        Ok(())
    }

    /// The line that did not end has shown this text, or shows it, and ends.
    pub(crate) fn goes_on(&mut self, shows: &str) -> Result<()> {
        self.shows(shows)?;
        self.waits = false;
        self.reads_prompt()
    }

    /// Presses Enter until the terminal has shown this text in this scene.
    pub(crate) fn reads(&mut self, text: &str) -> Result<()> {
        let what = format!("{} reads {text:?}", self.name);
        let read = until(&what, || {
            self.types("")?;
            Ok(self.shown.contains(text))
        });
        read.with_context(|| self.shown.clone())
    }

    /// Repeats a line until it shows this text.
    pub(crate) fn reads_from(&mut self, line: &str, text: &str) -> Result<()> {
        let what = format!("{} reads {text:?} from {line:?}", self.name);
        let read = until(&what, || Ok(self.types(line)?.0.contains(text)));
        read.with_context(|| self.shown.clone())
    }

    /// The mark of the prompt and the devices that a new program gets.
    pub(crate) fn state(&mut self) -> Result<String> {
        let name = self.name;
        if self.terminal.is_none() {
            return Ok(format!("{name} away"));
        }
        if self.waits {
            return Ok(format!("{name} waits"));
        }
        // The shell looks for changes before the prompt.
        self.types("")?;
        let (shown, _) = self.types("echo \"devices <$CUDA_VISIBLE_DEVICES>\"")?;
        let (_, rest) = shown.rsplit_once("devices <").context("no devices")?;
        let (devices, _) = rest.split_once('>').context("no devices")?;
        let devices = if devices.is_empty() { "-" } else { devices };
        let mark = if self.is_marked { MARK } else { "" };
        Ok(format!("{name} {mark}{devices}"))
    }

    /// Forgets the shown text, for the next scene.
    pub(crate) fn turns_page(&mut self) {
        self.shown.clear();
    }

    fn reads_prompt(&mut self) -> Result<()> {
        let terminal = self.terminal.as_mut().context("nobody is logged in")?;
        let shown = terminal.wait(PROMPT)?;
        self.is_marked = shown.ends_with(MARK);
        self.shown.push_str(&shown);
        Ok(())
    }
}
