//! A program that follows many hosts takes all the open files that it may have.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use genv_tests::enforcer::Setup;
use genv_tests::http::free_port;
use genv_tests::patience::until;
use genv_tests::process::{Sleeper, program};

/// More than the soft limit lets a program open, and less than the hard one.
const HOSTS: &str = "--host=gpu[001-100].invalid";

fn limits(pid: u32) -> Result<(String, String)> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    let mut words = line.context("no such limit")?.split_whitespace().skip(3);
    let mut next = || words.next().context("too few words").map(str::to_owned);
    Ok((next()?, next()?))
}

/// Starts a program with a soft limit of 64 open files, and waits until it has taken all that the hard one allows.
fn takes_all(command: &Command) -> Result<()> {
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -Sn 64 && ulimit -Hn 1000 && exec \"$@\"", "sh"])
        .arg(command.get_program())
        .args(command.get_args())
        .stderr(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let running = Sleeper::spawn(&mut limited)?;
    until("its limit is the hard one", || Ok(limits(running.pid())? == ("1000".to_owned(), "1000".to_owned())))
}

#[test]
fn both_programs_take_all_open_files_that_they_may_have_for_many_hosts() -> Result<()> {
    let mut exporter = Command::new(program("genv-exporter")?);
    exporter.arg(format!("--web.listen-address=127.0.0.1:{}", free_port()?));
    takes_all(exporter.arg(HOSTS))?;
    let setup = Setup::new("version: 1\nhosts: []\n", "version: 1\nrules: []\n")?;
    let config = format!("--config={}", setup.config().display());
    let listen = format!("--web.listen-address=127.0.0.1:{}", free_port()?);
    takes_all(&setup.command(&["run", &config, &listen, HOSTS])?)
}
