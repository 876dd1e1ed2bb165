//! What a scenario is made of, and how it is run in a shell.

use anyhow::{Context, Result, ensure};
use genv_tests::shell::{Account, Outcome, Shell};

use Step::{AsBefore, Export, Fails, Has, Lacks, Prints, Run, Unset};

pub(crate) enum Step {
    /// This line succeeds and is quiet.
    Run(&'static str),
    /// This line prints this.
    Prints(&'static str, &'static str),
    /// This line ends with this code, and says this.
    Fails(&'static str, i32, &'static str),
    Export(&'static str, &'static str),
    Unset(&'static str),
    /// Programs that are started now have this variable, or do not have it.
    Has(&'static str, &'static str),
    Lacks(&'static str),
    AsBefore,
}

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) given: &'static [(&'static str, &'static str)],
    pub(crate) steps: &'static [Step],
}

/// Stands in the scenarios for what is different on each machine and in each shell.
fn fill_in(text: &str, shell: Shell) -> Result<String> {
    let installation = genv_tests::shell::installation()?;
    Ok(text
        .replace("SHIMS", &installation.join("lib/genv/shims").display().to_string())
        .replace("BIN", &installation.join("bin").display().to_string())
        .replace("SETUP", shell.setup())
        .replace("REMOVAL", shell.removal()))
}

fn line(step: &Step, shell: Shell) -> Option<String> {
    Some(match step {
        Run(line) | Prints(line, _) | Fails(line, ..) => (*line).to_owned(),
        Export(name, value) => shell.set(name, value),
        Unset(name) => shell.unset(name),
        Has(..) | Lacks(_) | AsBefore => return None,
    })
}

pub(crate) fn run(scenario: &Scenario, shell: Shell) -> Result<()> {
    let account = Account::new()?;
    let fill_in = |text: &str| fill_in(text, shell);
    let mut lines = vec![shell.setup().to_owned()];
    for step in scenario.steps {
        if let Some(line) = line(step, shell) {
            lines.push(fill_in(&line)?);
        }
    }
    let outcomes = account.lines(shell, scenario.given, &lines)?;
    let (first, mut rest) = outcomes.split_first().context("no outcome")?;
    let mut last = first;
    for step in scenario.steps {
        if line(step, shell).is_some() {
            (last, rest) = rest.split_first().context("an outcome for every line")?;
        }
        check(step, first, last, &fill_in)
            .with_context(|| format!("{shell}: {}: after {:?}", scenario.name, last.line))?;
    }
    ensure!(!account.home().join("executed").exists(), "{shell}: {}: a value was executed", scenario.name);
    Ok(())
}

fn check(step: &Step, first: &Outcome, last: &Outcome, fill_in: &dyn Fn(&str) -> Result<String>) -> Result<()> {
    let variable = |name: &str| last.variable(name).map(|value| value.to_string_lossy().into_owned());
    match step {
        Run(_) | Export(..) | Unset(_) => {
            let quiet = last.stdout.is_empty() && last.stderr.is_empty();
            ensure!(last.code == 0 && quiet, "{} {} {}", last.code, last.stdout, last.stderr);
        }
        Prints(_, text) => {
            ensure!((last.code, &*last.stdout) == (0, text), "{} {:?} {}", last.code, last.stdout, last.stderr);
        }
        Fails(_, code, words) => {
            ensure!(last.code == *code, "{} {}", last.code, last.stderr);
            let first_line = last.stderr.lines().next().unwrap_or_default();
            ensure!(first_line.starts_with("genv: ") && first_line.contains(words), "{}", last.stderr);
            ensure!(last.stdout.is_empty() && !last.stderr.contains('\u{1b}'), "{last:?}");
        }
        Has(name, value) => {
            let (found, value) = (variable(name), fill_in(value)?);
            ensure!(found.as_ref() == Some(&value), "{name} is {found:?} and not {value:?}");
        }
        Lacks(name) => ensure!(variable(name).is_none(), "{name} is {:?}", variable(name)),
        AsBefore => ensure!(last.variables == first.variables, "{:#?} and not {:#?}", last.variables, first.variables),
    }
    Ok(())
}
