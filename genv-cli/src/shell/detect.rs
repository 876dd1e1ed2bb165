//! Detects the calling shell.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use super::Shell;

/// The detected shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detected {
    /// The parent process is this shell.
    Supported(Shell),
    /// The parent process is no known shell; the value is the user's login shell, or bash.
    Unknown(Shell),
    /// The parent process is a shell without support.
    Unsupported,
}

/// Shells without support: the setup code would be a syntax error.
const OTHER_SHELLS: [&str; 12] =
    ["ash", "busybox", "csh", "dash", "elvish", "ksh", "mksh", "nu", "pwsh", "sh", "tcsh", "xonsh"];

/// Looks at the parent process, then at `SHELL`.
pub(crate) fn detect() -> Detected {
    let pid = std::os::unix::process::parent_id();
    // The file of the program, since a shell may run under another name, such as bash as sh.
    let program = fs::read_link(format!("/proc/{pid}/exe"));
    let name = program.ok().as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let name = name.or_else(|| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    of(name.as_deref().unwrap_or_default(), env::var_os("SHELL").as_deref())
}

fn of(program: &str, login_shell: Option<&OsStr>) -> Detected {
    let program = program.trim_end_matches(" (deleted)").trim();
    if let Some(shell) = Shell::named(program) {
        return Detected::Supported(shell);
    }
    // Some names end with a version: ksh93, ksh2020.
    if OTHER_SHELLS.contains(&program.trim_end_matches(|letter: char| letter.is_ascii_digit())) {
        return Detected::Unsupported;
    }
    let login_shell = login_shell.map(Path::new).and_then(Path::file_name);
    let login_shell = login_shell.and_then(OsStr::to_str).and_then(Shell::named);
    Detected::Unknown(login_shell.unwrap_or(Shell::Bash))
}

impl Shell {
    /// The shell with a program of this name, such as `bash`, `rbash`, `zsh-5.9` or `zsh-static`.
    pub(crate) fn named(program: &str) -> Option<Self> {
        let name = program.strip_prefix('-').unwrap_or(program);
        let name = name.split(['-', '.']).next().unwrap_or_default();
        let name = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
        let name = if name == "rbash" { "bash" } else { name };
        Self::ALL.into_iter().find(|shell| shell.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_comes_before_the_login_shell_and_that_before_bash() {
        use Detected::{Supported, Unknown, Unsupported};

        for (program, login, expected) in [
            ("bash", "/usr/bin/fish", Supported(Shell::Bash)),
            ("-bash", "/usr/bin/fish", Supported(Shell::Bash)),
            ("rbash", "/usr/bin/fish", Supported(Shell::Bash)),
            ("bash (deleted)", "/usr/bin/fish", Supported(Shell::Bash)),
            ("zsh-5.9", "/usr/bin/fish", Supported(Shell::Zsh)),
            ("zsh5", "/usr/bin/fish", Supported(Shell::Zsh)),
            ("zsh-static\n", "/usr/bin/fish", Supported(Shell::Zsh)),
            ("fish", "/bin/bash", Supported(Shell::Fish)),
            ("dash", "/bin/bash", Unsupported),
            ("busybox", "/bin/bash", Unsupported),
            ("ksh93", "/bin/bash", Unsupported),
            ("sh", "/bin/bash", Unsupported),
            ("python3.11", "/bin/zsh", Unknown(Shell::Zsh)),
            ("python3.11", "", Unknown(Shell::Bash)),
            ("python3.11", "/bin/ksh", Unknown(Shell::Bash)),
        ] {
            assert_eq!(of(program, Some(OsStr::new(login))), expected, "{program} {login}");
        }
        assert_eq!(of("python3.11", None), Unknown(Shell::Bash));
    }
}
