//! Shell scripts for hosts with any login shell.
//!
//! sshd passes a command to the login shell, which may be a Bourne shell, zsh, fish or tcsh. None of them changes a text in
//! single quotes, if the text is one line without a single quote, an exclamation mark (history in tcsh), and a backslash
//! before a backslash or at the end (an escape in fish). `sh` runs the script.

/// The command that runs a script with these arguments as `$1` and so on. An argument is a plain word, a list of
/// them with commas, or an [`encoded`] text.
///
/// The lines of the script are joined without its comments. So each line must end after a `;` or a word such as `then`.
pub(crate) fn command(script: &str, arguments: &[&str]) -> String {
    let lines = script.lines().map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let mut command = format!("sh -c '{}' genv-remote", lines.join(" "));
    for argument in arguments {
        debug_assert!(argument.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.,=\\".contains(&byte)));
        command.push(' ');
        // Shells interpret a backslash outside of quotes.
        if argument.contains('\\') {
            command.push_str(&format!("'{argument}'"));
        } else {
            command.push_str(argument);
        }
    }
    command
}

/// Encodes a text as an argument that no shell interprets. `printf %b` decodes it.
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("\\0{byte:03o}"));
        }
    }
    encoded
}

/// Quotes a word for a shell, if necessary.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:@%+=,~".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Fails if a login shell could interpret the script.
    pub(crate) fn is_for_every_login_shell(script: &str) {
        let command = command(script, &[]);
        let script = command.strip_prefix("sh -c '").and_then(|it| it.strip_suffix("' genv-remote"));
        let script = script.unwrap();
        for refused in ["'", "!", "\n", "\\\\"] {
            assert!(!script.contains(refused), "{refused:?} in {script}");
        }
        assert!(!script.ends_with('\\'), "{script}");
        assert!(script.is_ascii() && !script.contains(|c: char| c.is_ascii_control()));
    }

    #[test]
    fn lines_are_joined_without_comments() {
        assert_eq!(
            command("# A comment.\na=1;\n\n  if b; then\n    c;\n  fi\n", &["yes", "1.5"]),
            "sh -c 'a=1; if b; then c; fi' genv-remote yes 1.5"
        );
    }

    #[test]
    fn an_encoded_text_is_quoted_and_printf_decodes_it() {
        let text = "a b'\\n!$(x)\u{e9}7";
        let argument = encoded(text);
        assert_eq!(argument, r"a\0040b\0047\0134n\0041\0044\0050x\0051\0303\02517");
        let command = command(r#"printf %b "$1""#, &[&argument]);
        let output = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
    }
}
