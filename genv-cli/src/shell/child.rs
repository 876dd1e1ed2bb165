//! A program that is started within an environment, where no shell is asked to change.

use std::env;
use std::process::Command;

use super::ShellEnvironment;
use super::shims;
use super::variables::{self, Change};

/// Gives a program the variables that a shell in the environment has.
pub(crate) fn enter_child(command: &mut Command, environment: &ShellEnvironment<'_>) {
    let read = |name: &str| env::var_os(name);
    for change in variables::show(read, environment, shims::folder(), Some(false)) {
        match change {
            Change::Set(name, value) => {
                command.env(name, value);
            }
            Change::Unset(name) => {
                command.env_remove(name);
            }
            Change::Prompt(_) => {}
        }
    }
}
