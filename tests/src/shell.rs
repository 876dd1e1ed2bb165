//! The shells that genv works in, as fresh as on a machine where nobody has worked yet.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use genv_core::proc::{in_initial_pid_namespace, own_pid_namespace};

use crate::patience::{DRIVER_PATIENCE, output};
use crate::process::{copy_program, program};
use crate::tools;

/// The id of the environment that a shell gets without `--id`.
pub fn first_eid(pid: &str) -> String {
    if in_initial_pid_namespace() { pid.to_owned() } else { format!("{pid}-{}", own_pid_namespace()) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    pub const ALL: [Self; 3] = [Self::Bash, Self::Zsh, Self::Fish];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
        }
    }

    pub const fn without_start_up_files(self) -> &'static [&'static str] {
        match self {
            Self::Bash => &["--norc", "--noprofile"],
            Self::Zsh => &["-f"],
            Self::Fish => &["--no-config"],
        }
    }

    pub const fn setup(self) -> &'static str {
        match self {
            Self::Bash | Self::Zsh => r#"eval "$(genv shell --init)""#,
            Self::Fish => "genv shell --init | source",
        }
    }

    pub const fn removal(self) -> &'static str {
        match self {
            Self::Bash | Self::Zsh => r#"eval "$(genv shell --deinit)""#,
            Self::Fish => "genv shell --deinit | source",
        }
    }

    /// What expands to the exit code of the last command.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Bash | Self::Zsh => "$?",
            Self::Fish => "$status",
        }
    }

    /// What expands to the pid.
    pub const fn pid(self) -> &'static str {
        match self {
            Self::Bash | Self::Zsh => "$$",
            Self::Fish => "$fish_pid",
        }
    }

    /// The line that exports a variable. The value must do without quotes and backslashes.
    pub fn set(self, name: &str, value: &str) -> String {
        match self {
            Self::Bash | Self::Zsh => format!("export {name}='{value}'"),
            Self::Fish => format!("set -gx {name} '{value}'"),
        }
    }

    pub fn unset(self, name: &str) -> String {
        match self {
            Self::Bash | Self::Zsh => format!("unset {name}"),
            Self::Fish => format!("set -e {name}"),
        }
    }

    pub fn block(self, lines: &str) -> String {
        match self {
            Self::Bash | Self::Zsh => format!("{{\n{lines}\n}}"),
            Self::Fish => format!("begin\n{lines}\nend"),
        }
    }

    pub const fn startup_file(self) -> &'static str {
        match self {
            Self::Bash => ".bashrc",
            Self::Zsh => ".zshrc",
            Self::Fish => ".config/fish/config.fish",
        }
    }
}

impl fmt::Display for Shell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What `scripts/debian-tools` fetches of shells and of what works with them: the name by which people know it, and that of its program.
const FETCHED: [(&str, &str); 5] =
    [("zsh", "zsh-static"), ("fish", "fish"), ("tcsh", "tcsh"), ("shellcheck", "shellcheck"), ("direnv", "direnv")];

/// A shell, or another program that every Debian has.
pub fn installed(program: &str) -> PathBuf {
    if let Some((tool, name)) = FETCHED.iter().find(|(tool, _)| *tool == program) {
        return tools::program(tool, name);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(&path).map(|folder| folder.join(program));
    let found = candidates.find(|candidate| candidate.is_file());
    found.unwrap_or_else(|| panic!("{program} is not on PATH: install the Debian package {program}"))
}

/// A user's account on a machine with simulated devices: a home directory and genv's state, both new.
#[derive(Debug)]
pub struct Account {
    folder: tempfile::TempDir,
}

#[derive(Debug)]
pub struct Outcome {
    pub line: String,
    pub stdout: String,
    pub stderr: String,
    pub code: i32,
    /// The variables that a program has that is started now; without those that shells count with.
    pub variables: BTreeMap<OsString, OsString>,
}

impl Outcome {
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str)
    }
}

impl Account {
    /// A new one, with four devices.
    pub fn new() -> Result<Self> {
        installation()?;
        let folder = tempfile::tempdir()?;
        for name in ["home", "outcomes"] {
            fs::create_dir(folder.path().join(name))?;
        }
        Ok(Self { folder })
    }

    pub fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// A program with this account's variables and no others, in the home directory.
    pub fn command(&self, program: &str) -> Result<Command> {
        let mut command = Command::new(installed(program));
        command
            .env_clear()
            .env("HOME", self.home())
            .env("PATH", search_path()?)
            .env("TERM", "dumb")
            .env("GENV_TMPDIR", self.state())
            .env("GENV_DEVICES", "4")
            .envs([DRIVER_PATIENCE])
            .current_dir(self.home());
        Ok(command)
    }

    /// A shell that reads no start-up files and runs a script; its exit code, and what it printed and said.
    pub fn script(&self, program: &str, options: &[&str], script: &str) -> Result<(i32, String, String)> {
        let mut command = self.command(program)?;
        let shell = Shell::ALL.into_iter().find(|shell| shell.name() == program);
        command.args(shell.map_or(&[] as &[&str], Shell::without_start_up_files));
        let output = output(command.args(options).args(["-c", script]))?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().with_context(|| format!("{program}: {}", output.status))?;
        Ok((code, text(&output.stdout), text(&output.stderr)))
    }

    /// Runs lines one after the other in one shell with these variables besides its own.
    pub fn lines(&self, shell: Shell, variables: &[(&str, &str)], lines: &[String]) -> Result<Vec<Outcome>> {
        let folder = self.folder.path().join("outcomes");
        let at = |number: usize, what: &str| folder.join(format!("{number}.{what}"));
        let mut script = String::new();
        for (number, line) in lines.iter().enumerate() {
            let (out, err) = (at(number, "stdout"), at(number, "stderr"));
            let block = shell.block(line);
            script.push_str(&format!("{block} >{} 2>{}\n", out.display(), err.display()));
            script.push_str(&format!("echo {} >{}\n", shell.code(), at(number, "code").display()));
            script.push_str(&format!("env -0 >{}\n", at(number, "variables").display()));
        }
        let file = folder.join("script");
        fs::write(&file, script)?;
        let mut command = self.command(shell.name())?;
        command.args(shell.without_start_up_files()).arg(&file);
        let output = output(command.envs(variables.iter().copied()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let read = |(number, line): (usize, &String)| {
            let text = |what| -> Result<String> {
                let content =
                    fs::read(at(number, what)).with_context(|| format!("{shell} ended at {line:?}: {said}"))?;
                Ok(String::from_utf8_lossy(&content).into_owned())
            };
            Ok(Outcome {
                line: line.clone(),
                stdout: text("stdout")?,
                stderr: text("stderr")?,
                code: text("code")?.trim().parse()?,
                variables: dump(&at(number, "variables"))?,
            })
        };
        let outcomes = lines.iter().enumerate().map(read).collect::<Result<_>>()?;
        fs::remove_dir_all(&folder)?;
        fs::create_dir(&folder)?;
        Ok(outcomes)
    }
}

fn dump(file: &Path) -> Result<BTreeMap<OsString, OsString>> {
    let content = fs::read(file)?;
    let entries = content.split(|&byte| byte == 0).filter(|entry| !entry.is_empty());
    let mut variables = BTreeMap::new();
    for entry in entries {
        let equals = entry.iter().position(|&byte| byte == b'=').context("no '='")?;
        let (name, value) = (OsStr::from_bytes(&entry[..equals]), OsStr::from_bytes(&entry[equals + 1..]));
        if !["_", "SHLVL", "OLDPWD"].map(OsStr::new).contains(&name) {
            let twice = variables.insert(name.to_owned(), value.to_owned());
            ensure!(twice.is_none(), "{} is there twice", name.display());
        }
    }
    Ok(variables)
}

/// The installation of genv for all tests of one program and for every user: `bin/genv`, a link to it in
/// `lib/genv/bin`, and an empty folder for the shims. `bin` also has the fetched shells.
pub fn installation() -> Result<&'static Path> {
    static INSTALLATION: OnceLock<Result<Installation, String>> = OnceLock::new();
    let install = || -> Result<Installation> {
        remove_left_installations();
        let everybody = fs::Permissions::from_mode(0o755);
        let (folder, used) = loop {
            let folder = tempfile::Builder::new().prefix(INSTALLED).permissions(everybody.clone()).tempdir()?;
            // Another test may have found it without a lock, and removed it.
            if let Some(used) = lock(folder.path())
                && folder.path().exists()
            {
                break (folder, used);
            }
        };
        fs::create_dir_all(folder.path().join("bin"))?;
        fs::create_dir_all(folder.path().join("lib/genv/shims"))?;
        fs::create_dir_all(folder.path().join("lib/genv/bin"))?;
        symlink("../../../bin/genv", folder.path().join("lib/genv/bin/genv"))?;
        let genv = folder.path().join("bin/genv");
        // A link takes no time and no space, and is possible on the same file system only.
        if fs::hard_link(program("genv")?, &genv).is_err() {
            copy_program("genv", &genv)?;
        }
        for (tool, name) in FETCHED {
            if let Some(program) = tools::find(tool, name) {
                symlink(program, folder.path().join("bin").join(tool))?;
            }
        }
        Ok(Installation { folder, _used: used })
    };
    let installed = INSTALLATION.get_or_init(|| install().map_err(|error| format!("{error:#}")));
    match installed {
        Ok(installation) => Ok(installation.folder.path()),
        Err(error) => anyhow::bail!("{error}"),
    }
}

const INSTALLED: &str = "genv-installed-";

struct Installation {
    folder: tempfile::TempDir,
    /// Tells others that the folder is in use: also tests in other namespaces, with which it is shared.
    _used: File,
}

/// Locks a folder until the file is closed, unless another process has locked it.
fn lock(folder: &Path) -> Option<File> {
    let folder = File::open(folder).ok()?;
    folder.try_lock().ok().map(|()| folder)
}

/// Removes the installations of processes that have ended: no process does so at its end, and each test may be a process.
fn remove_left_installations() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let is_one = entry.file_name().to_str().is_some_and(|name| name.starts_with(INSTALLED));
        if is_one && let Some(_unused) = lock(&entry.path()) {
            // It may be another user's.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

pub fn search_path() -> Result<OsString> {
    let mut path = installation()?.join("bin").into_os_string();
    path.push(":/usr/local/bin:/usr/bin:/bin");
    Ok(path)
}
