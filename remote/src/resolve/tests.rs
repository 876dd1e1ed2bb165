use proptest::prelude::*;

use super::*;

/// An output of `ssh -G` with these lines first.
fn printed(lines: &str) -> String {
    format!("{lines}\nhost gpu01\nuser alice\nhostname 10.0.0.1\nport 22\nproxyusefdpass no\n")
}

fn hop() -> Hop {
    Hop { user: None, host: "gpu01".to_owned(), port: None, has_predecessor: false }
}

fn read(lines: &str) -> (Target, Option<String>) {
    read_configuration(&hop(), &printed(lines)).unwrap_or_else(|failure| panic!("{failure}"))
}

fn home() -> PathBuf {
    std::env::home_dir().unwrap()
}

#[test]
fn the_output_of_ssh_is_parsed_to_a_target() {
    let (target, jump) = read(
        "identityfile ~/.ssh/%r@%h key\nidentityfile none\nidentityfile /etc/%%d/%n_%p\nidentitiesonly yes\n\
         identityagent /run/%i/agent\nuserknownhostsfile ~/.ssh/known_hosts /srv/with space/known\n\
         globalknownhostsfile /etc/ssh/ssh_known_hosts\nhostkeyalias rack\nconnecttimeout 7\n\
         serveraliveinterval 0\nserveralivecountmax 5\nproxyjump bob@b:33,c\naddressfamily inet6\n\
         ciphers aes256-ctr,aes128-ctr\nproxycommand none\nrevokedhostkeys none\npubkeyauthentication true",
    );
    assert_eq!(jump.as_deref(), Some("bob@b:33,c"));
    let uid = rustix::process::getuid().as_raw();
    assert_eq!(
        target,
        Target {
            login: "gpu01".to_owned(),
            address: "10.0.0.1".to_owned(),
            port: 22,
            user: "alice".to_owned(),
            family: AddressFamily::Inet6,
            identity_files: vec![home().join(".ssh/alice@10.0.0.1 key"), PathBuf::from("/etc/%d/gpu01_22")],
            identity_agent: Some(PathBuf::from(format!("/run/{uid}/agent"))),
            identities_only: true,
            known_hosts_files: vec![
                home().join(".ssh/known_hosts"),
                PathBuf::from("/srv/with space/known"),
                PathBuf::from("/etc/ssh/ssh_known_hosts"),
            ],
            host_key_alias: Some("rack".to_owned()),
            connect_timeout: Some(Duration::from_secs(7)),
            alive_interval: None,
            alive_count: 5,
            algorithms: Algorithms {
                ciphers: vec!["aes256-ctr".to_owned(), "aes128-ctr".to_owned()],
                ..Algorithms::default()
            },
            jumps: Vec::new(),
        }
    );
}

#[test]
fn the_error_of_an_unsupported_option_has_the_remedy() {
    let mut errors = Vec::new();
    for line in [
        "proxycommand nc %h %p",
        "knownhostscommand /usr/bin/keys %H",
        "revokedhostkeys /etc/ssh/revoked",
        "pkcs11provider /usr/lib/opensc-pkcs11.so",
        "certificatefile ~/.ssh/id-cert.pub",
        "bindaddress 10.0.0.9",
        "bindinterface ib0",
        "pubkeyauthentication false",
    ] {
        let failure = read_configuration(&hop(), &printed(line)).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unsupported, "{line}");
        errors.push(failure.message);
    }
    for proxy_jump in ["b:0", "b:x", "", "a,,b", "[fe80::1]22"] {
        errors.push(parse_jumps(proxy_jump).err().map_or(proxy_jump.to_owned(), |failure| failure.message));
    }
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn jump_hosts_may_have_users_ports_and_addresses() {
    let jumps = parse_jumps("bob@b:33,c,me@corp@d,[fe80::1]:24,fe80::2").unwrap();
    let logins: Vec<String> = jumps.iter().map(Hop::login).collect();
    assert_eq!(logins, ["-p 33 bob@b", "c", "me@corp@d", "-p 24 fe80::1", "fe80::2"]);
}

#[test]
fn a_configuration_without_an_address_is_an_error() {
    for text in ["", "hostname a\nport x\nuser b\n", "hostname a\nport 22\nuser \n", "port 22\nuser b\n"] {
        let failure = read_configuration(&hop(), text).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unresolved, "{text}");
    }
}

fn block_on<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(body)
}

#[test]
fn the_error_of_a_missing_or_failed_program_names_it() {
    let entry = HostEntry { name: "gpu01".to_owned(), user: None, port: None };
    let failure = |program: &str| {
        let failure = block_on(resolve_with(OsStr::new(program), &entry, None)).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unresolved);
        failure.message
    };
    assert!(failure("/nonexistent/ssh").contains("openssh-client"));
    assert!(failure("/bin/false").contains("ended with exit status: 1"));
    assert!(failure("/bin/true").contains("has no Hostname"));
}

proptest! {
    #[test]
    fn no_configuration_causes_a_panic(text in "\\PC{0,60}|[a-z %~$\\{\\}\n,:@-]{0,80}", path in "[%~$\\{\\}a-z/]{0,20}") {
        let lines = format!("{text}\nidentityfile {path}\nidentityagent {path}\nuserknownhostsfile {path}");
        let _ = read_configuration(&hop(), &printed(&lines));
        let _ = parse_jumps(&text);
    }
}
