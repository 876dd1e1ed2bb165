//! One list of scenarios, run in each shell: what is typed, what it says, and which variables programs have then.

use anyhow::Result;
use genv_tests::shell::Shell;

use crate::shells::scenario::Step::{AsBefore, Export, Fails, Has, Lacks, Prints, Run, Unset};
use crate::shells::scenario::{Scenario, run};

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "an environment from its beginning to its end",
        given: &[("CUDA_VISIBLE_DEVICES", ""), ("CUDA_DEVICE_ORDER", "FASTEST_FIRST")],
        steps: &[
            Run("genv >/dev/null"),
            Run("genv activate --id one --gpus 2"),
            Has("GENV_ENVIRONMENT_ID", "one"),
            Has("GENV_GPUS", "2"),
            Has("GENV_SHELL", "1"),
            Has("CUDA_VISIBLE_DEVICES", "0,1"),
            Has("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
            Lacks("GENV_ENVIRONMENT_NAME"),
            Has("PATH", "SHIMS:BIN:/usr/local/bin:/usr/bin:/bin"),
            Prints("genv devices find --eid one", "0,1\n"),
            Run("genv detach --index 0"),
            Has("CUDA_VISIBLE_DEVICES", "1"),
            Run("genv detach"),
            Has("CUDA_VISIBLE_DEVICES", "-1"),
            Run("genv attach --index 3"),
            Has("CUDA_VISIBLE_DEVICES", "3"),
            Export("CUDA_VISIBLE_DEVICES", "7"),
            Run("genv deactivate"),
            AsBefore,
            Prints("genv envs ps --format csv", "ID,USER,NAME,CREATED,PID(S)\n"),
        ],
    },
    Scenario {
        name: "a name or id of several words is one, and configuring changes the variables",
        given: &[],
        steps: &[
            Run("genv activate --id 'it;$(>executed)`>executed`&' --name \"my env\""),
            Has("GENV_ENVIRONMENT_ID", "it;$(>executed)`>executed`&"),
            Has("GENV_ENVIRONMENT_NAME", "my env"),
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
        name: "failures keep their exit codes and change nothing",
        given: &[],
        steps: &[
            Fails("genv activate --gpus 5", 4, "this machine has 4"),
            Fails("genv activate --gpus x", 2, "x"),
            Fails("genv deactivate", 3, "not in an active environment"),
            AsBefore,
            Run("genv activate --gpus 1"),
            Fails("genv attach --index 99", 4, "99"),
            Fails("genv activate", 1, "active"),
            Has("CUDA_VISIBLE_DEVICES", "0"),
            Run("genv deactivate"),
            AsBefore,
        ],
    },
    Scenario {
        name: "an environment is activated at start where that is asked for, and joined where one is active",
        given: &[],
        steps: &[
            Export("GENV_PREACTIVATE", "1"),
            Export("GENV_PREACTIVATE_PROMPT", "0"),
            Export("GENV_PREACTIVATE_GPUS", "2"),
            Export("GENV_PREACTIVATE_GPU_MEMORY", "1gi"),
            Export("GENV_PREACTIVATE_GPU_TYPE", "a100,h100 80gb"),
            Export("GENV_PREACTIVATE_GPU_MEMORY_AT_LEAST", "80g"),
            Export("GENV_PREACTIVATE_ENVIRONMENT_NAME", "my env; $(touch executed)"),
            Run("SETUP"),
            Has("CUDA_VISIBLE_DEVICES", "0,1"),
            Has("GENV_GPU_MEMORY", "1gi"),
            Has("GENV_ENVIRONMENT_NAME", "my env; $(touch executed)"),
            Has("GENV_RESTORE", "CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES PATH=SHIMS SHOWN=0,1"),
            Lacks("GENV_PREACTIVATE"),
            Lacks("GENV_PREACTIVATE_GPUS"),
            Lacks("GENV_PREACTIVATE_GPU_MEMORY"),
            Lacks("GENV_PREACTIVATE_GPU_TYPE"),
            Lacks("GENV_PREACTIVATE_GPU_MEMORY_AT_LEAST"),
            Export("GENV_PREACTIVATE", "1"),
            Export("GENV_PREACTIVATE_GPUS", "1"),
            Run("SETUP"),
            Has("CUDA_VISIBLE_DEVICES", "0,1"),
            Lacks("GENV_PREACTIVATE"),
            Lacks("GENV_PREACTIVATE_GPUS"),
            Run("genv deactivate"),
            AsBefore,
        ],
    },
    Scenario {
        name: "removing genv leaves the environment",
        given: &[("CUDA_VISIBLE_DEVICES", "")],
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
        steps: &[
            Run("genv activate --id one --gpus 1"),
            Unset("GENV_GPUS"),
            Run("genv attach --refresh"),
            Has("GENV_GPUS", "1"),
            Run("genv envs --reset >/dev/null"),
            Run("genv status | grep -q 'Environment one has ended'"),
            Fails("genv config gpus", 3, "has ended"),
            Run("genv activate --id two --gpus 1"),
            Has("GENV_ENVIRONMENT_ID", "two"),
            Run("genv envs --reset >/dev/null"),
            Fails("genv attach --refresh", 0, "environment two has ended"),
            AsBefore,
        ],
    },
    Scenario {
        name: "a state of ten megabytes is named in a line, and the environment of the shell goes on",
        given: &[],
        steps: &[
            Run("genv activate --id one --gpus 1"),
            Run("perl -e 'print \"[\" x 10000000' >$GENV_TMPDIR/state.json"),
            Fails("SETUP", 0, "state.json is damaged: it has 10000000 bytes"),
            Has("GENV_ENVIRONMENT_ID", "one"),
            Fails("genv deactivate", 0, "state.json is damaged: it has 10000000 bytes"),
            AsBefore,
        ],
    },
];

fn run_all(shell: Shell) -> Result<()> {
    SCENARIOS.iter().try_for_each(|scenario| run(scenario, shell))
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
