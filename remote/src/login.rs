//! A login shell on a host, with additional variables.

use crate::script;

/// The user gets the same shell as after a login without a command.
const SCRIPT: &str = r#"
    for assignment do export "$(printf %b "$assignment")"; done;
    exec "${SHELL:-/bin/sh}" -l
"#;

/// The command for `ssh -t` that starts the shell. No login shell interprets the values, and the server needs no option
/// `AcceptEnv`. A value must not end with a line feed.
pub fn login_shell<'a>(variables: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let assignments = variables.into_iter().map(|(name, value)| format!("{name}={}", script::encoded(&value)));
    let assignments: Vec<String> = assignments.collect();
    let assignments: Vec<&str> = assignments.iter().map(String::as_str).collect();
    script::command(SCRIPT, &assignments)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn every_login_shell_passes_the_script_on_unchanged() {
        script::tests::is_for_every_login_shell(SCRIPT);
    }

    #[test]
    fn the_shell_has_the_unchanged_values() {
        let hostile = r#"it's "$(touch x)" `y` \\ ! %s é"#;
        let command = login_shell([("GENV_A", hostile.to_owned()), ("GENV_B", String::new())]);
        let folder = tempfile::tempdir().unwrap();
        let shell = folder.path().join("shell");
        fs::write(&shell, "#!/bin/sh\nprintf '%s|%s|%s' \"$GENV_A\" \"$GENV_B\" \"$1\"\n").unwrap();
        fs::set_permissions(&shell, Permissions::from_mode(0o755)).unwrap();
        let output = Command::new("sh").args(["-c", &command]).env("SHELL", &shell).output().unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        assert_eq!(shown, format!("{hostile}||-l"));
    }
}
