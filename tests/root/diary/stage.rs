//! The machine: its users, its programs, genv as a package installs it, and a folder for the state of all.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::nvml_sim::library;
use genv_tests::process::{copy_program, signal, write_script};
use genv_tests::root::{FIRST_UID, own_mounts, users_from};
use genv_tests::shell::Shell;
use genv_tests::terminal::start_up_in;
use genv_tests::tools;
use rustix::mount::mount_bind;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::diary::driver::{self, Driver};

/// The uid of the first user. No other test has a process of these users: genv keeps a device for a user whose processes
/// it cannot read.
pub(crate) const FIRST: u32 = FIRST_UID + 100;

/// The three users with their shells.
pub(crate) const USERS: [(&str, Shell); 3] = [("ann", Shell::Bash), ("ben", Shell::Zsh), ("cara", Shell::Fish)];

/// Prints the arguments of each call, as the container engine that gets them.
const DOCKER: &str = "#!/bin/sh\necho \"docker got: $*\"\n";

/// The machine; it vanishes with the value.
#[derive(Debug)]
pub(crate) struct Stage {
    _driver: Driver,
    folder: TempDir,
}

impl Stage {
    /// Furnishes the machine. The calling thread gets mounts of its own.
    pub(crate) fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir()?;
        let at = |path: &str| folder.path().join(path);
        for path in [
            "bin",
            "genv/bin",
            "genv/lib/genv/shims",
            "genv/lib/genv/bin",
            "home",
            "lib/genv-enforcer",
            "run",
            "state",
            "tools",
        ] {
            fs::create_dir_all(at(path))?;
        }
        fs::set_permissions(at("state"), fs::Permissions::from_mode(0o777))?;
        copy_program("genv", &at("genv/bin/genv"))?;
        copy_program("genv-shim", &at("genv/lib/genv/genv-shim"))?;
        symlink("../../../bin/genv", at("genv/lib/genv/bin/genv"))?;
        for name in ["nvidia-smi", "docker"] {
            symlink("../genv-shim", at("genv/lib/genv/shims").join(name))?;
        }
        fs::copy(library(), at("lib/libnvidia-ml.so.1"))?;
        fs::copy("/bin/sleep", at("bin/train"))?;
        write_script(&at("bin/docker"), DOCKER)?;
        // Copies: other users may not read the folder of the checkout.
        for (tool, program, name) in
            [("zsh", "zsh-static", "zsh"), ("fish", "fish", "fish"), ("nvidia-smi-550", "nvidia-smi", "nvidia-smi")]
        {
            copy_folder(&tools::folder(tool), &at("tools"))?;
            symlink(at("tools").join(tool).join("bin").join(program), at("bin").join(name))?;
        }

        own_mounts();
        users_from(FIRST, folder.path(), &USERS.map(|(name, _)| name), &[])?;
        mount_bind(at("lib"), "/var/lib")?;
        for (uid, (name, shell)) in (FIRST..).zip(USERS) {
            start_up_in(&at("home").join(name), shell, "", "")?;
            for path in ["home", "run"] {
                let own = at(path).join(name);
                fs::create_dir_all(&own)?;
                fs::set_permissions(&own, fs::Permissions::from_mode(0o700))?;
            }
            for path in walk(&at("home").join(name))?.iter().chain([&at("run").join(name)]) {
                chown(path, Some(uid), Some(uid))?;
            }
        }
        let driver = Driver::start(&at("bin/train"), at("driver.yaml"))?;
        Ok(Self { _driver: driver, folder })
    }

    /// A path of the machine's own folder.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// The variables that name the driver and the state.
    pub(crate) fn variables(&self) -> [(&'static str, String); 4] {
        let at = |path: &str| self.path(path).display().to_string();
        [
            ("GENV_NVML_LIBRARY", at("lib/libnvidia-ml.so.1")),
            ("GENV_SCENARIO", at("driver.yaml")),
            ("GENV_TMPDIR", at("state")),
            ("LD_LIBRARY_PATH", at("lib")),
        ]
    }

    /// A program that a user starts in a home directory, with the variables of a login. `words` follow the program.
    pub(crate) fn command(&self, uid: u32, name: &str, words: &[&str]) -> Command {
        let at = |path: &str| self.path(path).display().to_string();
        let mut command = Command::new("sh");
        // A terminal belongs to the user who logs in there, and takes messages.
        let script = "if [ -t 0 ]; then chown \"$1\" \"$(tty)\"; chmod 620 \"$(tty)\"; fi; user=$1; shift; \
             exec setpriv --reuid \"$user\" --regid \"$user\" --clear-groups -- \"$@\"";
        command
            .args(["-c", script, "login", &uid.to_string()])
            .args(words)
            .current_dir(self.path("home").join(name))
            .env_clear()
            .envs(self.variables())
            .env("HOME", self.path("home").join(name))
            .env("XDG_RUNTIME_DIR", self.path("run").join(name))
            .env("PATH", format!("{}:{}:/usr/bin:/bin", at("genv/bin"), at("bin")))
            .env("TERM", "xterm")
            .env("TMUX_TMPDIR", self.path("run").join(name))
            .env("USER", name)
            .env("TZ", "UTC");
        command
    }
}

impl Drop for Stage {
    /// Ends the processes that users left behind.
    fn drop(&mut self) {
        let state = format!("GENV_TMPDIR={}", self.path("state").display());
        for pid in driver::processes() {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            if environ.split(|byte| *byte == 0).any(|entry| entry == state.as_bytes()) {
                // It may have ended by itself.
                let _ = signal(pid, Signal::KILL);
            }
        }
    }
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("-a").args([from, to]).status()?;
    ensure!(status.success(), "cp ended with {status}");
    Ok(())
}

/// A folder with all that is in it.
fn walk(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![folder.to_owned()];
    for entry in fs::read_dir(folder)? {
        let path = entry.context("reading a folder")?.path();
        if path.is_dir() {
            found.extend(walk(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}
