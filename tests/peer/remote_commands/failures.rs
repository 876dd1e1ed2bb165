//! Hosts that do not answer, and those that do all the same.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use genv_tests::process::{Sleeper, write_script};
use genv_tests::shell::{self, Shell};
use genv_tests::ssh::SshClient;
use genv_tests::terminal::Terminal;

use crate::remote_commands::support::{Host, answer, remote};

const T4: &str = "{name: Tesla T4, count: 2, memory: 16gi}";

#[test]
fn each_host_that_fails_is_named_with_its_reason_and_the_rest_is_printed() -> Result<()> {
    let (good, down) = (Host::new(T4, &[])?, Host::new(T4, &[])?);
    let silent = Host::new(T4, &["ForceCommand echo hello there"])?;
    let client = SshClient::new(&[("good", &good.server), ("down", &down.server), ("silent", &silent.server)])?;
    drop(down);

    let lines = ["--format", "csv", "--no-header", "--no-summary"];
    let words = [&["-H", "down,good,silent", "devices"], &lines[..]].concat();
    let some = answer(&client, &words)?;
    ensure!(some.code == Some(5) && some.stdout == "good,2,2\n", "{some:?}");
    for (host, said) in [("down", "onnection refused"), ("silent", "hello there")] {
        let begin = format!("genv: {host}: ");
        let line = some.stderr.lines().find(|line| line.starts_with(&begin));
        ensure!(line.is_some_and(|line| line.contains(said)), "no {said:?} of {host}: {some:?}");
    }
    ensure!(some.stderr.ends_with("genv: 2 of 3 hosts failed\n"), "{some:?}");
    ensure!(some.stderr.lines().count() == 3, "{some:?}");

    let quiet = answer(&client, &[&["-q"], &words[..]].concat())?;
    ensure!(quiet.code == Some(5) && quiet.stdout == some.stdout && quiet.stderr.is_empty(), "{quiet:?}");
    let first = answer(&client, &[&["-e"], &words[..]].concat())?;
    ensure!(first.code == Some(1) && first.stdout.is_empty() && first.stderr.lines().count() == 1, "{first:?}");
    let both = answer(&client, &["-e", "-q", "-H", "good,down", "envs"])?;
    ensure!(both.code == Some(1) && both.stdout.is_empty() && both.stderr.is_empty(), "{both:?}");
    for command in [&["devices"][..], &["envs"], &["query", "--name", "x", "--query", "eid"], &["activate"]] {
        let none = answer(&client, &[&["-H", "down,silent"], command].concat())?;
        ensure!(none.code == Some(1), "{command:?}: {none:?}");
        ensure!(none.stderr.contains("2 of 2 hosts failed"), "{none:?}");
    }
    Ok(())
}

#[test]
fn a_clock_that_is_off_is_told_and_ages_count_by_that_clock() -> Result<()> {
    // The test takes a moment of it, and may take half an hour.
    let clock = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() + 5 * 3600;
    let created = clock - 2 * 3600;
    let genv = shell::installation()?.join("bin/genv");
    let folder = tempfile::tempdir()?;
    write_script(
        &folder.path().join("genv"),
        &format!(
            "#!/bin/sh\n[ \"$1\" = remote-serve ] || exec {} \"$@\"\n{} \"$@\" | sed -u \
             -e 's/\"timestamp_seconds\":[0-9.]*/\"timestamp_seconds\":{clock}/' \
             -e 's/\"created_timestamp_seconds\":[0-9.]*/\"created_timestamp_seconds\":{created}/'\n",
            genv.display(),
            genv.display()
        ),
    )?;
    let forced =
        format!("ForceCommand env PATH={}:/usr/bin:/bin sh -c \"$SSH_ORIGINAL_COMMAND\"", folder.path().display());
    let host = Host::new(T4, &[&forced])?;
    let member = Sleeper::start(&[])?;
    host.environment("7", "run", &member, &[])?;
    let client = SshClient::new(&[("skewed", &host.server)])?;
    let told = answer(&client, &["-H", "skewed", "envs", "--format", "csv", "--no-header", "--no-summary"])?;
    let note = "genv: skewed: its clock is 5 hours ahead of this machine's: set it (chrony, systemd-timesyncd)\n";
    ensure!(
        told.code == Some(0) && told.stdout == "skewed,7,root,run,2 hours ago\n" && told.stderr == note,
        "{told:?}"
    );
    Ok(())
}

#[test]
fn a_terminal_shows_how_far_it_is_and_nothing_is_left_of_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let goes_on = folder.path().join("goes-on");
    let waits = format!("until [ -e {} ]; do sleep 0.05; done", goes_on.display());
    let forced = format!("ForceCommand {waits}; sh -c \"$SSH_ORIGINAL_COMMAND\"");
    let (good, slow) = (Host::new(T4, &[])?, Host::new(T4, &[&forced])?);
    let client = SshClient::new(&[("good", &good.server), ("slow", &slow.server)])?;
    let mut command = remote(&client, &["-H", "good,slow", "devices", "--no-summary"])?;
    command.env("TERM", "xterm").env("NO_COLOR", "1");
    let mut terminal = Terminal::run_in(command, Shell::Bash)?;
    terminal.wait("\r\x1b[Kgenv: 1 of 2 hosts, waiting for slow")?;
    fs::write(&goes_on, "")?;
    let shown = terminal.wait("slow  2      2")?;
    let after = shown.rsplit("\r\x1b[K").next();
    ensure!(after.is_some_and(|it| it.starts_with("HOST  TOTAL")), "{shown:?}");
    ensure!(!shown.contains("\x1b[1m"), "{shown:?}");
    Ok(())
}
