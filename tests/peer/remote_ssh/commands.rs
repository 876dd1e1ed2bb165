//! Commands through one session.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use genv_remote::conversation::{Conversation, ServeOptions};
use genv_remote::protocol::HostProgram;
use genv_remote::session::{CommandEnd, RunLimits};
use genv_remote::{FailureKind, Session, Timeouts};
use genv_tests::patience::PATIENCE;
use genv_tests::process::write_script;
use genv_tests::shell::search_path;
use genv_tests::ssh::{SshClient, SshServer};

use crate::remote_ssh::support::{ask, connect, ensure_failure, server, session, target};

/// Commands run through a session as before.
async fn lives_on(session: Session) -> Result<()> {
    let limits = RunLimits::default();
    let output = session.run("echo still here", b"", &limits).await?;
    ensure!(output.stdout == b"still here\n");
    session.close().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_reads_writes_and_ends() -> Result<()> {
    let (_server, session) = session(&[]).await?;
    let limits = RunLimits::default();
    let output = session.run("cat; echo complaint >&2; exit 3", b"in\0put\n", &limits).await?;
    ensure!(output.stdout == b"in\0put\n", "{output:?}");
    ensure!(output.stderr == "complaint\n", "{output:?}");
    ensure!(output.end == CommandEnd::Exited(3), "{output:?}");
    let output = session.run("kill -TERM $$", b"", &limits).await?;
    ensure!(output.end == CommandEnd::Signalled("TERM".to_owned()), "{output:?}");
    session.close().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_does_not_end_in_time_is_given_up_and_the_session_lives_on() -> Result<()> {
    let (_server, session) = session(&[]).await?;
    let limits = RunLimits { duration: Duration::from_millis(300), ..RunLimits::default() };
    let failure = session.run("sleep 600", b"", &limits).await;
    let failure = failure.expect_err("it sleeps");
    ensure!(failure.kind == FailureKind::TimedOut, "{failure}");
    lives_on(session).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_commands_at_once_than_a_server_allows_wait_for_each_other() -> Result<()> {
    let (_server, session) = session(&["MaxSessions 8"]).await?;
    let session = std::sync::Arc::new(session);
    let mut running = Vec::new();
    for number in 0..50 {
        let session = std::sync::Arc::clone(&session);
        running.push(tokio::spawn(async move {
            let command = format!("sleep 0.01; echo {number}");
            let output = session.run(&command, b"", &RunLimits::default()).await;
            output.map(|output| (number, output))
        }));
    }
    for task in running {
        let (number, output) = task.await??;
        ensure!(output.stdout == format!("{number}\n").into_bytes(), "{output:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_command_complains_of_is_bounded_and_its_end_is_kept() -> Result<()> {
    let (_server, session) = session(&[]).await?;
    let flood = "head -c 30000000 /dev/zero | tr '\\0' x >&2; echo last >&2; echo fine";
    let output = session.run(flood, b"", &RunLimits::default()).await?;
    ensure!(output.stdout == b"fine\n");
    ensure!(output.stderr.len() <= 4096, "{} bytes", output.stderr.len());
    ensure!(output.stderr.ends_with("xxlast\n"));
    let missing = session.run("/nonexistent/program", b"", &RunLimits::default()).await?;
    ensure!(missing.end == CommandEnd::Exited(127), "{missing:?}");
    ensure!(missing.stderr.contains("/nonexistent/program"), "{missing:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_output_and_endless_lines_are_cut_off_and_the_session_lives_on() -> Result<()> {
    let (_server, session) = session(&[]).await?;
    let limits = RunLimits { stdout_bytes: 1000, ..RunLimits::default() };
    let failure = session.run("yes", b"", &limits).await.expect_err("it is endless");
    ensure_failure(&failure, FailureKind::Protocol, &["more than 1000 bytes"])?;
    let exact = session.run("head -c 1000 /dev/zero", b"", &limits).await?;
    ensure!(exact.stdout.len() == 1000);
    let mut channel = session.open("tr '\\0' x < /dev/zero").await?;
    let failure = channel.next_line().await.expect_err("it is endless");
    ensure_failure(&failure, FailureKind::Protocol, &["a line of more than"])?;
    ensure!(channel.next_line().await.expect_err("it is of no more use") == failure);
    drop(channel);
    lives_on(session).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_any_bytes_and_lengths_come_whole() -> Result<()> {
    let (_server, session) = session(&[]).await?;
    let mut channel = session.open("cat").await?;
    for line in [&b""[..], b"\0\xff\r", &[b'x'; 40_000], &vec![b'y'; 3_000_000]] {
        // What it echoes comes while it is still sent to.
        channel.send_line(line).await?;
        let received = channel.next_line().await;
        ensure!(received?.as_deref() == Some(line), "a line of {} bytes", line.len());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_reads_nothing_blocks_nobody() -> Result<()> {
    let server = server(&[])?;
    let client = SshClient::new(&[("host", &server)])?;
    let target = target(&client, "host").await?;
    let timeouts = Timeouts { answer: Duration::from_secs(3), ..Timeouts::default() };
    let session = Session::connect(&target, &timeouts).await?;
    // A busy machine may take longer to open a channel than what nobody reads is waited for.
    let mut channel = loop {
        match session.open("exec sleep 600").await {
            Err(failure) if failure.kind == FailureKind::TimedOut => {}
            opened => break opened?,
        }
    };
    let failure = channel.send_line(&vec![b'x'; 10_000_000]).await.expect_err("nobody reads");
    ensure_failure(&failure, FailureKind::TimedOut, &["did not read a request"])?;
    let output = session.run("exit 0", &vec![b'x'; 10_000_000], &RunLimits::default()).await?;
    ensure!(output.end.success(), "{output:?}");
    Ok(())
}

/// The line that the documentation has for a key that can do nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_forced_command_tells_of_the_host_and_runs_nothing_else() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut environment = Command::new("true");
    environment.env("PATH", search_path()?).env("GENV_DEVICES", "2").env("GENV_TMPDIR", folder.path().join("state"));
    let server = SshServer::start(&environment, &[])?;
    let mut lines = include_str!("../../../docs/remote.md").lines();
    let documented = lines.find_map(|line| {
        let (options, _) = line.split_once(" ssh-ed25519 ")?;
        options.starts_with("restrict,").then_some(options)
    });
    let options = documented.context("no such line in docs/remote.md")?;
    let key = std::fs::read_to_string(server.authorized_keys())?;
    std::fs::write(server.authorized_keys(), format!("{options} {key}"))?;
    let client = SshClient::new(&[("host", &server)])?;
    let session = connect(&client, "host").await?;
    let options = ServeOptions { sudo: false, enforce: false, answer_timeout: Duration::from_secs(60) };
    let (snapshot, _) = ask(&session, options).await?;
    ensure!(snapshot.devices.len() == 2, "{snapshot:?}");
    let proof = folder.path().join("proof");
    let command = format!("touch {}", proof.display());
    let output = session.run(&command, b"", &RunLimits::default()).await?;
    ensure!(output.stdout.starts_with(b"{\"genv_remote\":"), "{output:?}");
    ensure!(!proof.exists());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_channel_of_a_greeting_is_closed_before_the_next_one_opens() -> Result<()> {
    let server = server(&["MaxSessions 1"])?;
    let folder = tempfile::tempdir()?;
    let greeting = folder.path().join("greeting");
    // The first one ends later than a refused channel is asked for again.
    let first = folder.path().join("first");
    let script = format!(
        "#!/bin/sh\necho '{{\"genv_remote\":1,\"answers_with\":\"nvidia-smi\"}}'\n[ -e {0} ] && exit\n: >{0}\nexec sleep 3\n",
        first.display()
    );
    write_script(&greeting, &script)?;
    let key = std::fs::read_to_string(server.authorized_keys())?;
    std::fs::write(server.authorized_keys(), format!("command=\"{}\" {key}", greeting.display()))?;
    let client = SshClient::new(&[("host", &server)])?;
    let session = connect(&client, "host").await?;
    let options = ServeOptions { sudo: false, enforce: false, answer_timeout: PATIENCE };
    let (_conversation, hello) = Conversation::begin(&session, &options).await?;
    ensure!(hello.answers_with == HostProgram::NvidiaSmi, "{hello:?}");
    for _ in 0..10 {
        let output = session.run("true", b"", &RunLimits::default()).await?;
        ensure!(output.end.success(), "{output:?}");
    }
    session.close().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_opens_no_channel_is_told() -> Result<()> {
    let (_server, session) = session(&["MaxSessions 0"]).await?;
    let failure = session.run("true", b"", &RunLimits::default()).await;
    ensure_failure(&failure.expect_err("none is allowed"), FailureKind::Command, &["opens no channel", "MaxSessions"])
}
