//! Errors of sudo on a host.

use genv_core::text::harmless;

use crate::failure::{quoted, quoted_last_line};

/// The script prints a line with this prefix after sudo has failed: with the exit code, the user and the command, and a tab
/// between them, since the user of a directory service may have spaces.
const PREFIX: &str = "genv-remote-sudo ";

/// The message about a sudo that failed; absent if the script has not printed a line about sudo.
pub(crate) fn refusal(stdout: &str, stderr: &str) -> Option<String> {
    let line = stdout.lines().rev().find_map(|line| line.strip_prefix(PREFIX))?;
    let mut fields = line.splitn(3, '\t');
    let (code, user) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
    let command = fields.next().unwrap_or_default().trim();
    let last_line = quoted_last_line(stderr).unwrap_or_else(|| "nothing".to_owned());
    Some(if code == "127" {
        "cannot run genv as root there: sudo is not installed. Install it, or leave out --sudo".to_owned()
    } else if let Some(lines) = lines_of_sudo(stderr) {
        format!(
            "cannot run genv as root there: sudo refuses, and printed: {lines}. Allow it with 'visudo -f \
             /etc/sudoers.d/genv' there, by the line: {}",
            sudoers_line(user, command)
        )
    } else {
        format!(
            "cannot start genv there: 'sudo -n {}' ended with exit code {}, and printed: {last_line}: run it there",
            harmless(command),
            harmless(code)
        )
    })
}

/// All lines of sudo: the last line, that a password is required, need not be the reason.
fn lines_of_sudo(stderr: &str) -> Option<String> {
    let lines = stderr.lines().filter(|line| line.contains("sudo"));
    let lines: Vec<&str> = lines.map(str::trim).collect();
    (!lines.is_empty()).then(|| quoted(lines.join("; ").as_bytes()))
}

/// The line of sudoers that lets a user run only this command as root.
fn sudoers_line(user: &str, command: &str) -> String {
    let escaped = |text: &str, special: &[char]| {
        let mut escaped = String::new();
        for character in text.chars() {
            if special.contains(&character) {
                escaped.push('\\');
            }
            escaped.push(character);
        }
        harmless(&escaped)
    };
    format!(
        "{} ALL=(root) NOPASSWD: {}",
        escaped(user, &[',', ':', '=', '\\', '@', '(', ')', '"', ' ', '#', '!', '>']),
        // Before other characters of a path, such as '!', sudo refuses a backslash.
        escaped(command, &[',', ':', '=', '\\', '#'])
    )
}
