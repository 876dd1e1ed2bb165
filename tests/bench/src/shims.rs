//! The cost of a shim beyond the real program.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use genv_tests::process::{Sleeper, program};

use crate::load::write_environments;
use crate::table::{Table, median, milliseconds, verdict};

const ROUNDS: usize = 200;
const BUDGET: Duration = Duration::from_millis(3);

/// A summary with one process, as nvidia-smi of driver 550 prints it.
const SUMMARY: &str = include_str!("../../fixtures/nvidia-smi/550-table.txt");

/// Measures programs that do next to nothing, alone and behind the shim, in turn.
pub(crate) fn table() -> Result<Table> {
    let folder = tempfile::tempdir()?;
    let shims = folder.path().join("shims");
    let real = folder.path().join("real");
    let state = folder.path().join("state");
    fs::create_dir(&shims)?;
    fs::create_dir(&real)?;
    let member = Sleeper::start(&[("GENV_ENVIRONMENT_ID", "e0")])?;
    write_environments(&state, |_| member.pid())?;
    for name in ["nvidia-smi", "docker"] {
        symlink(program("genv-shim")?, shims.join(name))?;
    }
    symlink("/bin/true", real.join("docker"))?;
    // Options of the real program mean nothing to `cat`, so that a script ignores them.
    fs::write(folder.path().join("summary"), SUMMARY.replace("4242", &member.pid().to_string()))?;
    let summary = folder.path().join("summary");
    let script = format!("#!/bin/sh\nexec cat {}\n", summary.display());
    fs::write(real.join("nvidia-smi"), script)?;
    fs::set_permissions(real.join("nvidia-smi"), fs::Permissions::from_mode(0o755))?;

    let mut table = Table::new(&["a shim over the program it stands in for", "measured", "budget", "holds"]);
    for (what, name, arguments) in [
        ("docker, in no container", "docker", &["ps"][..]),
        ("docker run --gpus", "docker", &["run", "--gpus", "1", "image"]),
        ("nvidia-smi, what is not rewritten", "nvidia-smi", &["-q"]),
        ("nvidia-smi, the summary", "nvidia-smi", &[]),
    ] {
        let run = |program: &Path| -> Result<f64> {
            let mut command = Command::new(program);
            command
                .args(arguments)
                .env("PATH", format!("{}:{}:/usr/bin:/bin", shims.display(), real.display()))
                .env("GENV_TMPDIR", &state)
                .env("GENV_ENVIRONMENT_ID", "e0")
                .env_remove("GENV_BYPASS")
                .stdout(Stdio::null())
                // The summary reports use by others.
                .stderr(Stdio::null());
            let started = Instant::now();
            let status = command.status().with_context(|| format!("{what}: starting it"))?;
            let seconds = started.elapsed().as_secs_f64();
            ensure!(status.success(), "{what}: {status}");
            Ok(seconds)
        };
        let mut over = Vec::new();
        for _ in 0..ROUNDS {
            let alone = run(&real.join(name))?;
            over.push(run(&shims.join(name))? - alone);
        }
        let over = median(over);
        let budget = BUDGET.as_secs_f64();
        table.row(&[&what, &milliseconds(over), &milliseconds(budget), &verdict(over <= budget)]);
    }
    Ok(table)
}
