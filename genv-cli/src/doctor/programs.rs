//! Checks of the calling shell and of the shims.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::Check;
use crate::shell::{self, Caller, CallerError};

/// The variable of an active environment.
const ACTIVE: &str = "GENV_ENVIRONMENT_ID";

/// Checks that genv is set up in the shell, by this version.
pub(super) fn shell() -> Check {
    const NAME: &str = "shell";
    match Caller::from_environment() {
        Ok(caller) if caller.is_unhooked() => Check::warn(
            NAME,
            "genv is set up in it, but other code removed the hook before each prompt: detached devices stay in CUDA_VISIBLE_DEVICES",
            "do not replace PROMPT_COMMAND, or precmd_functions in zsh, after the setup of genv; 'genv attach --refresh' restores the hook",
        ),
        Ok(_) => Check::ok(NAME, "genv is set up in it"),
        Err(CallerError::NotSetUp(detected)) => Check::warn(
            NAME,
            "genv is not set up in it, or was called with 'command'",
            one_line(&shell::advice(detected)),
        ),
        Err(error) => Check::fail(NAME, "it was set up by another version", one_line(&error.to_string())),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Checks that nvidia-smi, docker and podman are genv's shims within an environment, and only there.
pub(super) fn shims() -> Vec<Check> {
    let Some(folder) = shell::shims_folder() else {
        return vec![Check::warn(
            "shims",
            "their folder is missing beside genv: nvidia-smi, docker and podman ignore environments",
            "install genv with its folder lib/genv/shims",
        )];
    };
    let active = env::var_os(ACTIVE).is_some();
    let checks = ["nvidia-smi", "docker", "podman"].map(|name| shim(name, Path::new(&folder), active));
    checks.into_iter().flatten().collect()
}

fn shim(name: &'static str, folder: &Path, active: bool) -> Option<Check> {
    let own = folder.join(name);
    let found = find(name)?;
    let first = same(&found, &own);
    let shown = found.display();
    Some(match (active, first) {
        _ if !own.exists() => Check::warn(
            name,
            format!("{shown} runs, which ignores environments"),
            format!("make the link as root: ln -s ../genv-shim {}", own.display()),
        ),
        (true, false) => Check::fail(
            name,
            format!("{shown} precedes genv's in PATH, so that it shows and uses all devices"),
            "run 'genv deactivate' and 'genv activate', and put no folders before genv's",
        ),
        (false, true) => Check::warn(
            name,
            format!("genv's {shown} is on PATH without an active environment"),
            "remove its folder from the definition of PATH: activating adds it",
        ),
        (true, true) => Check::ok(name, format!("genv's {shown} comes first in PATH")),
        (false, false) => Check::ok(name, format!("{shown}; activating puts genv's shim before it")),
    })
}

/// The program that a shell runs for this name.
fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let mut programs = env::split_paths(&path).map(|folder| folder.join(name));
    programs.find(|program| program.is_file())
}

fn same(one: &Path, other: &Path) -> bool {
    one == other || fs::canonicalize(one).is_ok_and(|it| fs::canonicalize(other).is_ok_and(|other| it == other))
}
