//! How a host is found and reached: names of the configuration, and hosts on the way.

use anyhow::{Result, ensure};
use genv_remote::FailureKind::{Unreachable, Unresolved, Unsupported};
use genv_remote::session::RunLimits;
use genv_remote::{Session, Timeouts};
use genv_tests::http::free_port;
use genv_tests::ssh::SshClient;

use crate::remote_ssh::support::{
    client, connect, ensure_failure, eventually, failure, identity, is_let_in, refuses, server, session, target, tasks,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_to_which_no_way_leads_is_told_with_the_reason() -> Result<()> {
    let nobody = format!("Host a\n  Port {}\n", free_port()?);
    for (configuration, kind, said) in [
        ("Host a\n  Nonsense yes\n", Unresolved, &["ssh -G a", "option: nonsense", "~/.ssh/config"][..]),
        ("Host a\n  HostName gone.invalid\n", Unresolved, &["gone.invalid", "HostName"]),
        (&nobody, Unreachable, &["127.0.0.1:", "Connection refused", "its sshd runs"]),
        ("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n", Unsupported, &["more than 8 hosts, perhaps in a loop"]),
    ] {
        let client = SshClient::configured(configuration, "")?;
        ensure_failure(&failure(&client, "a").await, kind, said)?;
    }
    Ok(())
}

/// Two hosts on the way to a third, each with its own key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_on_the_way_are_passed_and_left_with_the_session() -> Result<()> {
    let (first, second, last) = (server(&[])?, server(&[])?, server(&[])?);
    let mut configuration = String::new();
    let mut known_hosts = String::new();
    for (name, server, way) in [
        ("first", &first, "none"),
        ("second", &second, "first"),
        ("last", &last, "second"),
        ("listed", &last, "first,second"),
    ] {
        configuration.push_str(&format!(
            "Host {name}\n  Port {}\n  IdentityFile {}\n  IdentityAgent none\n  ProxyJump {way}\n",
            server.port(),
            server.identity().display()
        ));
        known_hosts.push_str(&server.known_hosts_line()?);
    }
    let client = SshClient::configured(&configuration, &known_hosts)?;
    let before = tasks();
    for name in ["last", "listed"] {
        let resolved = target(&client, name).await?;
        let ports: Vec<u16> = resolved.jumps.iter().map(|jump| jump.port).collect();
        ensure!(ports == [first.port(), second.port()], "{name}: {ports:?}");
        let session = Session::connect(&resolved, &Timeouts::default()).await?;
        let output = session.run("echo $SSH_CONNECTION", b"", &RunLimits::default()).await?;
        let connection = String::from_utf8(output.stdout)?;
        ensure!(connection.trim().ends_with(&last.port().to_string()), "{connection}");
        // More than all buffers hold passes both ways at once.
        let much = vec![b'x'; 8 << 20];
        let output = session.run("cat", &much, &RunLimits::default()).await?;
        ensure!(output.stdout == much);
        session.close().await;
        eventually("its tasks end", || tasks() == before).await?;
    }
    // A fault on the way is told with its place.
    drop(second);
    ensure_failure(
        &failure(&client, "last").await,
        Unreachable,
        &["at the jump host second", "from the jump host before it"],
    )?;
    drop(first);
    ensure_failure(&failure(&client, "last").await, Unreachable, &["at the jump host first"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_behind_another_host_is_resolved_there() -> Result<()> {
    let jump = server(&[])?;
    let configuration = format!(
        "Host jump\n  Port {}\n  IdentityFile {}\nHost inner\n  HostName inner.invalid\n  ProxyJump jump\n",
        jump.port(),
        jump.identity().display()
    );
    let client = SshClient::configured(&configuration, &jump.known_hosts_line()?)?;
    ensure_failure(&failure(&client, "inner").await, Unreachable, &["inner.invalid:22 from the jump host before it"])?;
    ensure!(jump.log().contains("inner.invalid"), "{}", jump.log());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_configured_algorithms_are_offered() -> Result<()> {
    let server = server(&["Ciphers aes256-ctr", "LogLevel DEBUG1"])?;
    let identity = identity(&server.identity());
    is_let_in(&client(&server, &format!("{identity}\n  Ciphers aes256-ctr"))?).await?;
    let (other, key) =
        (format!("{identity}\n  Ciphers aes128-ctr"), format!("{identity}\n  HostKeyAlgorithms rsa-sha2-512"));
    refuses(&server, &other, Unsupported, &["Cipher", "aes256-ctr"]).await?;
    refuses(&server, &key, Unsupported, &["HostKeyAlgorithms"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_dropped_or_closed_leaves_nothing() -> Result<()> {
    let before = tasks();
    let (server, one) = session(&[]).await?;
    one.close().await;
    // What has ended is counted until its thread has put it away.
    eventually("tasks of a closed session end", || tasks() == before).await?;
    let client = SshClient::new(&[("host", &server)])?;
    let other = connect(&client, "host").await?;
    let _channel = other.open("while :; do echo x; done").await?;
    drop(other);
    drop(_channel);
    eventually("tasks end", || tasks() == before).await?;
    eventually("connections end", || server.connections().is_empty()).await
}
