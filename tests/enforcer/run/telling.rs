use std::io::{BufRead as _, BufReader};
use std::process::{ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, as_victim, ends, ends_outsiders, sleeper};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::Lines;
use genv_tests::patience::until;
use genv_tests::process::{Running, Sleeper, signal};

/// A process in a terminal of its own that belongs to the victim; it ends with the value.
struct InTerminal {
    _script: Running,
    pid: u32,
    /// The lines of the terminal, or the pipe of a terminal whose output no test reads.
    shown: Result<Lines, ChildStdout>,
}

impl InTerminal {
    /// script(1) makes the terminal, and passes on what is shown there. Its shell runs `before`, starts the process, and
    /// outlives it, as a person's does.
    fn start(before: &str, read: bool) -> Result<Self> {
        let mut script = Command::new("script");
        Self::run(as_victim(&mut script), before, "", read)
    }

    /// The terminal belongs to the user who runs the tests, and the process, which `who` starts, is the victim's.
    fn of_another(before: &str, who: &str) -> Result<Self> {
        Self::run(&mut Command::new("script"), before, who, true)
    }

    fn run(script: &mut Command, before: &str, who: &str, read: bool) -> Result<Self> {
        script
            .args(["--quiet", "--flush", "--command"])
            .arg(format!("{before}; {who} sleep 1000000 & echo \"<$!>\"; wait; exec sleep 1000000"))
            .arg("/dev/null")
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut script = Running::spawn(script).context("script, of the package bsdutils")?;
        let mut output = BufReader::new(script.stdout.take().context("no stdout")?);
        let mut pid = None;
        while pid.is_none() {
            let mut line = String::new();
            ensure!(output.read_line(&mut line)? > 0, "script ended");
            let mark = line.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
            pid = mark.and_then(|(pid, _)| pid.parse().ok());
        }
        let shown = if read { Ok(Lines::of(output)) } else { Err(output.into_inner()) };
        Ok(Self { _script: script, pid: pid.context("no pid")?, shown })
    }

    fn read_up_to(&self, part: &str) -> Result<String> {
        let shown = self.shown.as_ref().ok().context("nobody reads")?;
        let mut text = String::new();
        loop {
            let line = shown.next_line();
            let line = line.with_context(|| format!("no {part:?} after {text:?}"))?;
            text += &line;
            text += "\n";
            if line.contains(part) {
                return Ok(text);
            }
        }
    }

    /// The next notice about a process. Others of the same user, of other tests, may come in between.
    fn notice(&self, pid: u32) -> Result<String> {
        let first = self.read_up_to(&about(pid))?;
        let first = first.lines().last().unwrap_or_default().to_owned();
        Ok(first + "\n" + &self.read_up_to("genv why")?)
    }

    fn has_shown(&self, part: &str) -> bool {
        let mut shown = self.shown.iter().flat_map(Lines::come);
        shown.any(|line| line.contains(part))
    }
}

fn about(pid: u32) -> String {
    format!("process {pid} ")
}

impl Drop for InTerminal {
    fn drop(&mut self) {
        let _ = signal(self.pid, rustix::process::Signal::KILL);
    }
}

fn enforcer(process: &InTerminal, mode: &str, when: &str) -> Result<Enforcer> {
    Setup::new(&used_by(&[process.pid]), &ends_outsiders(mode, when))?.start()
}

/// Messages are taken, also where terminals are made without that right.
const TAKES: &str = "chmod g+w $(tty)";

#[test]
fn a_user_reads_the_warning_and_then_what_was_done() -> Result<()> {
    let process = InTerminal::start(TAKES, true)?;
    let when = "for: 0s, warn: [1s], undelivered: hold";
    let _enforcer = enforcer(&process, "enforce", when)?;
    let warning = process.notice(process.pid)?;
    for part in ["GPU rule non-env-processes", &format!("process {}", process.pid), "this is ended", "in 1s"] {
        ensure!(warning.contains(part), "{part}: {warning}");
    }
    let ended = process.notice(process.pid)?;
    ensure!(ended.contains("was told to end"), "{ended}");
    Ok(())
}

#[test]
fn many_notices_are_one_text() -> Result<()> {
    let terminal = InTerminal::start(TAKES, true)?;
    let others: Vec<_> = (0..7).map(|_| sleeper(&[])).collect::<Result<_>>()?;
    let mut pids: Vec<u32> = others.iter().map(Sleeper::pid).collect();
    pids.push(terminal.pid);
    let config = ends_outsiders("enforce", "for: 0s, warn: [1s], undelivered: hold");
    let _enforcer = Setup::new(&used_by(&pids), &config)?.start()?;
    // On a slow machine the enforcer may see a process one cycle later, and write a separate notice.
    let named = |text: &str| pids.iter().filter(|pid| text.contains(&about(**pid))).count();
    let mut warned = String::new();
    while named(&warned) == 0 {
        warned = terminal.read_up_to(" more: genv why")?;
    }
    assert_eq!(named(&warned), 3, "{warned}");
    for pid in &pids {
        ends(*pid)?;
    }
    terminal.read_up_to(" more: genv why")?;
    Ok(())
}

#[test]
fn in_dry_run_users_are_told_nothing() -> Result<()> {
    let process = InTerminal::start(TAKES, true)?;
    let enforcer = enforcer(&process, "dry-run", "for: 0s, warn: [300ms]")?;
    enforcer.wait_for_status("it would have been ended", |status| status["violations"][0]["stage"] == "acted")?;
    ensure!(!process.has_shown(&about(process.pid)));
    Ok(())
}

#[test]
fn who_refuses_messages_gets_none() -> Result<()> {
    let refusing = InTerminal::start("chmod g-w $(tty)", true)?;
    let taking = InTerminal::start(TAKES, true)?;
    let _enforcer = enforcer(&refusing, "enforce", "for: 0s, warn: [1s]")?;
    // The other terminal of the same user.
    taking.notice(refusing.pid)?;
    taking.notice(refusing.pid)?;
    ensure!(!refusing.has_shown("GPU rule"));
    Ok(())
}

/// As after `su`: the process is in a terminal, and that is another's.
#[test]
#[ignore = "needs root"]
fn a_terminal_of_another_user_is_left_alone() -> Result<()> {
    let uid = genv_tests::enforcer::victim();
    let who = format!("setpriv --reuid {uid} --regid {uid} --clear-groups");
    let anothers = InTerminal::of_another(TAKES, &who)?;
    let comm = format!("/proc/{}/comm", anothers.pid);
    until("it is the victim's", || Ok(std::fs::read_to_string(&comm)? == "sleep\n"))?;
    let own = InTerminal::start(TAKES, true)?;
    let _enforcer = enforcer(&anothers, "enforce", "for: 0s, warn: [1s]")?;
    own.notice(anothers.pid)?;
    own.notice(anothers.pid)?;
    ensure!(!anothers.has_shown("GPU rule"));
    Ok(())
}

#[test]
fn a_terminal_that_takes_nothing_holds_nothing_up() -> Result<()> {
    let process = InTerminal::start(&format!("{TAKES}; yes & sleep 0.5"), false)?;
    let enforcer = enforcer(&process, "enforce", "for: 0s, warn: [1s]")?;
    ends(process.pid)?;
    enforcer.wait_for_cycles(2)
}
