//! root's shell in the source folder with Docker and Compose: the place `docker`. Images are those that the suite has built
//! under the names of the shipped files, and there is no GPU.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::docker::{Stack, repository};
use genv_tests::documentation::{Line, Page, Place};
use genv_tests::patience::output;
use genv_tests::session::Session;
use genv_tests::shell::{Shell, installed};

/// Lines with this file end so without GPUs, as docs/stack.md tells, when all else of them was right.
const FOR_GPUS: &str = "docker-compose.gpu.yml";
const NO_GPUS: &str = "could not select device driver \"nvidia\"";

/// The image is built already, and another revision would build it again.
const BUILDS: &str = " --build";

/// Of the documentation, an address of the machine that pages open ports on.
const ADDRESS: &str = "192.0.2.11/32";

/// A clone of the repository as it lies here, with what is not committed yet, and one to pull from.
fn source(folder: &Path) -> Result<()> {
    let clone = "set -e
        cd \"$1\"
        git ls-files --cached --others --exclude-standard -z | tar --null --files-from=- --ignore-failed-read -cf - | tar -xf - -C \"$2/origin\"
        cd \"$2/origin\"
        export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
        git init --quiet && git add --all && git commit --quiet --message=shipped
        git clone --quiet . \"$2/source\"
        git commit --quiet --allow-empty --message=later
        chmod 755 \"$2\"";
    fs::create_dir(folder.join("origin"))?;
    let mut bash = Command::new("bash");
    bash.args(["-c", clone, "bash"]).arg(repository()).arg(folder);
    // It may belong to somebody else.
    bash.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "safe.directory").env("GIT_CONFIG_VALUE_0", "*");
    let cloned = output(&mut bash)?;
    ensure!(cloned.status.success(), "{}", String::from_utf8_lossy(&cloned.stderr));
    Ok(())
}

fn session(folder: &Path) -> Result<Session> {
    let mut bash = Command::new(installed("bash"));
    bash.current_dir(folder.join("source"));
    Ok(Session::start(bash, Shell::Bash)?.taking_time())
}

fn typed(line: &Line) -> String {
    let command = line.text.replace(BUILDS, "");
    if !command.contains(FOR_GPUS) {
        return command;
    }
    let command = command.split('#').next().unwrap_or_default();
    format!("{{ {command}; }} 2>&1 | tee /run/gpus; grep --quiet '{NO_GPUS}' /run/gpus")
}

#[test]
fn every_command_for_the_source_folder_with_docker_does_what_the_page_says() -> Result<()> {
    // Refuses to where there is another engine; takes down what pages have started.
    let stack = Stack::shipped()?;
    stack.compose(&["down", "--volumes", "--timeout=1"])?;
    let address = output(Command::new("ip").args(["address", "add", ADDRESS, "dev", "lo"]))?;
    ensure!(address.status.success(), "{address:?}");
    Page::each_with(Place::Docker, |page| {
        let folder = tempfile::tempdir()?;
        source(folder.path())?;
        let mut session = session(folder.path())?;
        let lines = page.typed(Place::Docker);
        if !lines.iter().any(|line| line.text.contains(" up -d")) {
            // It is about a stack that runs.
            session.succeed("docker compose up -d")?;
        }
        for line in lines {
            let done = session.succeed(&typed(&line));
            done.with_context(|| page.place_of(&line))?;
        }
        session.finish()?;
        stack.compose(&["down", "--volumes", "--timeout=1"])?;
        Ok(())
    })
}
