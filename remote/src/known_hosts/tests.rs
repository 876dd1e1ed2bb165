use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use proptest::prelude::*;
use sha1::Sha1;

use super::line::{matching_line, pattern_matches, patterns_match};
use super::*;

/// Keys that ssh-keygen made for this test. Their private keys were deleted.
const OURS: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKiQtMnKivMPUOtXbrBAyFGevbvQcPmw7sy8KAwg/5MF";
const OTHER: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG2/a6N96Ua229REZHLkYwFICjzNnVU+J/uNFC5pzb0B";
const ECDSA: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBLhNGeuqnu/LlPJV+Nhv2dGyHDOPUdpfA8R6SM4Pu+jx7xg/gD0iVy8C4B0tD13Ntnpbq/vTH5h7qOOKTS4W7bw=";
const RSA: &str = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQD3t74ukBEHo/rCXThiI11NGt8nxcaOqhR+o3wmEd+XMZNmiKDUDrxpKeq79LHKbmeU7cU6lmCE9Fr3eGcOWTPpI007b6z8CoxCmOuBp1t92SmlTF8FqKtolvrKFdaDUSiVm5SILfKdxpNrZFIoPdauoF+YH5Sz+GHmR4+mInqgNmv4NUGy7yPSbj+yC5PZra3sziX8hiGUFf8R3LdkYmKSu3ogyisYAtmQ6kuKiQuU4nrSjZMoTVz4tPSlhzVlRB4gQclx8p061+HMVV4q+Sf1e3Rej0HBO+zTU7hV4qOLxFska/7vnvcQloH9MxIfVOocLQNbZq+VaQBeKFZDKsfB";

fn key(text: &str) -> PublicKey {
    PublicKey::from_openssh(text).unwrap()
}

/// A host by a file with these lines.
fn known(lines: &str, host: &str, port: u16, alias: Option<&str>) -> KnownHost {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("known_hosts");
    fs::write(&path, lines).unwrap();
    let login = format!("-p {port} {host}");
    let mut known = KnownHost::read(&[path], host, port, alias, &login).unwrap();
    known.files = vec![PathBuf::from("~/.ssh/known_hosts")];
    for line in &mut known.lines {
        line.path = PathBuf::from("~/.ssh/known_hosts");
    }
    known
}

/// A name as HashKnownHosts writes it.
fn hashed(name: &str) -> String {
    let salt = [7; 20];
    let hash = Hmac::<Sha1>::new_from_slice(&salt).unwrap().chain_update(name).finalize().into_bytes();
    format!("|1|{}|{}", STANDARD.encode(salt), STANDARD.encode(hash))
}

#[test]
fn hashed_names_of_ssh_keygen_match() {
    assert!(patterns_match("|1|h3ywbD6+HjyWENumZonux5Eg9nE=|DyIZBn4kRjAYHprJOqfdM95XpoE=", "gpu01.example.org"));
    assert!(patterns_match("|1|BnzPXvOPvAz+wJOTGuZQKiUVX7w=|L1vPE3LehBXz1y49UHZ7qVupslw=", "[gpu01.example.org]:2222"));
    assert!(!patterns_match("|1|h3ywbD6+HjyWENumZonux5Eg9nE=|DyIZBn4kRjAYHprJOqfdM95XpoE=", "gpu02.example.org"));
}

#[test]
fn each_way_to_write_a_name_matches_its_host() {
    let hashed_name = hashed("gpu01");
    let hashed_port = hashed("[gpu01]:2222");
    for (patterns, host, port, alias) in [
        ("gpu01", "gpu01", 22, None),
        ("GPU01", "gpu01", 22, None),
        ("GPU0?,!GPU02", "gpu01", 22, None),
        ("gpu01", "GPU01", 22, None),
        ("gpu01,10.0.0.1", "10.0.0.1", 22, None),
        ("gpu*", "gpu01", 22, None),
        ("gpu0?,!gpu02", "gpu01", 22, None),
        ("*.example.org", "a.b.example.org", 22, None),
        ("[gpu01]:2222", "gpu01", 2222, None),
        ("[gpu*]:2222", "gpu01", 2222, None),
        ("gpu01", "gpu01", 2222, None),
        ("fe80::1", "fe80::1", 22, None),
        ("[fe80::1]:23", "fe80::1", 23, None),
        (hashed_name.as_str(), "gpu01", 22, None),
        (hashed_name.as_str(), "GPU01", 2222, None),
        (hashed_port.as_str(), "gpu01", 2222, None),
        ("rack", "10.0.0.1", 2222, Some("rack")),
    ] {
        let lines = format!("# a comment\n\n  {patterns}\t{OURS} with a comment\n");
        let known = known(&lines, host, port, alias);
        assert_eq!(known.check(&key(OURS)), Ok(()), "{patterns} for {host} {port}");
        assert_eq!(known.algorithms(), [Algorithm::Ed25519], "{patterns}");
    }
}

#[test]
fn patterns_of_other_hosts_do_not_match() {
    let hashed_name = hashed("gpu02");
    for (patterns, host, port, alias) in [
        ("gpu02", "gpu01", 22, None),
        ("gpu01", "gpu01x", 22, None),
        ("gpu?", "gpu01", 22, None),
        ("gpu*,!gpu01", "gpu01", 22, None),
        ("gpu*,!GPU01", "gpu01", 22, None),
        ("GPÜ", "gpü", 22, None),
        ("!gpu02", "gpu01", 22, None),
        ("[gpu01]:2222", "gpu01", 22, None),
        ("[gpu01]:2223", "gpu01", 2222, None),
        (hashed_name.as_str(), "gpu01", 22, None),
        ("|1|not-base64|x", "gpu01", 22, None),
        ("|1|", "gpu01", 22, None),
        ("10.0.0.1", "10.0.0.1", 22, Some("rack")),
        ("@unknown gpu01", "gpu01", 22, None),
        ("#gpu01", "gpu01", 22, None),
    ] {
        let known = known(&format!("{patterns} {OURS}\n"), host, port, alias);
        let failure = known.check(&key(OURS)).unwrap_err();
        assert_eq!(failure.kind, FailureKind::HostKey, "{patterns}");
        assert!(failure.message.contains("accept it with"), "{patterns}: {failure}");
        assert_eq!(known.algorithms().len(), 6, "{patterns}");
    }
}

#[test]
fn each_of_several_keys_is_valid_and_only_their_algorithms_are_offered() {
    let lines = format!("gpu01 {OTHER}\ngpu01 {OURS}\ngpu01 {RSA}\n");
    let known = known(&lines, "gpu01", 22, None);
    for valid in [OTHER, OURS, RSA] {
        assert_eq!(known.check(&key(valid)), Ok(()));
    }
    let names: Vec<String> = known.algorithms().iter().map(|a| a.as_str().to_owned()).collect();
    assert_eq!(names, ["ssh-ed25519", "rsa-sha2-512", "rsa-sha2-256"]);
}

#[test]
fn a_different_key_at_another_port_is_unknown_and_not_changed() {
    let lines = format!("gpu01 {OTHER}\n");
    let failure = known(&lines, "gpu01", 2222, None).check(&key(OURS)).unwrap_err();
    assert!(failure.message.contains("accept it with: ssh"), "{failure}");
    assert!(!failure.message.contains("-R"), "{failure}");
}

#[test]
fn a_revoked_key_is_refused_even_if_another_line_has_it() {
    let lines = format!("gpu01 {OURS}\n@revoked * {OURS}\n");
    for port in [22, 2222] {
        let failure = known(&lines, "gpu01", port, None).check(&key(OURS)).unwrap_err();
        assert_eq!(failure.kind, FailureKind::HostKey);
        assert!(failure.message.contains("is revoked at ~/.ssh/known_hosts:2"), "{failure}");
    }
    // The line revokes another key.
    let lines = format!("gpu01 {OURS}\n@revoked * {OTHER}\n");
    assert_eq!(known(&lines, "gpu01", 22, None).check(&key(OURS)), Ok(()));
}

#[test]
fn the_error_of_a_refused_key_has_the_remedy() {
    let checks = [
        known("", "gpu01", 22, None).check(&key(OURS)),
        known("", "gpu01", 2222, None).check(&key(RSA)),
        known(&format!("\n[gpu01]:2222 {OTHER}\n"), "gpu01", 2222, None).check(&key(OURS)),
        known(&format!("gpu01 {OTHER}\n"), "gpu01", 22, None).check(&key(ECDSA)),
        known(&format!("@revoked gpu01 {OURS}\n"), "gpu01", 22, None).check(&key(OURS)),
        known(&format!("@cert-authority *.org {OURS}\n"), "a.org", 2222, None).check(&key(OTHER)),
        Err(known(&format!("gpu01 {OTHER}\ngpu01 {RSA}\n"), "gpu01", 22, None).no_such_kind()),
    ];
    let errors: Vec<String> = checks
        .into_iter()
        .map(|checked| {
            let failure = checked.unwrap_err();
            format!("{:?}: {failure}", failure.kind)
        })
        .collect();
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn a_known_key_is_valid_beside_a_certificate_authority() {
    let lines = format!("@cert-authority * {OTHER}\ngpu01 {OURS}\n");
    assert_eq!(known(&lines, "gpu01", 22, None).check(&key(OURS)), Ok(()));
    // The key of an authority is not the key of a host.
    let failure = known(&lines, "gpu01", 22, None).check(&key(OTHER)).unwrap_err();
    assert_eq!(failure.kind, FailureKind::HostKey);
}

#[test]
fn a_damaged_line_is_skipped() {
    let lines = format!("gpu01\ngpu01 ssh-ed25519\ngpu01 ssh-ed25519 AAAA\n\u{0}\u{ff}\ngpu01 {OURS}");
    assert_eq!(known(&lines, "gpu01", 22, None).check(&key(OURS)), Ok(()));
}

#[test]
fn an_unreadable_file_is_an_error_and_a_missing_file_is_not() {
    let read = |path: &str| KnownHost::read(&[PathBuf::from(path)], "a", 22, None, "a");
    assert!(read("/nonexistent/known_hosts").is_ok());
    assert!(read("/dev/null").is_ok());
    let failure = read("/dev/null/known_hosts").unwrap_err();
    assert!(failure.message.contains("/dev/null/known_hosts cannot be read"), "{failure}");
}

proptest! {
    #[test]
    fn patterns_match_by_the_rules_of_globs(
        pattern in "[ab*?]{0,8}",
        name in "[ab]{0,8}",
    ) {
        let mut expected = vec![vec![false; name.len() + 1]; pattern.len() + 1];
        expected[0][0] = true;
        for (p, wanted) in pattern.bytes().enumerate() {
            expected[p + 1][0] = wanted == b'*' && expected[p][0];
            for (n, byte) in name.bytes().enumerate() {
                expected[p + 1][n + 1] = match wanted {
                    b'*' => expected[p][n + 1] || expected[p + 1][n],
                    b'?' => expected[p][n],
                    wanted => wanted == byte && expected[p][n],
                };
            }
        }
        prop_assert_eq!(pattern_matches(&pattern, &name), expected[pattern.len()][name.len()]);
    }

    #[test]
    fn no_line_causes_a_panic(line in "\\PC{0,60}|[@|1!*,a ]{0,40}", name in "[a-z\\[\\]:]{0,8}") {
        let _ = matching_line(&line, &name);
    }
}
