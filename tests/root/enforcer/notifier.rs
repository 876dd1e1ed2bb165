//! Warnings that the administrator's command delivers.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Setup, ends, sleeper_of};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::until;
use genv_tests::process::program;
use genv_tests::root::{FIRST_UID, require_root};
use serde_json::Value;

use super::stage::ANYTHING;

/// A user without a terminal, in whichever test.
const NOHUP: u32 = FIRST_UID + 50;

/// As systemd does it with genv-notify.socket: a program for each connection, which is its stdin and stdout.
fn serve(setup: &Setup, command: &str) -> Result<PathBuf> {
    let path = setup.folder().join("notify.sock");
    let script = setup.folder().join("notify");
    fs::write(&script, format!("#!/bin/sh\n{command}\n"))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let listener = UnixListener::bind(&path)?;
    let notify = program("genv-enforcer")?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (Ok(input), output) = (stream.try_clone(), stream) else {
                return;
            };
            let started = Command::new(&notify)
                .args(["notify", "--deadline=1h", "--command"])
                .arg(&script)
                .stdin(Stdio::from(OwnedFd::from(input)))
                .stdout(Stdio::from(OwnedFd::from(output)))
                .status();
            if started.is_err() {
                return;
            }
        }
    });
    Ok(path)
}

fn config(socket: &std::path::Path) -> String {
    format!(
        "version: 1\nmode: enforce\nbreaker: {{share_of_users: 1}}\nnotify: {{socket: {}}}\nrules:\n\
         - {{kind: non-env-processes, action: terminate, for: 0s, warn: [1s], undelivered: hold}}\n",
        socket.display()
    )
}

#[test]
fn a_warning_that_the_notifier_accepts_is_delivered() -> Result<()> {
    require_root();
    let process = sleeper_of(NOHUP, &ANYTHING)?;
    let setup = Setup::new(&used_by(&[process.pid()]), "version: 1\n")?;
    let facts = setup.folder().join("facts");
    // The first try fails.
    let command = format!("cat >> {0}; test -e {0}.failed || {{ touch {0}.failed; exit 1; }}", facts.display());
    let socket = serve(&setup, &command)?;
    setup.rewrite_config(&config(&socket))?;
    let enforcer = setup.start()?;
    ends(process.pid())?;
    let read = || -> Result<Vec<Value>> {
        let mut text = fs::read_to_string(&facts).unwrap_or_default();
        // The last line may be half written.
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    };
    until("the notice of what was done arrives", || Ok(read()?.iter().any(|notice| notice["kind"] == "done")))
        .with_context(|| enforcer.log())?;
    let notices = read()?;
    let warnings: Vec<_> = notices.iter().filter(|it| it["kind"] == "warning").collect();
    ensure!(warnings.len() == 2, "a try that failed, and one that did not: {notices:?}");
    let warning = warnings[0];
    ensure!(warning["uid"] == NOHUP && warning["more"] == 0, "{warning}");
    let notice = &warning["notices"][0];
    ensure!(notice["rule"] == "non-env-processes", "{warning}");
    ensure!(notice["end_timestamp_seconds"].is_number(), "{warning}");
    let text = warning["text"].as_str().unwrap_or_default();
    ensure!(text.contains("this is ended"), "{warning}");
    Ok(())
}
