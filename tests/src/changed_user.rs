//! Processes that descend from another user's, as sudo, su and spawners start them; only root can make them.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

use crate::patience::until;
use crate::process::keep_from_other_tests;

/// Starts a child as one user, then becomes another; both end with its input.
const SCRIPT: &str = r#"
    use POSIX; $| = 1;
    my ($own, $childs, $real) = @ARGV;
    my $child = fork;
    if (!$child) {
        if ($real == $childs) { POSIX::setuid($childs) } else { $< = $real; $> = $childs }
        print "ready\n"; sleep while 1;
    }
    POSIX::setuid($own);
    print "$child\n"; <STDIN>; exit;
"#;

/// A process of one user, and its child, which runs as another. Both end with the value.
pub struct ChangedUser {
    parent: Child,
    child: u32,
}

impl ChangedUser {
    /// Starts them with variables as those of [`crate::process::Sleeper::start`].
    pub fn start(uid: u32, uid_of_child: u32, environment: &[(&str, &str)]) -> Result<Self> {
        Self::with_real_user(uid, uid_of_child, uid_of_child, environment)
    }

    /// As [`ChangedUser::start`], with a child whose real user differs from its effective one, as of a setuid program.
    pub fn with_real_user(
        uid: u32,
        uid_of_child: u32,
        real_uid_of_child: u32,
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        Self::run("/usr/bin/perl", [uid, uid_of_child, real_uid_of_child], environment)
    }

    /// As [`ChangedUser::start`], by a copy of perl.
    pub fn of_program(perl: &str, uid: u32, uid_of_child: u32, environment: &[(&str, &str)]) -> Result<Self> {
        Self::run(perl, [uid, uid_of_child, uid_of_child], environment)
    }

    fn run(perl: &str, users: [u32; 3], environment: &[(&str, &str)]) -> Result<Self> {
        let users = users.map(|uid| uid.to_string());
        let mut command = Command::new(perl);
        command.env_clear().envs(environment.iter().copied());
        keep_from_other_tests(&mut command);
        let mut parent = command
            .args(["-e", SCRIPT])
            .args(users)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting perl, of the Debian package perl")?;
        let output = parent.stdout.take().context("perl has no output")?;
        // The child says that it is ready, the parent which child it is; either may come first.
        let mut said = [String::new(), String::new()];
        let mut output = BufReader::new(output);
        for line in &mut said {
            output.read_line(line)?;
        }
        let child = said.iter().find_map(|line| line.trim().parse().ok());
        let child = child.with_context(|| format!("perl said {said:?}"))?;
        Ok(Self { parent, child })
    }

    /// The process that came first.
    pub fn pid(&self) -> u32 {
        self.parent.id()
    }

    pub const fn child(&self) -> u32 {
        self.child
    }
}

impl Drop for ChangedUser {
    fn drop(&mut self) {
        let _ = crate::process::signal(self.child, rustix::process::Signal::KILL);
        drop(self.parent.stdin.take());
        let _ = self.parent.wait();
        let _ = until("the child is gone", || Ok(!crate::victim::is_alive(self.child)));
    }
}
