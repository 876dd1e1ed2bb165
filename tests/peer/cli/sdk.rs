//! Programs that use the Python SDK of genv 1.4.3, beside and within our environments.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use genv_tests::process::{Running, wait_for_lock};

use crate::cli::lab::{file, holders, lab, members, peer_reads};

/// A Python program that evaluates one expression after another; it ends with the value.
struct Python {
    child: Running,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

const LOOP: &str = r#"
import os, sys
from contextlib import ExitStack
import genv.sdk
from genv.sdk import *
from genv.entities import Env

stack = ExitStack()
for line in sys.stdin:
    print(eval(line), flush=True)
"#;

impl Python {
    fn start(mut command: Command) -> Result<Self> {
        let command = command.args(["-c", LOOP]).stdin(Stdio::piped());
        let mut child = Running::spawn(command.stdout(Stdio::piped()))?;
        let input = child.stdin.take().context("no stdin")?;
        let output = BufReader::new(child.stdout.take().context("no stdout")?);
        Ok(Self { child, input, output })
    }

    fn send(&mut self, expression: &str) -> Result<()> {
        Ok(writeln!(self.input, "{expression}")?)
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(!line.is_empty(), "it ended");
        Ok(line.trim_end().to_owned())
    }

    fn tells(&mut self, expression: &str, expected: &str) -> Result<()> {
        self.send(expression)?;
        let answer = self.answer()?;
        ensure!(answer == expected, "{expression}: {answer}");
        Ok(())
    }
}

#[test]
fn a_python_program_and_our_shell_share_an_environment() -> Result<()> {
    let (_simulation, peer) = lab(4)?;
    let mut python = Python::start(peer.command("python3"))?;
    python.tells("active()", "False")?;
    python.tells("stack.enter_context(activate(eid='sdk', config=Env.Config(name='python', gpus=1)))", "None")?;
    python.tells("list(attached())", "[0]")?;
    peer_reads(&peer)?;

    let mut shell = peer.our_shell()?;
    shell.run("genv activate --id sdk")?;
    ensure!(shell.run("echo $CUDA_VISIBLE_DEVICES $GENV_ENVIRONMENT_NAME")? == "0 python\n");
    let pids = [python.child.id(), shell.pid()].map(u64::from);
    ensure!(members(&peer, "sdk")? == Some(pids.to_vec()));

    shell.run("genv config name renamed; genv attach --count 2")?;
    peer_reads(&peer)?;
    python.tells("list(refresh_attached())", "[0, 1]")?;
    python.tells("refresh_configuration().name", "renamed")?;
    python.tells("list(attach(index=3))", "[0, 1, 3]")?;
    python.tells("configure(Env.Config(name='again', gpus=3, gpu_memory='4g'))", "None")?;
    peer_reads(&peer)?;
    let shown = shell.run("genv attach --refresh; genv config --refresh; echo $CUDA_VISIBLE_DEVICES; genv config")?;
    ensure!(shown == "0,1,3\ngpu-memory: 4g\ngpus: 3\nname: again\n", "{shown}");

    // Its end leaves the shell in the environment.
    python.tells("stack.close()", "None")?;
    peer_reads(&peer)?;
    ensure!(members(&peer, "sdk")? == Some(pids[1..].to_vec()));
    shell.run("genv deactivate")?;
    ensure!(holders(&peer)?.is_empty());
    Ok(())
}

#[test]
fn a_python_program_works_within_our_environment() -> Result<()> {
    let (_simulation, peer) = lab(3)?;
    let mut command = peer.our_command("genv")?;
    // Its own python3, with our variables.
    let path = peer.command("python3");
    let python = path.get_envs().find(|(name, _)| *name == "PATH");
    let path = python.and_then(|(_, value)| value).context("no PATH")?;
    let mut bash = peer.our_shell()?;
    bash.run("genv activate --name 'my env' --gpus 2 --gpu-memory 4g")?;
    let program = r#"python3 -c "
import genv.sdk as s
print(s.active(), s.eid(), list(s.attached()), s.configuration())
print(list(s.attach(gpus=3)), list(s.detach(1)))
with s.lock(): print('locked')
""#;
    let printed = bash.run(&format!("PATH={}:$PATH {program}", path.to_string_lossy()))?;
    let eid = bash.pid();
    let mut lines = printed.lines();
    let first = lines.next().unwrap_or_default();
    ensure!(
        first.starts_with(&format!("True {eid} [0, 1] "))
            && ["'my env'", "'4g'", "gpus=2"].iter().all(|it| first.contains(it)),
        "{printed}"
    );
    ensure!(lines.eq(["[0, 1, 2] [0, 2]", "locked"]), "{printed}");
    peer_reads(&peer)?;
    ensure!(bash.run("genv attach --refresh; echo $CUDA_VISIBLE_DEVICES")? == "0,2\n");

    // `genv exec` too: its environment is a shell's to the SDK, and ends with the program.
    let output = command
        .args(["exec", "--eid", "job", "--gpus", "1", "--", "env"])
        .arg(format!("PATH={}", path.to_string_lossy()))
        .args(["python3", "-c", "import genv.sdk as s; print(s.eid(), list(s.attached()), list(s.refresh_attached()))"])
        .output()?;
    let printed = String::from_utf8(output.stdout)?;
    ensure!(printed == "job [1] [1]\n", "{printed}");
    ensure!(members(&peer, "job")?.is_none());
    Ok(())
}

#[test]
fn its_lock_and_our_lock_command_exclude_each_other() -> Result<()> {
    let (_simulation, peer) = lab(2)?;
    let mut python = Python::start(peer.command("python3"))?;
    python.tells("stack.enter_context(activate(eid='sdk', config=Env.Config(gpus=2)))", "None")?;
    python.tells("stack.enter_context(lock())", "None")?;
    let mut ours = peer.our_command("genv")?;
    let ours = ours
        .args(["lock", "sh", "-c", "echo held; cat"])
        .env("GENV_ENVIRONMENT_ID", "sdk")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut ours = ours.spawn()?;
    wait_for_lock(&mut ours)?;
    // Leaving the lock alone would be `stack.pop_all`; leaving the environment too shows that ours goes on.
    python.tells("stack.close()", "None")?;
    let mut line = String::new();
    let output = ours.stdout.as_mut().context("no stdout")?;
    BufReader::new(output).read_line(&mut line)?;
    ensure!(line == "held\n", "{line}");

    python.tells("stack.enter_context(activate(eid='again', config=Env.Config(gpus=2)))", "None")?;
    python.send("stack.enter_context(lock())")?;
    wait_for_lock(&mut python.child)?;
    drop(ours.stdin.take());
    ensure!(ours.wait()?.success());
    ensure!(python.answer()? == "None");
    ensure!(file(&peer, "envs.json")?["envs"][0]["eid"] == "again");
    Ok(())
}
