//! `genv remote activate`, at a real terminal.

use anyhow::{Result, ensure};
use genv_tests::patience::until;
use genv_tests::process::Sleeper;
use genv_tests::shell::{Shell, installed};
use genv_tests::ssh::SshClient;
use genv_tests::terminal::{PROMPT, Terminal};

use crate::remote_commands::support::{Host, answer, remote};

const A100: &str = "{name: NVIDIA A100-SXM4-80GB, count: 3, memory: 80gi}";
const T4: &str = "{name: Tesla T4, count: 2, memory: 16gi}";
/// Which no shell there or here may read anything into.
const HOSTILE: &str = "it's \"$(touch /tmp/x)\" `id` ! \\ é; exit 7 #";

#[test]
fn it_opens_an_environment_on_the_host_that_has_the_devices_whatever_the_login_shell() -> Result<()> {
    let stranger = Sleeper::start(&[])?;
    let uses = [0, 1, 2].map(|index| format!("{{index: {index}, memory: 1gi}}")).join(", ");
    let processes = format!("{{pid: {}, devices: [{uses}]}}", stranger.pid());
    for shell in Shell::ALL {
        // The host whose free devices have no process comes first.
        let used = Host::with(A100, &processes, &[], None)?;
        let small = Host::new(T4, &[])?;
        // The command comes to one shell, and the person works in it.
        let command = format!("ForceCommand {} -c \"$SSH_ORIGINAL_COMMAND\"", installed(shell.name()).display());
        let big = Host::with(A100, "", &[&command, "AcceptEnv NOTHING"], Some(shell))?;
        let busy = Sleeper::start(&[])?;
        big.environment("busy", "busy", &busy, &["--index", "0"])?;
        let client = SshClient::new(&[("used", &used.server), ("small", &small.server), ("big", &big.server)])?;

        let words = ["-l", "root", "-H", "used,small,big", "activate", "--gpus", "2", "--name", HOSTILE];
        let kind = ["--gpu-type", "a100", "--gpu-memory-at-least", "80g"];
        let mut command = remote(&client, &[&words[..], &kind].concat())?;
        command.env("TERM", "xterm");
        let mut terminal = Terminal::run_in(command, shell)?;
        terminal.wait(&format!("(genv) {PROMPT}"))?;
        let (shown, code) = terminal.run("genv status; echo devices=$CUDA_VISIBLE_DEVICES")?;
        ensure!(code == 0 && shown.contains("is active"), "{shell}: {shown}");
        ensure!(shown.contains("devices=1,2"), "{shell}: {shown}");
        let names = big.genv(&["envs", "query", "--query", "config.name"])?;
        ensure!(names == format!("busy\n{HOSTILE}\n"), "{shell}: {names}");
        // It is no more told to shells that are started from it.
        let (shown, _) = terminal.run("env | grep -c ^GENV_PREACTIVATE")?;
        ensure!(shown.contains("\n0\r\n") || shown.trim_end().ends_with('0'), "{shell}: {shown}");

        terminal.type_line("exit")?;
        until("the environment ends with its shell", || Ok(!big.genv(&["envs", "ps"])?.contains("touch")))?;
        ensure!(small.genv(&["envs", "query", "--query", "eid"])?.is_empty());
    }
    Ok(())
}

#[test]
fn memory_is_claimed_and_the_prompt_left_alone() -> Result<()> {
    let host = Host::with(T4, "", &[], Some(Shell::Bash))?;
    let client = SshClient::new(&[("gpu01", &host.server)])?;
    let words = ["-H", "root@gpu01", "activate", "--gpu-memory", "6gi", "--no-prompt"];
    let mut command = remote(&client, &words)?;
    command.env("TERM", "xterm");
    let mut terminal = Terminal::run_in(command, Shell::Bash)?;
    let before = terminal.wait(PROMPT)?;
    ensure!(!before.contains("(genv)"), "{before}");
    let (shown, _) = terminal.run("echo =$GENV_GPU_MEMORY=$GENV_GPUS=$CUDA_VISIBLE_DEVICES=")?;
    ensure!(shown.contains("=6gi=1=0="), "{shown}");
    Ok(())
}

#[test]
fn where_no_host_has_what_is_asked_for_nothing_is_opened() -> Result<()> {
    let (first, second) = (Host::new(T4, &[])?, Host::new(A100, &[])?);
    let client = SshClient::new(&[("first", &first.server), ("second", &second.server)])?;
    for (wanted, said) in [
        (&["--gpus", "4"][..], "4 free devices"),
        (&["--gpus", "3", "--gpu-type", "T4"], "3 free devices of type 'T4'"),
        (&["--gpu-type", "\x1b[2J"], r"'\u{1b}[2J'"),
        (&["--gpu-memory", "100gi"], "with 100gi of unclaimed memory"),
    ] {
        let refused = answer(&client, &[&["-H", "first,second", "activate"], wanted].concat())?;
        ensure!(
            refused.code == Some(4) && refused.stdout.is_empty() && refused.stderr.contains(said),
            "{wanted:?}: {refused:?}"
        );
        ensure!(refused.stderr.lines().count() == 1, "{refused:?}");
    }
    Ok(())
}
