//! A program that is started within an environment, where no shell is asked to change.

use std::env;
use std::process::Command;

use super::ShellEnvironment;
use super::difference::{self, Difference};
use super::shims;
use super::variables::{self, Change, Occasion};

/// Gives a program the variables that a shell in the environment has.
pub(crate) fn enter_child(command: &mut Command, environment: &ShellEnvironment<'_>) {
    let read = |name: &str| env::var_os(name);
    // A shell that the program starts shows the environment in its prompt, as the shell around it does.
    let around = env::var_os(difference::VARIABLE).map(|text| Difference::decode(&text));
    let prompt = around.is_none_or(|it| it.prompt);
    let occasion = Occasion::Enter { prompt };
    for change in variables::show(read, environment, shims::folder(), occasion) {
        match change {
            Change::Set(name, value) => {
                command.env(name, value);
            }
            Change::Unset(name) => {
                command.env_remove(name);
            }
            Change::Prompt(_) | Change::Watch(_) => {}
        }
    }
}
