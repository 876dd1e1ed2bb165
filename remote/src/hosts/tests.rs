use proptest::prelude::*;

use super::*;

fn entries(list: Result<HostList, HostListError>) -> Vec<String> {
    let list = list.unwrap_or_else(|error| panic!("{error}"));
    let text = |entry: HostEntry| {
        let user = entry.user.map_or(String::new(), |user| format!("{user} at "));
        let port = entry.port.map_or(String::new(), |port| format!(" port {port}"));
        format!("{user}{}{port}", entry.name)
    };
    list.into_iter().map(text).collect()
}

fn flag(text: &str) -> String {
    entries(HostList::parse_flag(text)).join(", ")
}

fn file(text: &str) -> String {
    entries(HostList::parse_file("hosts", text)).join(", ")
}

#[test]
fn a_flag_names_hosts_with_users_ports_and_ranges() {
    assert_eq!(
        flag("a, user@b ,c:2222,gpu[01,03-04],ssh://d:22/"),
        "a, user at b, c port 2222, gpu01, gpu03, gpu04, d port 22"
    );
    assert_eq!(
        flag("root@[fe80::1%eth0]:22,fe80::2,[fe80::3],10.0.0.1:23"),
        "root at fe80::1%eth0 port 22, fe80::2, fe80::3, 10.0.0.1 port 23"
    );
    assert_eq!(flag("me@corp@login[1-2]:22"), "me@corp at login1 port 22, me@corp at login2 port 22");
}

#[test]
fn a_login_name_is_what_ssh_accepts() {
    for valid in ["alice.b-2", r"CORP\ann", "ben jones@corp.example.org", "pc7$", "a#b", "zoé"] {
        assert_eq!(login_name(valid).as_deref(), Ok(valid));
        assert_eq!(flag(&format!("{valid}@gpu01:22,b")), format!("{valid} at gpu01 port 22, b"));
    }
    for invalid in [
        "",
        "-oProxyCommand=x",
        "a -x",
        r"a\",
        " a",
        "a ",
        "a;b",
        "a'b",
        "a\"b",
        "$(x)",
        "a\nb",
        "%h",
        "a{b",
        "a|b",
        "a\u{1b}",
        "a\u{2028}b",
        "a\u{202e}b",
    ] {
        assert_eq!(login_name(invalid), Err(EntryProblem::User(invalid.to_owned())));
    }
    // Quotes keep a comma and a '#' in the name.
    assert_eq!(flag(r#""doe, ann"@gpu[1-2],b"#), "doe, ann at gpu1, doe, ann at gpu2, b");
    assert_eq!(file("\"a#b\"@c # d\nCORP\\ann@e#f\nben jones@g\n"), r"a#b at c, CORP\ann at e, ben jones at g");
}

#[test]
fn a_file_may_have_comments_blank_lines_and_a_byte_order_mark() {
    let text = "\u{feff}# our hosts\r\ngpu[01-02] # rack 1\r\n\r\n\talice@gpu03:2222#old\r\na,b\r\n";
    assert_eq!(file(text), "gpu01, gpu02, alice at gpu03 port 2222, a, b");
}

#[test]
fn the_error_of_an_invalid_list_has_the_position_of_the_entry() {
    let mut errors = Vec::new();
    for text in [
        "",
        "a,,b",
        "a,b:0",
        "a:99999",
        "a:+1",
        "a:",
        "@a",
        "-oProxyCommand=x@a",
        "$(id)@a",
        "-oProxyCommand=x",
        "[fe80::1]22",
        "gpu[2-1]",
        "gpu[01-03],GPU02",
        "a b",
        "h[1-10000],one-more",
    ] {
        errors.push(HostList::parse_flag(text).unwrap_err().to_string());
    }
    for text in ["# nothing\n\n", "a\nb\n\na # again\n", "a\nb c\n", "a\n\u{1b}[2J\n"] {
        errors.push(HostList::parse_file("hosts", text).unwrap_err().to_string());
    }
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn the_error_of_an_unreadable_file_has_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        HostList::read(&path).unwrap_err().to_string()
    };
    let mut errors =
        vec![at("latin", b"a\nb\n\xe4\n"), at("long", &vec![b'#'; LONGEST_FILE_BYTES as usize + 1]), at("empty", b"")];
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    for path in [pipe, folder.path().to_owned(), folder.path().join("missing")] {
        errors.push(HostList::read(&path).unwrap_err().to_string());
    }
    let errors = errors.join("\n");
    insta::assert_snapshot!(errors.replace(&folder.path().display().to_string(), "FOLDER"));
}

#[test]
fn a_file_of_the_largest_size_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hosts");
    let mut text = b"a\n".to_vec();
    text.resize(LONGEST_FILE_BYTES as usize, b'#');
    std::fs::write(&path, text).unwrap();
    assert_eq!(entries(HostList::read(&path)), ["a"]);
}

proptest! {
    #[test]
    fn names_of_a_valid_list_are_distinct_and_not_options_of_ssh(
        text in "\\PC{0,40}|[a-c@:,\\[\\]0-3#\n\r -]{0,40}"
    ) {
        for list in [HostList::parse_flag(&text), HostList::parse_file("f", &text)].into_iter().flatten() {
            let names: std::collections::HashSet<_> = list.entries().iter().map(|e| &e.name).collect();
            prop_assert_eq!(names.len(), list.entries().len());
            prop_assert!(!list.entries().is_empty());
            for entry in list.entries() {
                prop_assert!(!entry.name.is_empty() && !entry.name.starts_with('-'));
                prop_assert!(entry.user.as_ref().is_none_or(|user| !user.is_empty() && !user.starts_with('-')));
                prop_assert!(entry.port != Some(0));
            }
        }
    }
}
