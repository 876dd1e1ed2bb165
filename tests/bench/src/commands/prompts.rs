//! The cost of genv's part of a prompt in each shell.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use genv_tests::shell::{Shell, installed};

use super::{Lab, in_turn};
use crate::table::{Table, median, milliseconds, verdict};

/// The number of prompts of one shell.
const PROMPTS: usize = 20;
const SHELLS: usize = 11;
const BUDGET: Duration = Duration::from_millis(2);

/// Measures the cost: shells with an environment run in turn with shells that run the same lines without it.
pub(crate) fn table() -> Result<Table> {
    let lab = Lab::new()?;
    let mut table = Table::new(&["genv's part of a prompt", "measured", "budget", "holds"]);
    for shell in Shell::ALL {
        for (what, before) in [("nothing changed", ""), ("a file is newer", "touch \"$GENV_TMPDIR/envs.json\"")] {
            let prompts = |hook| shell_with_prompts(&lab, shell, &format!("{before}\n{hook}"));
            let (without, with) = in_turn(SHELLS, || prompts("true"), || prompts("__genv_hook"))?;
            let time = (median(with) - median(without)) / PROMPTS as f64;
            let is_limited = before.is_empty();
            let budget = if is_limited { milliseconds(BUDGET.as_secs_f64()) } else { String::new() };
            let holds = if is_limited { verdict(time <= BUDGET.as_secs_f64()) } else { "" };
            table.row(&[&format!("{}, {what}", shell.name()), &milliseconds(time), &budget, &holds]);
        }
    }
    Ok(table)
}

/// An interactive shell with an environment, which runs these lines once for each prompt.
fn shell_with_prompts(lab: &Lab, shell: Shell, lines: &str) -> Command {
    let setup = shell.setup();
    let activate = "genv activate --no-prompt 2>/dev/null";
    let (without_settings, script): (&[&str], _) = match shell {
        Shell::Bash | Shell::Zsh => {
            let options: &[&str] = if shell == Shell::Bash { &["--norc", "--noprofile"] } else { &["-f"] };
            let looped = format!("for ((i = 0; i < {PROMPTS}; i++)); do {lines}\ndone");
            (options, format!("{setup}; {activate}; [[ -n $__genv_stamp ]] || exit 9; {looped}; genv deactivate"))
        }
        Shell::Fish => {
            let looped = format!("for i in (seq {PROMPTS}); {lines}\nend");
            let active = "set --query __genv_stamp; or exit 9";
            (&["--no-config"], format!("{setup}; {activate}; {active}; {looped}; genv deactivate"))
        }
    };
    let mut command = lab.command(&installed(shell.name()), without_settings);
    command.args(["-i", "-c", &script]).env("XDG_RUNTIME_DIR", lab.folder.path()).stderr(std::process::Stdio::null());
    command
}
