//! Servers that are none, hang, or end at any time: each is told for what it is, and nothing of it is left.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use genv_remote::session::RunLimits;
use genv_remote::{FailureKind, HostFailure, Session, Timeouts};
use genv_tests::patience::PATIENCE;
use genv_tests::process::signal;
use genv_tests::ssh::SshClient;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::remote_ssh::support::{client, ensure_failure, eventually, failure, server, session, target, tasks};

/// The greeting of a server that speaks SSH.
const HELLO: &[u8] = b"SSH-2.0-x\r\n";

/// Connects to a server that greets each connection, sends these bytes so many times, and then closes it or stays silent.
async fn answered_by(greeting: &'static [u8], bytes: &'static [u8], times: usize, closes: bool) -> Result<HostFailure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let answering = tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            for part in std::iter::once(greeting).chain(std::iter::repeat_n(bytes, times)) {
                if connection.write_all(part).await.is_err() {
                    break;
                }
            }
            // What it is sent is read, so that closing resets nothing.
            let mut sink = [0; 4096];
            while !closes && connection.read(&mut sink).await.is_ok_and(|read| read > 0) {}
            let _ = connection.shutdown().await;
            while connection.read(&mut sink).await.is_ok_and(|read| read > 0) {}
        }
    });
    // Where it stays silent, the time is up; what it says otherwise is told before, also on a busy machine.
    let seconds = if closes { PATIENCE.as_secs() } else { 2 };
    let configuration = format!("Host host\n  Port {port}\n  ConnectTimeout {seconds}\n  IdentityAgent none\n");
    let client = SshClient::configured(&configuration, "")?;
    let before = tasks();
    let failure = failure(&client, "host").await;
    eventually("its tasks end", || tasks() <= before).await?;
    answering.abort();
    Ok(failure)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_an_ssh_server_is_told_from_one() -> Result<()> {
    let http = answered_by(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", 0, true).await?;
    ensure_failure(&http, FailureKind::Protocol, &["its greeting is not of SSH", "HTTP/1.1 400 Bad Request"])?;
    let lines = answered_by(b"", b"many lines\n", 10_000_000, true).await?;
    ensure_failure(&lines, FailureKind::Protocol, &["its greeting is not of SSH", "many lines"])?;
    static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
    let zeros = answered_by(b"", &ZEROS, 100, true).await?;
    ensure_failure(&zeros, FailureKind::Protocol, &["its greeting is not of SSH"])?;
    let garbage = answered_by(HELLO, b"\xff\xff\xff\xff garbage", 1_000_000, true).await?;
    ensure_failure(&garbage, FailureKind::Protocol, &["violates the protocol SSH"])?;
    let old = answered_by(b"SSH-1.5-x\r\n", b"", 0, true).await?;
    ensure_failure(&old, FailureKind::Protocol, &["SSH-1.5-x"])
}

/// A packet that says nothing (SSH_MSG_IGNORE), as often as it likes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_never_comes_to_the_point_is_left() -> Result<()> {
    let ignored = answered_by(HELLO, b"\0\0\0\x0c\x05\x02\0\0\0\x01xPPPPP", 1_000_000, true).await?;
    ensure_failure(&ignored, FailureKind::Protocol, &["more than 1048576 bytes before it showed its key"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_ends_with_the_deadline_at_each_step() -> Result<()> {
    for greeting in [b"".as_slice(), HELLO] {
        let silent = answered_by(greeting, b"", 0, false).await?;
        ensure_failure(&silent, FailureKind::TimedOut, &["accepts the connection", "in 2.0 s"])?;
    }
    Ok(())
}

/// Passes a connection to a server on, until so many bytes came back from it; then it closes it, or keeps still.
async fn cut_after(server: u16, bytes: usize, closes: bool) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await?;
        let mut far = TcpStream::connect(("127.0.0.1", server)).await?;
        let (mut read, mut write) = near.split();
        let (mut far_read, mut far_write) = far.split();
        let mut left = bytes;
        let back = async {
            let mut buffer = [0; 256];
            while left > 0 {
                let most = left.min(buffer.len());
                let some = far_read.read(&mut buffer[..most]).await?;
                if some == 0 {
                    break;
                }
                write.write_all(&buffer[..some]).await?;
                left -= some;
            }
            if !closes {
                std::future::pending::<()>().await;
            }
            anyhow::Ok(())
        };
        tokio::select! {
            result = back => result,
            copied = tokio::io::copy(&mut read, &mut far_write) => copied.map(drop).map_err(Into::into),
        }
    });
    Ok(port)
}

/// From the first byte that a server sends to the last before somebody is let in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_ends_anywhere_on_its_way_is_told_and_leaves_nothing() -> Result<()> {
    let server = server(&[])?;
    let client = SshClient::new(&[("host", &server)])?;
    let mut target = target(&client, "host").await?;
    // The port that its key is known by.
    target.host_key_alias = Some(format!("[127.0.0.1]:{}", server.port()));
    // Where the connection only keeps still, the time is up; where it is closed, that is told before.
    let times = |limit| Timeouts { connect: Some(limit), answer: limit };
    let (long, short) = (times(PATIENCE), times(Duration::from_secs(1)));
    let before = tasks();
    let mut let_in = false;
    for bytes in (0..4000).step_by(97) {
        for closes in [true, false] {
            if !closes && bytes % 5 != 0 {
                continue;
            }
            target.port = cut_after(server.port(), bytes, closes).await?;
            let connecting = Session::connect(&target, if closes { &long } else { &short });
            let connected = tokio::time::timeout(PATIENCE * 2, connecting).await;
            match connected.with_context(|| format!("hangs after {bytes} bytes"))? {
                // The cut comes after it let in.
                Ok(session) => {
                    let_in = true;
                    session.close().await;
                }
                Err(failure) => {
                    let expected = if closes { FailureKind::Disconnected } else { FailureKind::TimedOut };
                    ensure!(failure.kind == expected, "after {bytes} bytes, {closes}: {failure:?}");
                }
            }
        }
        if let_in {
            break;
        }
    }
    ensure!(let_in, "4000 bytes were not enough");
    eventually("all tasks end", || tasks() <= before).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_the_host_ends_is_told_at_once() -> Result<()> {
    let (server, session) = session(&[]).await?;
    let mut channel = session.open("echo ready; exec sleep 600").await?;
    ensure!(channel.next_line().await?.as_deref() == Some(b"ready".as_slice()));
    for pid in server.connections() {
        signal(pid, Signal::KILL)?;
    }
    let ended = tokio::time::timeout(PATIENCE, channel.next_line()).await?;
    ensure_failure(&ended.expect_err("it ended"), FailureKind::Disconnected, &["the session ended", "closed"])?;
    eventually("it is closed", || session.is_closed()).await?;
    let again = session.run("true", b"", &RunLimits::default()).await;
    ensure_failure(&again.expect_err("it is closed"), FailureKind::Disconnected, &["closed the connection"])?;
    let sent = channel.send_line(b"x").await;
    ensure_failure(&sent.expect_err("it is closed"), FailureKind::Disconnected, &[])?;
    session.close().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_stops_answering_is_noticed() -> Result<()> {
    let server = server(&[])?;
    let options = format!(
        "IdentityFile {}\n  IdentityAgent none\n  ServerAliveInterval 2\n  ServerAliveCountMax 3",
        server.identity().display()
    );
    let client = client(&server, &options)?;
    let session = crate::remote_ssh::support::connect(&client, "host").await?;
    let mut channel = session.open("echo ready; exec sleep 600").await?;
    ensure!(channel.next_line().await?.as_deref() == Some(b"ready".as_slice()));
    let pids = server.connections();
    for pid in &pids {
        signal(*pid, Signal::STOP)?;
    }
    let ended = tokio::time::timeout(PATIENCE, channel.next_line()).await;
    for pid in pids {
        signal(pid, Signal::CONT)?;
    }
    ensure_failure(&ended?.expect_err("it is stopped"), FailureKind::Disconnected, &["it stopped answering"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_too_many_connections_is_told() -> Result<()> {
    let server = server(&["MaxStartups 1"])?;
    // It takes the only place of those that are not yet let in, once what looked for the server has left it.
    let mut waiting = loop {
        let mut waiting = TcpStream::connect(("127.0.0.1", server.port())).await?;
        let mut greeting = [0; 4];
        waiting.read_exact(&mut greeting).await?;
        if greeting == *b"SSH-" {
            break waiting;
        }
    };
    let client = SshClient::new(&[("host", &server)])?;
    ensure_failure(
        &failure(&client, "host").await,
        FailureKind::Disconnected,
        &["Raise MaxStartups", "PerSourcePenalties"],
    )?;
    waiting.shutdown().await?;
    Ok(())
}
