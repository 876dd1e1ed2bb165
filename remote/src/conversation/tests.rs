use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex, split};

use super::*;
use crate::protocol::{HostProgram, LONGEST_LINE_BYTES};
use crate::script::tests::is_for_every_login_shell;

const HELLO_LINE: &str = r#"{"genv_remote":1,"version":"0.1.0","answers_with":"genv","may_enforce":true}"#;

fn options() -> ServeOptions {
    ServeOptions { sudo: false, enforce: false, answer_timeout: Duration::from_secs(60) }
}

/// A transport with the stderr that a test chooses.
struct TestTransport {
    streams: StreamTransport<tokio::io::ReadHalf<DuplexStream>, tokio::io::WriteHalf<DuplexStream>>,
    stderr: &'static str,
}

impl LineTransport for TestTransport {
    async fn next_line(&mut self, max_bytes: usize) -> Result<Option<Vec<u8>>, HostFailure> {
        self.streams.next_line(max_bytes).await
    }

    fn partial_line(&self) -> &[u8] {
        self.streams.partial_line()
    }

    async fn send_line(&mut self, line: &[u8]) -> Result<(), HostFailure> {
        self.streams.send_line(line).await
    }

    fn stderr(&self) -> String {
        self.stderr.to_owned()
    }
}

/// A simulated host, and the transport to it.
fn host(stderr: &'static str) -> (DuplexStream, TestTransport) {
    let (there, here) = duplex(64 << 10);
    let (reader, writer) = split(here);
    let streams = StreamTransport::new(reader, writer);
    (there, TestTransport { streams, stderr })
}

/// Runs a future with a paused clock: a timeout that nothing else can end is over at once.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

/// The greeting from a host with this output. After the output the host ends, or else stays silent.
fn begin(output: &[u8], stderr: &'static str, ends: bool, options: ServeOptions) -> Result<Hello, HostFailure> {
    run(async {
        let (mut there, lines) = host(stderr);
        let conversation = Conversation::with(lines, &options);
        let send_output = async {
            // The write fails if the client stops reading.
            let _ = there.write_all(output).await;
            if ends {
                drop(there);
            } else {
                std::future::pending::<()>().await;
            }
            std::future::pending().await
        };
        tokio::select! {
            started = conversation => started.map(|(_, hello)| hello),
            never = send_output => never,
        }
    })
}

fn refused(output: &[u8], stderr: &'static str, ends: bool) -> (FailureKind, String) {
    let failure = begin(output, stderr, ends, options()).unwrap_err();
    assert!(failure.message.len() < 1000, "{failure}");
    (failure.kind, failure.message)
}

#[test]
fn every_login_shell_passes_the_script_on_unchanged() {
    is_for_every_login_shell(SCRIPT);
    let command = serve_command(&ServeOptions { sudo: true, ..options() });
    assert!(command.ends_with("' genv-remote 1 yes no"), "{command}");
}

#[test]
fn nvidia_smi_is_found_where_the_path_of_ssh_does_not_lead() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/true", folder.path().join("nvidia-smi")).unwrap();
    let found = folder.path().display().to_string();
    // No other place of this machine may have a program of that name. The script needs the shell alone.
    let nowhere = format!("{found}/nowhere");
    std::fs::create_dir(&nowhere).unwrap();
    std::os::unix::fs::symlink("/bin/sh", format!("{nowhere}/sh")).unwrap();
    for place in
        ["/usr/lib/wsl/lib", "/opt/bin", "/opt/nvidia/bin", "/usr/local/nvidia/bin", "/run/current-system/sw/bin"]
    {
        let line = |line: &str| match line.strip_prefix("PATH=$PATH:") {
            Some(places) => {
                let places = places.trim_end_matches(';').split(':');
                let places: Vec<&str> = places.map(|it| if it == place { &*found } else { &*nowhere }).collect();
                format!("PATH=$PATH:{};\n", places.join(":"))
            }
            None => format!("{line}\n"),
        };
        let script: String = SCRIPT.lines().map(line).collect();
        let mut sh = std::process::Command::new("/bin/sh");
        sh.args(["-c", &script::command(&script, &["1", "no", "no"])]).env("PATH", &nowhere);
        let printed = String::from_utf8(sh.output().unwrap().stdout).unwrap();
        assert!(printed.contains("\"answers_with\":\"nvidia-smi\""), "{place}: {printed}");
    }
}

#[test]
fn output_before_the_greeting_is_skipped() {
    let noises = [
        String::new(),
        "Welcome to gpu01!\n\x1b[31mred\x1b[0m\n\n".to_owned(),
        // The output of a profile without a line feed at its end.
        "disk quota: 3 %".to_owned(),
        "{\"genv_remote\n{}\n[1]\nnull\n".to_owned(),
        "x".repeat(LONGEST_NOISE_BYTES - 10) + "\n",
        "x\n".repeat(LONGEST_NOISE_BYTES / 2 - 10),
    ];
    for noise in noises {
        let hello = begin(format!("{noise}{HELLO_LINE}\n").as_bytes(), "", false, options());
        let hello = hello.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(hello.may_enforce && hello.answers_with == HostProgram::Genv);
    }
}

#[test]
fn too_much_output_before_the_greeting_is_an_error_with_its_beginning() {
    let more = ["motd\n".to_owned() + &"x".repeat(LONGEST_NOISE_BYTES), "motd\n".repeat(20_000)];
    for noise in more {
        let (kind, message) = refused(format!("{noise}\n{HELLO_LINE}\n").as_bytes(), "", false);
        assert_eq!(kind, FailureKind::Protocol);
        assert!(message.contains("more than 64 KiB before a greeting, beginning with 'motd"), "{message}");
    }
}

/// The result of `here` while the host sends an endless line, and the number of bytes that the client has read.
async fn endless<T>(there: &mut DuplexStream, here: impl Future<Output = T>) -> (T, usize) {
    let mut bytes_read = 0;
    let result = tokio::select! {
        result = here => result,
        never = async {
            while there.write_all(&[b'x'; 4096]).await.is_ok() {
                bytes_read += 4096;
            }
            std::future::pending().await
        } => never,
    };
    (result, bytes_read)
}

#[test]
fn an_endless_line_is_an_error_and_memory_stays_bounded() {
    run(async {
        let (mut there, lines) = host("");
        let options = options();
        let (started, bytes_read) = endless(&mut there, Conversation::with(lines, &options)).await;
        let failure = started.map(|_| ()).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Protocol);
        assert!(failure.message.contains("more than 64 KiB before a greeting, beginning with 'xxx"), "{failure}");
        // The pipe between host and client holds some bytes too.
        assert!(bytes_read <= 3 * LONGEST_NOISE_BYTES, "{bytes_read}");

        let (mut there, lines) = host("");
        let hello = format!("{HELLO_LINE}\n");
        there.write_all(hello.as_bytes()).await.unwrap();
        let (mut conversation, _) = Conversation::with(lines, &options).await.unwrap();
        let (reply, bytes_read) = endless(&mut there, conversation.next_reply()).await;
        let failure = reply.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Protocol);
        assert!(failure.message.contains(&format!("more than {LONGEST_LINE_BYTES} bytes")), "{failure}");
        assert!(bytes_read <= 2 * LONGEST_LINE_BYTES, "{bytes_read}");
        assert!(conversation.lines.partial_line().len() < 4096);
    });
}

#[test]
fn the_error_of_a_host_without_a_greeting_quotes_its_output() {
    for (output, stderr, ends, kind, expected) in [
        ("", "", true, FailureKind::Command, "printed: nothing"),
        (
            "This account is currently not available.\n",
            "",
            true,
            FailureKind::Command,
            "printed: 'This account is currently not available.'",
        ),
        ("motd\n", "sh: 1: \x1b[2Jno\n\n", true, FailureKind::Command, "printed: 'sh: 1: \\u{1b}[2Jno'"),
        ("motd", "", false, FailureKind::TimedOut, "no greeting within 60 s"),
        ("Password:\n", "", false, FailureKind::TimedOut, "its last line: 'Password:'"),
        ("motd\nVerification code: ", "", false, FailureKind::TimedOut, "its last line: 'Verification code:'"),
        ("{\"genv_remote\":\"one\"}\n", "", false, FailureKind::Protocol, "its greeting is invalid"),
        (
            "{\"genv_remote\":1,\"answers_with\":\"slurm\"}\n",
            "",
            false,
            FailureKind::Protocol,
            "unknown variant `slurm`",
        ),
        ("{\"genv_remote\":1,", "", true, FailureKind::Protocol, "EOF"),
    ] {
        let (found, message) = refused(output.as_bytes(), stderr, ends);
        assert_eq!(found, kind, "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn the_error_of_another_protocol_version_names_the_side_to_upgrade() {
    for (output, expected) in [
        (
            r#"{"genv_remote":2,"version":"9.9","answers_with":{"new":1}}"#,
            "genv 9.9 there speaks version 2 of the protocol, and genv 0.1.0 here version 1: upgrade genv here to 9.9 \
             or later",
        ),
        (
            r#"{"genv_remote":0,"answers_with":"genv"}"#,
            "genv unknown there speaks version 0 of the protocol, and genv 0.1.0 here version 1: upgrade genv there \
             to 0.1.0 or later",
        ),
    ] {
        let (kind, message) = refused(format!("{output}\n").as_bytes(), "", false);
        assert_eq!(kind, FailureKind::Protocol);
        assert!(message.ends_with(expected), "{message}");
    }
}

#[test]
fn the_error_of_sudo_has_the_line_of_sudoers_that_allows_the_command() {
    let sudo = ServeOptions { sudo: true, ..options() };
    for (output, stderr, expected) in [
        (
            "motd\n\ngenv-remote-sudo 1\talice\t/usr/local/bin/genv remote-serve \n",
            "sudo: a password is required\n",
            "sudo refuses, and printed: 'sudo: a password is required'. Allow it with 'visudo -f /etc/sudoers.d/genv' \
             there, by the line: alice ALL=(root) NOPASSWD: /usr/local/bin/genv remote-serve",
        ),
        (
            "\ngenv-remote-sudo 1\tC\\a b\t/opt/x=y/genv remote-serve --enforce\n",
            "sudo: no\n",
            r"by the line: C\\a\ b ALL=(root) NOPASSWD: /opt/x\=y/genv remote-serve --enforce",
        ),
        (
            "\ngenv-remote-sudo 1\ta#b!c>d\t/opt/x#y!z/genv remote-serve \n",
            "sudo: no\n",
            r"by the line: a\#b\!c\>d ALL=(root) NOPASSWD: /opt/x\#y!z/genv remote-serve",
        ),
        (
            "\ngenv-remote-sudo 1\talice\t/usr/bin/genv remote-serve \n",
            "motd\nsudo: account validation failure, is your account locked?\nsudo: a password is required\n",
            "printed: 'sudo: account validation failure, is your account locked?; sudo: a password is required'",
        ),
        (
            "\ngenv-remote-sudo 127\talice\t/usr/bin/genv remote-serve \n",
            "sh: 1: sudo: not found\n",
            "sudo is not installed",
        ),
        (
            "\ngenv-remote-sudo 2\talice\t/usr/bin/genv remote-serve \n",
            "genv: GENV_DEVICES is 'x'\n",
            "ended with exit code 2, and printed: 'genv: GENV_DEVICES is 'x''",
        ),
    ] {
        let failure = begin(output.as_bytes(), stderr, true, sudo).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Command);
        assert!(failure.message.contains(expected), "{failure}");
    }
}

#[test]
fn a_request_of_the_host_is_no_reply() {
    run(async {
        let (mut there, lines) = host("");
        let sent = format!("{HELLO_LINE}\n{{\"request\":\"once\"}}\n");
        there.write_all(sent.as_bytes()).await.unwrap();
        let (mut conversation, _) = Conversation::with(lines, &options()).await.unwrap();
        assert_eq!(conversation.next_reply().await.unwrap_err().kind, FailureKind::Protocol);
    });
}

#[test]
fn replies_come_in_any_order_and_a_malformed_reply_ends_the_conversation() {
    run(async {
        let (mut there, lines) = host("genv: killed\n");
        let hello = format!("{HELLO_LINE}\n");
        there.write_all(hello.as_bytes()).await.unwrap();
        let (mut conversation, _) = Conversation::with(lines, &options()).await.unwrap();
        for id in [1, 2] {
            let intents = serde_json::json!([id]);
            let request = Request::Enforce { id, intents };
            conversation.request(&request).await.unwrap();
        }
        let mut requests = vec![0; 112];
        let read = there.read(&mut requests).await.unwrap();
        assert_eq!(
            String::from_utf8_lossy(&requests[..read]),
            "{\"request\":\"enforce\",\"id\":1,\"intents\":[1]}\n{\"request\":\"enforce\",\"id\":2,\"intents\":[2]}\n"
        );
        let replies = concat!(
            r#"{"reply":"error","id":2,"message":"no"}"#,
            "\n",
            r#"{"reply":"enforced","id":1,"outcomes":[]}"#,
            "\nmotd\n"
        );
        there.write_all(replies.as_bytes()).await.unwrap();
        drop(there);
        let first = conversation.next_reply().await.unwrap();
        assert!(matches!(first, Reply::Error { id: Some(2), .. }), "{first:?}");
        let second = conversation.next_reply().await.unwrap();
        assert!(matches!(second, Reply::Enforced { id: 1, .. }), "{second:?}");
        let garbage = conversation.next_reply().await.unwrap_err();
        assert_eq!(garbage.kind, FailureKind::Protocol);
        assert!(garbage.message.contains("begins with 'motd'"), "{garbage}");
        let end = conversation.next_reply().await.unwrap_err();
        assert_eq!(end.kind, FailureKind::Disconnected);
        assert!(end.message.contains("printed: 'genv: killed'"), "{end}");
    });
}
