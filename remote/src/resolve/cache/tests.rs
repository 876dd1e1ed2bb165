use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;
use crate::resolve::{Hop, read_configuration};

const HOSTS: [&str; 4] = ["gpu1", "gpu2", "gpu11", "login"];

/// Lines of a configuration. Some depend on the host.
const LINES: [&str; 27] = [
    "Host gpu*",
    "Host gpu1 gpu2",
    "Host gpu* !gpu2",
    "Host GPU1",
    "host=\"gpu1\" # comment",
    "Host l?gin *1",
    "Host unix%*",
    "=Host gpu2",
    "Host gpu2 gpu*\u{a0}",
    "Host *",
    "Match host gpu1",
    "Match final all",
    "HostName gpu1",
    "HostName %h.lab.example",
    "HostName 10.0.0.1",
    "Port 2222",
    "User=alice",
    "ProxyJump login",
    "ProxyJump gpu1:2222",
    "ProxyCommand nc %h %p",
    "IdentityFile ~/keys/lab",
    "IdentityFile ~/keys/%h",
    "UserKnownHostsFile /k/%n",
    "ControlPath ~/%r@%h",
    "HostKeyAlias gpu2",
    "CanonicalizeHostname yes",
    "Include FOLDER/included",
];

/// What ssh outputs for a host, with its log; absent if it refuses.
fn ask(configuration: &Path, host: &str) -> Option<(Evaluation, String, String)> {
    let output = Command::new("ssh").arg("-F").arg(configuration).args(["-G", "-v", "--", host]).output();
    let output = output.expect("the package openssh-client is installed");
    // The files are older than the evaluation.
    let began = (Instant::now(), SystemTime::now() + MAX_CLOCK_LAG + Duration::from_secs(1));
    let evaluation = Evaluation { program: "ssh".into(), arguments: Vec::new(), host: host.to_owned(), began };
    let text = |bytes| String::from_utf8(bytes).unwrap();
    output.status.success().then(|| (evaluation, text(output.stdout), text(output.stderr)))
}

/// Asks ssh for all hosts; the pairs of different hosts of which the second has the output of the first.
fn shared(lines: &[&str], included: &[&str]) -> Vec<(&'static str, &'static str)> {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, lines: &[&str]| {
        let text = lines.join("\n").replace("FOLDER", &folder.path().to_string_lossy());
        fs::write(folder.path().join(name), text + "\n").unwrap();
    };
    write("config", lines);
    write("included", included);
    let asked = HOSTS.map(|host| (host, ask(&folder.path().join("config"), host)));
    let mut pairs = Vec::new();
    for (host, answered) in &asked {
        let Some((evaluation, text, log)) = answered else { continue };
        let Some(output) = CachedOutput::new(evaluation.clone(), text, log) else { continue };
        for (other, of_other) in &asked {
            let evaluation = Evaluation { host: (*other).to_owned(), ..evaluation.clone() };
            let Some(given) = output.for_host(&evaluation) else { continue };
            let (_, text, _) = of_other.as_ref().unwrap_or_else(|| panic!("ssh refuses {other}: {lines:?}"));
            let hop = Hop { user: None, host: (*other).to_owned(), port: None, has_predecessor: false };
            let read = |text: &str| read_configuration(&hop, text);
            assert_eq!(read(&given), read(text), "{other} by the output for {host}: {lines:?} {included:?}");
            if host != other {
                pairs.push((*host, *other));
            }
        }
    }
    pairs
}

#[test]
fn hosts_of_the_same_blocks_share_an_answer() {
    let lines =
        ["Include FOLDER/included", "Host gpu?", "User alice", "ControlPath ~/%h", "Host l*", "HostName 10.0.0.9"];
    let both_ways = [("gpu1", "gpu2"), ("gpu2", "gpu1")];
    assert_eq!(shared(&lines, &["Host gpu11", "Port 1"]), both_ways);
    for own in ["Match host gpu2", "UserKnownHostsFile /k/%n", "HostName %h.lab", "Host gpu2"] {
        assert!(!shared(&["Host gpu?", own, "Port 1"], &[]).contains(&both_ways[0]), "{own}");
    }
}

#[test]
fn an_output_is_reused_for_the_same_arguments_and_for_a_short_time() {
    let folder = tempfile::tempdir().unwrap();
    let configuration = folder.path().join("config");
    fs::write(&configuration, "Host gpu*\nPort 2222\n").unwrap();
    let (evaluation, text, log) = ask(&configuration, "gpu1").unwrap();
    // The cache is that of all tests of the process.
    let program = OsString::from("of-this-test");
    let of = |host: &str| Evaluation { program: program.clone(), host: host.to_owned(), ..evaluation.clone() };
    keep(of("gpu1"), &text, &log);
    assert!(find(&of("gpu2")).unwrap().contains("port 2222"));
    assert_eq!(find(&Evaluation { arguments: vec!["-G".into()], ..of("gpu2") }), None);
    assert_eq!(find(&of("login")), None);
    CACHE.lock().unwrap().iter_mut().for_each(|output| output.evaluation.began.0 -= LIFETIME);
    assert_eq!(find(&of("gpu2")), None);
}

#[tokio::test]
async fn outputs_of_scripts_and_for_other_names_are_not_shared() {
    let script = tempfile::NamedTempFile::new().unwrap();
    fs::write(script.path(), "#!/bin/sh\n").unwrap();
    let ssh = OsStr::new("ssh");
    for (program, host, shared) in [
        (ssh, "gpu1", true),
        (ssh, "Gpu1", false),
        (ssh, "10.0.0.1", false),
        (script.path().as_os_str(), "gpu1", false),
        (OsStr::new("/nonexistent"), "gpu1", false),
    ] {
        assert_eq!(is_shared(program, host).await, shared, "{program:?} {host}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn an_answer_for_another_host_is_that_of_ssh(
        lines in subsequence(LINES.to_vec(), 1..8).prop_shuffle(),
        // All but Include, which would include itself.
        included in prop::collection::vec(select(&LINES[..26]), 0..3),
    ) {
        shared(&lines, &included);
    }
}
