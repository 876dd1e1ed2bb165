//! Programs that genv starts within an environment, without a change of the calling shell.

use std::env;
use std::process::Command;

use super::ShellEnvironment;
use super::difference::{self, Difference};
use super::shims;
use super::variables::{self, Change, Occasion};

/// Sets the variables of an environment for a program.
pub(crate) fn enter_child(command: &mut Command, environment: &ShellEnvironment<'_>) {
    let read = |name: &str| env::var_os(name);
    // A shell below the program shows the environment in its prompt, if the calling shell does.
    let outer = env::var_os(difference::VARIABLE).map(|text| Difference::decode(&text));
    let prompt = outer.is_none_or(|it| it.prompt);
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
