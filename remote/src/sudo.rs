//! Why sudo did not run genv as root at a host.

use genv_core::text::harmless;

use crate::said::{last_line, shown};

/// What a script prints once sudo has ended: its exit code, the user, and what was to be run.
const MARK: &str = "genv-remote-sudo ";

/// What to say of a sudo that ended, by what the script printed and what was said on stderr; nothing if it printed
/// nothing of sudo.
pub(crate) fn refusal(stdout: &str, stderr: &str) -> Option<String> {
    let told = stdout.lines().rev().find_map(|line| line.strip_prefix(MARK))?;
    let mut words = told.splitn(3, ' ');
    let (code, user) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let command = words.next().unwrap_or_default().trim();
    let said = last_line(stderr).unwrap_or_else(|| "nothing".to_owned());
    Some(if code == "127" {
        "cannot run genv as root there: sudo is not installed. Install it, or leave out --sudo".to_owned()
    } else if let Some(said) = lines_of_sudo(stderr) {
        format!(
            "cannot run genv as root there: sudo refuses, and said: {said}. Allow it with 'visudo -f \
             /etc/sudoers.d/genv' there, by the line: {}",
            sudoers_line(user, command)
        )
    } else {
        format!(
            "cannot ask it: 'sudo -n {}' ended there with exit code {}, and said: {said}: run it there",
            harmless(command),
            harmless(code)
        )
    })
}

/// All that sudo said itself: the last line, that a password is required, need not be the reason.
fn lines_of_sudo(stderr: &str) -> Option<String> {
    let lines = stderr.lines().filter(|line| line.contains("sudo"));
    let lines: Vec<&str> = lines.map(str::trim).collect();
    (!lines.is_empty()).then(|| shown(lines.join("; ").as_bytes()))
}

/// The line of sudoers that lets a user run this, and nothing else, as root.
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
        escaped(user, &[',', ':', '=', '\\', '@', '(', ')', '"', ' ']),
        escaped(command, &[',', ':', '=', '\\'])
    )
}
