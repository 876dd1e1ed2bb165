//! One list of scenarios, run in each shell: what is typed, what it says, and which variables programs have then.

use std::fs;

use anyhow::{Context, Result, ensure};
use genv_tests::shell::{Account, Outcome, Shell};

/// A step of a scenario.
enum Step {
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
    /// Programs have the same variables as before the first step.
    AsBefore,
}

use Step::{AsBefore, Export, Fails, Has, Lacks, Prints, Run, Unset};

struct Scenario {
    name: &'static str,
    /// Variables that the shell is started with.
    given: &'static [(&'static str, &'static str)],
    /// Files of the home directory.
    files: &'static [(&'static str, &'static str)],
    steps: &'static [Step],
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "an environment from its beginning to its end",
        given: &[],
        files: &[],
        steps: &[
            Run("genv activate --id one --gpus 2"),
            Has("GENV_ENVIRONMENT_ID", "one"),
            Has("GENV_GPUS", "2"),
            Has("GENV_SHELL", "1"),
            Has("CUDA_VISIBLE_DEVICES", "0,1"),
            Has("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
            Lacks("GENV_ENVIRONMENT_NAME"),
            Prints("genv devices find --eid one", "0,1\n"),
            Run("genv detach --index 0"),
            Has("CUDA_VISIBLE_DEVICES", "1"),
            Run("genv detach"),
            Has("CUDA_VISIBLE_DEVICES", "-1"),
            Run("genv attach --index 3"),
            Has("CUDA_VISIBLE_DEVICES", "3"),
            Run("genv deactivate"),
            AsBefore,
            Prints("genv envs ps --format csv", "ID,USER,NAME,CREATED,PID(S)\n"),
        ],
    },
    Scenario {
        name: "an unset variable is unset again",
        given: &[],
        files: &[],
        steps: &[
            Run("genv activate --gpus 1"),
            Run("genv deactivate"),
            Lacks("CUDA_VISIBLE_DEVICES"),
            Lacks("CUDA_DEVICE_ORDER"),
            AsBefore,
        ],
    },
    Scenario {
        name: "an empty variable is empty again",
        given: &[("CUDA_VISIBLE_DEVICES", ""), ("CUDA_DEVICE_ORDER", "")],
        files: &[],
        steps: &[
            Run("genv activate --gpus 1"),
            Has("CUDA_VISIBLE_DEVICES", "0"),
            Run("genv deactivate"),
            Has("CUDA_VISIBLE_DEVICES", ""),
            Has("CUDA_DEVICE_ORDER", ""),
            AsBefore,
        ],
    },
    Scenario {
        name: "a variable that was set is set again",
        given: &[
            ("CUDA_VISIBLE_DEVICES", "0"),
            ("CUDA_DEVICE_ORDER", "FASTEST_FIRST"),
        ],
        files: &[],
        steps: &[
            Run("genv activate --gpus 2"),
            Has("CUDA_VISIBLE_DEVICES", "0,1"),
            Export("CUDA_VISIBLE_DEVICES", "7"),
            Run("genv deactivate"),
            Has("CUDA_VISIBLE_DEVICES", "0"),
            Has("CUDA_DEVICE_ORDER", "FASTEST_FIRST"),
            AsBefore,
        ],
    },
    Scenario {
        name: "nothing grows, however often",
        given: &[("CUDA_VISIBLE_DEVICES", "0")],
        files: &[],
        steps: &[
            Run("genv activate --gpus 1"),
            Run("genv config name a"),
            Run("genv attach"),
            Run("genv deactivate"),
            AsBefore,
            Run("genv activate --gpus 1"),
            Has(
                "GENV_RESTORE",
                "CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES=0 PATH=SHIMS PROMPT",
            ),
            Run("genv config name a"),
            Run("genv config name b"),
            Run("genv attach"),
            Run("genv config --refresh"),
            Has(
                "GENV_RESTORE",
                "CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES=0 PATH=SHIMS PROMPT",
            ),
            Run("genv deactivate"),
            AsBefore,
        ],
    },
    Scenario {
        name: "PATH loses what was added to it and keeps what the user added",
        given: &[],
        files: &[],
        steps: &[
            Run("genv activate"),
            Has("PATH", "SHIMS:BIN:/usr/local/bin:/usr/bin:/bin"),
            Export(
                "PATH",
                "/opt/first:SHIMS:BIN:/usr/local/bin:/usr/bin:/bin:/opt/last",
            ),
            Run("genv deactivate"),
            Has(
                "PATH",
                "/opt/first:BIN:/usr/local/bin:/usr/bin:/bin:/opt/last",
            ),
        ],
    },
    Scenario {
        name: "configuring changes the variables",
        given: &[],
        files: &[],
        steps: &[
            Run("genv activate"),
            Run("genv config name 'my  env; $(touch executed) \"'"),
            Has("GENV_ENVIRONMENT_NAME", "my  env; $(touch executed) \""),
            Prints("genv config name", "my  env; $(touch executed) \"\n"),
            Run("genv config gpus 2"),
            Run("genv config gpu-memory 4g"),
            Has("GENV_GPUS", "2"),
            Has("GENV_GPU_MEMORY", "4g"),
            Run("genv config --clear"),
            Lacks("GENV_ENVIRONMENT_NAME"),
            Lacks("GENV_GPUS"),
            Lacks("GENV_GPU_MEMORY"),
            Run("genv deactivate"),
            AsBefore,
        ],
    },
    Scenario {
        name: "a name or id of several words is one",
        given: &[],
        files: &[],
        steps: &[
            Run("genv activate --id 'it;$(>executed)`>executed`&' --name \"my env\""),
            Has("GENV_ENVIRONMENT_ID", "it;$(>executed)`>executed`&"),
            Has("GENV_ENVIRONMENT_NAME", "my env"),
            Run("genv deactivate"),
            AsBefore,
        ],
    },
    Scenario {
        name: "a .genv folder is loaded and attached on activation",
        given: &[],
        files: &[
            (".genv/name", "$(touch executed)`touch executed`'"),
            (".genv/gpus", "2\n"),
            (".genv/gpu-memory", "4g"),
        ],
        steps: &[
            Run("genv activate"),
            Has(
                "GENV_ENVIRONMENT_NAME",
                "$(touch executed)`touch executed`'",
            ),
            Has("GENV_GPU_MEMORY", "4g"),
            Has("CUDA_VISIBLE_DEVICES", "0,1"),
            Run("genv deactivate"),
            AsBefore,
            Run("genv activate --no-load --no-attach"),
            Lacks("GENV_GPUS"),
            Has("CUDA_VISIBLE_DEVICES", "-1"),
        ],
    },
    Scenario {
        name: "a damaged .genv folder is told in a line, and nothing is activated",
        given: &[],
        files: &[(".genv/gpus", "\u{1b}[2J $(touch executed)")],
        steps: &[
            Fails("genv activate", 1, "/.genv/gpus: "),
            AsBefore,
            Prints("genv envs find --pid 1", ""),
        ],
    },
    Scenario {
        name: "failures keep their exit codes and change nothing",
        given: &[],
        files: &[],
        steps: &[
            Fails("genv activate --gpus 5", 4, "this machine has 4"),
            AsBefore,
            Prints("genv envs ps --format csv", "ID,USER,NAME,CREATED,PID(S)\n"),
            Fails("genv activate --gpus -1", 2, "-1"),
            Fails("genv activate --gpus x", 2, "x"),
            Fails("genv activate --gpu-memory abc", 2, "abc"),
            Fails("genv deactivate", 3, "not in an active environment"),
            Fails("genv attach", 3, "not in an active environment"),
            Fails("genv detach", 3, "not in an active environment"),
            Fails("genv config", 3, "not in an active environment"),
            AsBefore,
            Run("genv activate --gpus 1"),
            Fails("genv attach --index 99", 4, "99"),
            Fails("genv config gpu-memory 4", 2, "4"),
            Fails("genv activate", 1, "active"),
            Has("CUDA_VISIBLE_DEVICES", "0"),
            Run("genv deactivate"),
            AsBefore,
        ],
    },
    Scenario {
        name: "an environment is activated at start where that is asked for",
        given: &[],
        files: &[],
        steps: &[
            Export("GENV_PREACTIVATE", "1"),
            Export("GENV_PREACTIVATE_PROMPT", "0"),
            Export("GENV_PREACTIVATE_GPUS", "2"),
            Export(
                "GENV_PREACTIVATE_ENVIRONMENT_NAME",
                "my env; $(touch executed)",
            ),
            Run("SETUP"),
            Has("CUDA_VISIBLE_DEVICES", "0,1"),
            Has("GENV_ENVIRONMENT_NAME", "my env; $(touch executed)"),
            Has(
                "GENV_RESTORE",
                "CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES PATH=SHIMS",
            ),
            Lacks("GENV_PREACTIVATE"),
            Lacks("GENV_PREACTIVATE_GPUS"),
            Run("genv deactivate"),
            AsBefore,
        ],
    },
    Scenario {
        name: "removing genv leaves the environment",
        given: &[("CUDA_VISIBLE_DEVICES", "")],
        files: &[],
        steps: &[
            Run("genv activate --gpus 1"),
            Run("REMOVAL"),
            AsBefore,
            Fails("genv activate", 1, "not set up"),
            Run("SETUP"),
            Run("genv activate --gpus 1"),
            Has("CUDA_VISIBLE_DEVICES", "0"),
        ],
    },
    Scenario {
        name: "an environment that ended elsewhere is left",
        given: &[("CUDA_VISIBLE_DEVICES", "")],
        files: &[],
        steps: &[
            Run("genv activate --id one --gpus 1"),
            Unset("GENV_GPUS"),
            Run("genv attach --refresh"),
            Has("GENV_GPUS", "1"),
            Run("genv envs --reset >/dev/null"),
            Fails("genv attach --refresh", 0, "environment one has ended"),
            AsBefore,
        ],
    },
];

/// Stands in the scenarios for what is different on each machine and in each shell.
fn fill_in(text: &str, account: &Account, shell: Shell) -> Result<String> {
    let installation = genv_tests::shell::installation()?;
    Ok(text
        .replace(
            "SHIMS",
            &installation.join("lib/genv/shims").display().to_string(),
        )
        .replace("BIN", &installation.join("bin").display().to_string())
        .replace("SETUP", shell.setup())
        .replace("REMOVAL", shell.removal())
        .replace("HOME", &account.home().display().to_string()))
}

fn line(step: &Step, shell: Shell) -> Option<String> {
    Some(match step {
        Run(line) | Prints(line, _) | Fails(line, ..) => (*line).to_owned(),
        Export(name, value) => shell.set(name, value),
        Unset(name) => shell.unset(name),
        Has(..) | Lacks(_) | AsBefore => return None,
    })
}

fn run(scenario: &Scenario, shell: Shell) -> Result<()> {
    let account = Account::new()?;
    for (name, content) in scenario.files {
        let file = account.home().join(name);
        fs::create_dir_all(file.parent().context("a file lies in a folder")?)?;
        fs::write(file, content)?;
    }
    let fill_in = |text: &str| fill_in(text, &account, shell);
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
    ensure!(
        !account.home().join("executed").exists(),
        "{shell}: {}: a value was executed",
        scenario.name
    );
    Ok(())
}

fn check(
    step: &Step,
    first: &Outcome,
    last: &Outcome,
    fill_in: &dyn Fn(&str) -> Result<String>,
) -> Result<()> {
    let variable = |name: &str| {
        last.variable(name)
            .map(|value| value.to_string_lossy().into_owned())
    };
    match step {
        Run(_) | Export(..) | Unset(_) => {
            let quiet = last.stdout.is_empty() && last.stderr.is_empty();
            ensure!(
                last.code == 0 && quiet,
                "{} {} {}",
                last.code,
                last.stdout,
                last.stderr
            );
        }
        Prints(_, text) => {
            ensure!(
                (last.code, &*last.stdout) == (0, text),
                "{} {:?} {}",
                last.code,
                last.stdout,
                last.stderr
            );
        }
        Fails(_, code, words) => {
            ensure!(last.code == *code, "{} {}", last.code, last.stderr);
            let first_line = last.stderr.lines().next().unwrap_or_default();
            ensure!(
                first_line.starts_with("genv: ") && first_line.contains(words),
                "{}",
                last.stderr
            );
            ensure!(
                last.stdout.is_empty() && !last.stderr.contains('\u{1b}'),
                "{last:?}"
            );
        }
        Has(name, value) => {
            let (found, value) = (variable(name), fill_in(value)?);
            ensure!(
                found.as_ref() == Some(&value),
                "{name} is {found:?} and not {value:?}"
            );
        }
        Lacks(name) => ensure!(variable(name).is_none(), "{name} is {:?}", variable(name)),
        AsBefore => ensure!(
            last.variables == first.variables,
            "{:#?} and not {:#?}",
            last.variables,
            first.variables
        ),
    }
    Ok(())
}

fn run_all(shell: Shell) -> Result<()> {
    SCENARIOS
        .iter()
        .try_for_each(|scenario| run(scenario, shell))
}

#[test]
fn every_scenario_works_in_bash() -> Result<()> {
    run_all(Shell::Bash)
}

#[test]
fn every_scenario_works_in_zsh() -> Result<()> {
    run_all(Shell::Zsh)
}

#[test]
fn every_scenario_works_in_fish() -> Result<()> {
    run_all(Shell::Fish)
}
