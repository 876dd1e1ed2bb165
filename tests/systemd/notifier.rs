//! genv-notify.socket and its service: the administrator's command reaches users over the network, with no right besides.

use anyhow::{Context as _, Result, ensure};
use genv_tests::machine::{Machine, USER};
use genv_tests::patience::until;
use serde_json::Value;

use crate::{boot, confined_uid};

const UNIT: &str = "genv-enforcer";

const MAIL: &str = "/dev/tcp/127.0.0.1/2525";

const RECEIVED: &str = "run/mail";

const CONFIG: &str = "version: 1\nmode: enforce\ninterval: 100ms\nbreaker: {share_of_users: 1}\n\
     notify: {socket: /run/genv/notify.sock}\n\
     rules: [{kind: non-env-processes, action: terminate, for: 0s, warn: [1s], undelivered: hold}]\n";

fn configure(machine: &Machine, deadline: &str, service: &str) -> Result<()> {
    let command = format!("/usr/bin/genv-enforcer notify --command=/etc/genv/notify --deadline={deadline}");
    machine.configure(
        "genv-notify@",
        "times",
        &format!("[Service]\nExecStart=\nRuntimeMaxSec={service}\nExecStart={command}\n"),
    )
}

/// A machine with a mail server, a command that sends each notice there, and a job without a terminal.
fn stage() -> Result<(Machine, u32)> {
    let machine = boot()?;
    machine.write("etc/systemd/system/mail.socket", "[Socket]\nListenStream=127.0.0.1:2525\nAccept=yes\n")?;
    machine.write(
        "etc/systemd/system/mail@.service",
        &format!("[Service]\nExecStart=/bin/cat\nStandardInput=socket\nStandardOutput=append:/{RECEIVED}\n"),
    )?;
    let command = format!("#!/bin/bash\n. /etc/genv/first\nexec cat > {MAIL}\n");
    machine.write("etc/genv/notify", &command)?;
    machine.run(&["chmod", "755", "/etc/genv/notify"])?;
    // Shorter times than the packages have.
    configure(&machine, "1s", "6")?;
    machine.run(&["systemctl", "start", "mail.socket"])?;
    let job = machine.start("job", &["sleep", "1000000"], "sleep")?;
    machine.use_devices(&[job])?;
    machine.write("etc/genv/enforcer.yaml", CONFIG)?;
    Ok((machine, job))
}

/// Waits until a notice was not accepted for this reason, and sees that the job is spared for it.
fn is_held(machine: &Machine, job: u32, reason: &str) -> Result<()> {
    until("the warning is not delivered", || Ok(machine.log(UNIT).contains(reason)))
        .with_context(|| format!("{reason}: {}", machine.log(UNIT)))?;
    let mut status = Value::Null;
    until("the violation waits for the notifier", || {
        status = serde_json::from_str(&machine.run(&["genv-enforcer", "status", "--json"])?)?;
        let why = status["violations"][0]["why"].as_str().unwrap_or_default();
        Ok(why.contains("the notifier has not accepted it"))
    })
    .with_context(|| format!("{status:#}"))?;
    ensure!(machine.is_alive(job), "it was ended unwarned");
    Ok(())
}

/// The services that deliver notices now, with the main process of each.
fn deliveries(machine: &Machine) -> Result<Vec<(String, u32)>> {
    let list = ["systemctl", "list-units", "--plain", "--no-legend", "--state=running"];
    let units = machine.run(&[&list[..], &["genv-notify@*"]].concat())?;
    let units = units.lines().filter_map(|line| line.split_whitespace().next());
    let of = |unit: &str| Ok((unit.to_owned(), machine.main_pid(unit)?));
    units.map(of).collect()
}

#[test]
fn a_warning_waits_for_the_notifier_and_is_delivered_over_the_network() -> Result<()> {
    let (machine, job) = stage()?;
    machine.write("etc/genv/first", "echo a try >&2; exit 3\n")?;
    machine.run(&["systemctl", "start", UNIT])?;
    // Nothing listens yet.
    is_held(&machine, job, "No such file or directory")?;
    machine.run(&["systemctl", "enable", "--now", "genv-notify.socket"])?;
    is_held(&machine, job, "/etc/genv/notify ended with exit status: 3")?;
    until("it is tried three times", || Ok(machine.log("genv-notify@*").matches("a try").count() >= 3))
        .with_context(|| machine.log("genv-notify@*"))?;

    // A command that hangs with what it started; then one that stops the service that would end it.
    let hangs = "setsid sleep 1000001 &\nexec sleep 1000001\n";
    machine.write("etc/genv/first", hangs)?;
    is_held(&machine, job, "did not end within 1 s, and was killed")?;
    machine.write("etc/genv/first", "kill -STOP $PPID; exec sleep 1000001\n")?;
    is_held(&machine, job, "it has sent no reply")?;

    // One that hangs for as long as its service is looked at.
    machine.write("etc/genv/first", hangs)?;
    configure(&machine, "1h", "2h")?;
    let stop = ["systemctl", "stop", "genv-notify@*.service"];
    machine.run(&stop)?;
    let mut running = Vec::new();
    until("it hangs", || {
        running = deliveries(&machine)?;
        // Until systemd has started the program, the process is systemd's and has other rights.
        let comm = |pid: u32| machine.output(&["cat", &format!("/proc/{pid}/comm")]);
        running.retain(|(_, pid)| comm(*pid).is_ok_and(|it| it.stdout == b"genv-enforcer\n"));
        Ok(!running.is_empty())
    })?;
    has_the_network_alone(&machine, running[0].1)?;

    machine.write("etc/genv/first", "")?;
    machine.run(&stop)?;
    until("the warning is delivered, and the job ended", || Ok(!machine.is_alive(job)))
        .with_context(|| machine.log(UNIT))?;
    let mut notices: Vec<Value> = Vec::new();
    until("both notices came", || {
        let mut mail = machine.read(RECEIVED).unwrap_or_default();
        // The last line may be half written.
        mail.truncate(mail.rfind('\n').map_or(0, |end| end + 1));
        let lines = mail.lines().map(serde_json::from_str);
        notices = lines.collect::<Result<_, _>>().with_context(|| mail.clone())?;
        Ok(notices.iter().any(|notice| notice["kind"] == "done"))
    })
    .with_context(|| machine.log(UNIT))?;
    let uid: u32 = machine.run(&["id", "--user", USER])?.trim().parse()?;
    for notice in &notices {
        ensure!(
            notice["version"] == 1
                && notice["uid"] == uid
                && notice["username"] == USER
                && notice["hostname"] == "gpu01"
                && notice["notices"][0]["rule"] == "non-env-processes",
            "{notice}"
        );
    }
    ensure!(notices[0]["kind"] == "warning" && notices[0]["more"] == 0, "{notices:?}");
    ensure!(notices[0]["notices"][0]["end_timestamp_seconds"].is_number(), "{notices:?}");
    let text = notices[0]["text"].as_str().unwrap_or_default();
    ensure!(text.contains(&format!("process {job} (sleep)")), "{text}");
    // Nothing of the commands that hung is left.
    until("all deliveries have ended", || {
        let processes = machine.run(&["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])?;
        Ok(deliveries(&machine)?.is_empty() && !processes.contains("sleep 1000001"))
    })?;
    Ok(())
}

/// A delivery is in the machine's network as a user of its own without a right; the enforcer is in none, and may not
/// become the other.
fn has_the_network_alone(machine: &Machine, delivery: u32) -> Result<()> {
    let enforcer = machine.main_pid(UNIT)?;
    let network = |pid: u32| -> Result<String> {
        let link = machine.run(&["readlink", &format!("/proc/{pid}/ns/net")])?;
        Ok(link)
    };
    let uid = confined_uid(machine, delivery, 0)?;
    let others = ["root", "genv", USER].map(|user| machine.run(&["id", "--user", user]));
    for other in others {
        ensure!(other?.trim() != uid, "it runs as another's user: {uid}");
    }
    ensure!(network(delivery)? == network(1)?, "it has no network");
    ensure!(network(enforcer)? != network(1)?, "the enforcer has the network");
    let connect = format!("exec 3<> {MAIL}");
    for (pid, connects) in [(delivery, true), (enforcer, false)] {
        let target = format!("--target={pid}");
        let output = machine.output(&["nsenter", &target, "--net", "bash", "-c", &connect])?;
        ensure!(output.status.success() == connects, "{output:?}");
    }
    // The enforcer and root alone send notices.
    let socket = machine.run(&["stat", "--format=%a %U", "/run/genv/notify.sock"])?;
    ensure!(socket == "600 genv\n", "{socket}");
    Ok(())
}
