//! How a process survives the end of its login.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::bail;
use genv_core::proc::{find_username, own_uid};

/// The folder with the names of users whose manager runs without a login (loginctl(1)).
const LINGERING: &str = "/var/lib/systemd/linger";

/// The method by which a process survives the end of its login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogoutSurvival {
    /// In its own session.
    Setsid,
    /// In a scope of the user's manager.
    Scope,
}

impl LogoutSurvival {
    /// The method that works for this process.
    ///
    /// # Errors
    /// logind ends all processes of a login with that login, and the user's manager ends with the last login.
    pub(super) fn here() -> anyhow::Result<Self> {
        let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        if !is_in_login(&cgroup) || !ends_all() {
            return Ok(Self::Setsid);
        }
        let user = find_username(own_uid());
        let lingers = user.is_some_and(|name| Path::new(LINGERING).join(escaped(&name)).exists());
        if lingers && env::var_os("XDG_RUNTIME_DIR").is_some() {
            return Ok(Self::Scope);
        }
        bail!(
            "cannot start a job: this machine ends all processes of a login at logout (KillUserProcesses in logind.conf). \
                         Run 'loginctl enable-linger' once, or ask the administrator if this is refused, and try again"
        )
    }

    /// A command that starts a program by this method. The caller appends the program's arguments.
    pub(super) fn command(self, program: &Path) -> Command {
        match self {
            Self::Setsid => Command::new(program),
            Self::Scope => {
                let mut command = Command::new("systemd-run");
                command.args(["--user", "--scope", "--quiet", "--collect", "--"]).arg(program);
                command
            }
        }
    }
}

/// A user's name as logind writes it in names of files (`cescape` of systemd).
fn escaped(name: &str) -> String {
    let mut escaped = String::new();
    for byte in name.bytes() {
        match byte {
            b'\\' | b'"' | b'\'' => escaped.extend(['\\', char::from(byte)]),
            b' '..=b'~' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("\\{byte:03o}")),
        }
    }
    escaped
}

/// Whether a process with this `/proc/PID/cgroup` belongs to a login.
fn is_in_login(cgroup: &str) -> bool {
    cgroup.lines().flat_map(|line| line.split('/')).any(|part| part.starts_with("session-") && part.ends_with(".scope"))
}

/// Whether logind ends the processes of a login at logout. False if logind does not answer.
fn ends_all() -> bool {
    let output = Command::new("busctl")
        .args(["get-property", "org.freedesktop.login1", "/org/freedesktop/login1"])
        .args(["org.freedesktop.login1.Manager", "KillUserProcesses"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    output.is_ok_and(|output| output.stdout.starts_with(b"b true"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_user_who_lingers_has_the_name_that_logind_gives_it() {
        for (name, file) in [("ben jones@corp", "ben jones@corp"), (r"CORP\ann", r"CORP\\ann"), ("zoé", r"zo\303\251")]
        {
            assert_eq!(escaped(name), file);
        }
    }

    #[test]
    fn a_login_is_recognized_by_its_scope() {
        assert!(is_in_login("0::/user.slice/user-1000.slice/session-3.scope\n"));
        for outside in [
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope\n",
            "0::/system.slice/cron.service\n",
            "0::/\n",
            "",
        ] {
            assert!(!is_in_login(outside), "{outside}");
        }
    }
}
