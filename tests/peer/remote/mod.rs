//! genv 1.4.3 where people log in from, and this project's genv on the hosts that it asks over SSH; and the other way.

mod dashboard;
mod enforce;
mod host;

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use genv_tests::http::free_port;
use genv_tests::metrics::Scrape;
use genv_tests::patience::until;
use genv_tests::peer::Monitor;
use genv_tests::process::Sleeper;
use genv_tests::shell::{self, Shell};
use genv_tests::ssh::{SshClient, SshServer};
use genv_tests::terminal::{PROMPT, Terminal};

use crate::remote::host::{Host, login, printed};

/// What it prints of a host that is ours; of one that is its own it is the same.
fn asked(host: &Host, arguments: &str) -> Result<String> {
    let of = |server: &SshServer| {
        let client = SshClient::new(&[("gpu01", server)])?;
        let line = format!("-H gpu01 {arguments}");
        printed(&mut login(&client, host, &line)?)
    };
    // Theirs may clean the state up and write it.
    let (ours, theirs) = (of(&host.ours)?, of(&host.theirs)?);
    ensure!(ours == theirs, "{arguments}: {ours:?} is not {theirs:?}");
    Ok(ours)
}

#[test]
fn it_is_told_of_devices_and_environments_as_by_its_own_hosts() -> Result<()> {
    let host = Host::new(4, "")?;
    let lines = |text: String| {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    // A host on which nobody has ever used genv.
    ensure!(lines(asked(&host, "devices")?).contains(&"gpu01 4 4".to_owned()));
    ensure!(asked(&host, "envs --no-header --no-summary")?.trim().is_empty());

    let members = [Sleeper::start(&[])?, Sleeper::start(&[])?, Sleeper::start(&[])?];
    host.environment("7", "my run", &members[0], "--count 2")?;
    host.genv("envs config --eid 7 gpu-memory --gpu-memory 4gi")?;
    host.genv("devices attach --eid 7 --index 2")?;
    host.environment("e-2", "$(touch x) \"é\"", &members[1], "--index 0 --allow-over-subscription")?;
    host.environment("idle", "my run", &members[2], "")?;

    ensure!(asked(&host, "devices --format csv --no-header --no-summary")? == "gpu01,4,1\n");
    ensure!(
        lines(asked(&host, "devices")?).last().is_some_and(|it| it == "Total 4 devices with 1 available on 1 hosts")
    );
    let environments = asked(&host, "envs --format csv --timestamp --no-header --no-summary")?;
    let rows: Vec<Vec<&str>> = environments.lines().map(|line| line.split(',').collect()).collect();
    let rows: Vec<[&str; 4]> = rows.iter().map(|row| [row[0], row[1], row[2], row[3]]).collect();
    ensure!(
        rows == [
            ["gpu01", "7", "root", "my run"],
            ["gpu01", "e-2", "root", "$(touch x) \"é\""],
            ["gpu01", "idle", "root", "my run"],
        ],
        "{environments}"
    );
    asked(&host, "envs --timestamp")?;
    // It tells of the last one of a name.
    ensure!(asked(&host, "query --name my_run --query hostname eid")?.trim().is_empty());
    host.genv("envs config --eid idle name --name solo")?;
    let found = asked(&host, "query --name solo --query hostname eid creation")?;
    ensure!(found.starts_with("gpu01,idle,"), "{found}");
    Ok(())
}

#[test]
fn its_monitor_tells_the_same_of_a_host_that_is_ours() -> Result<()> {
    let inside = Sleeper::start(&[("GENV_ENVIRONMENT_ID", "7")])?;
    let (outside, shell) = (Sleeper::start(&[])?, Sleeper::start(&[])?);
    let processes = format!(
        "{{pid: {}, devices: [{{index: 0, memory: 3gi}}]}}, {{pid: {}, devices: [{{index: 1, memory: 2gi}}]}}",
        inside.pid(),
        outside.pid()
    );
    let host = Host::new(3, &processes)?;
    host.environment("7", "run", &shell, "--index 0")?;

    let client = SshClient::new(&[("ours", &host.ours), ("theirs", &host.theirs)])?;
    let (port, folder) = (free_port()?, host.peer.folder().join("monitor"));
    let line = format!("-H ours,theirs monitor --interval 1 --port {port} --config-dir {}", folder.display());
    let monitor = Monitor::start(&mut login(&client, &host, &line)?, port, host.peer.folder())?;
    let scrape = monitor.wait_for("both hosts are seen", |scrape| {
        let mut names = ["ours", "theirs"].iter();
        names.all(|host| scrape.mentions("hostname", host))
    })?;
    let (ours, theirs) = (of(&scrape, "ours"), of(&scrape, "theirs"));
    ensure!(ours == theirs, "{ours:#?} is not {theirs:#?}");
    for (name, labels, expected) in [
        ("genv_is_installed", &[][..], 1.0),
        ("genv_environments_total", &[], 1.0),
        ("genv_processes_total", &[], 2.0),
        ("genv_attached_devices_total", &[], 1.0),
        ("genv_device_memory_used_bytes", &[("index", "1")], 2_147_483_648.0),
    ] {
        let labels = [labels, &[("hostname", "ours")]].concat();
        let value = scrape.value(name, &labels)?;
        ensure!(value == expected, "{name} is {value}");
    }
    Ok(())
}

/// Ours where somebody is who can log in to this host.
fn ours(server: &SshServer, arguments: &[&str]) -> Result<String> {
    let client = SshClient::new(&[("gpu01", server)])?;
    let mut command = Command::new(shell::installation()?.join("bin/genv"));
    client.on_path(&mut command)?;
    printed(command.args(["remote", "-H", "gpu01"]).args(arguments))
}

#[test]
fn ours_tells_programs_the_same_as_it_of_its_hosts_and_of_ours() -> Result<()> {
    let host = Host::new(4, "")?;
    let client = SshClient::new(&[("gpu01", &host.theirs)])?;
    let equal = |words: &[&str]| -> Result<String> {
        let mut command = login(&client, &host, "-H gpu01")?;
        let expected = printed(command.args(words))?;
        for server in [&host.theirs, &host.ours] {
            let told = ours(server, words)?;
            ensure!(told == expected, "{words:?}: {told:?} is not {expected:?}");
        }
        Ok(expected)
    };
    // A host on which nobody has ever used genv.
    ensure!(equal(&["devices", "--format", "csv"])?.contains("gpu01,4,4\n"));
    equal(&["envs", "--format", "csv"])?;

    let members = [Sleeper::start(&[])?, Sleeper::start(&[])?];
    host.environment("7", "my run", &members[0], "--count 2")?;
    host.environment("e-2", "$(touch x) \"é\"", &members[1], "--index 2")?;
    let devices = equal(&["devices", "--format", "csv"])?;
    ensure!(devices == "HOST,TOTAL,AVAILABLE\ngpu01,4,1\n\nTotal 4 devices with 1 available on 1 hosts\n", "{devices}");
    equal(&["devices", "--format", "csv", "--no-header", "--no-summary"])?;
    let environments = equal(&["envs", "--format", "csv", "--timestamp"])?;
    ensure!(environments.lines().count() == 5, "a header, two environments and a summary: {environments}");
    equal(&["envs", "--format", "csv", "--timestamp", "--no-header", "--no-summary"])?;
    for name in ["my run", "$(touch x) \"é\"", "nobody"] {
        let fields = ["eid", "creation", "hostname"];
        equal(&[&["query", "--name", name, "--query"], &fields[..]].concat())?;
    }
    Ok(())
}

/// Has login shells of a host set genv up, and find the programs that this command finds.
fn let_log_in(server: &SshServer, command: &Command) -> Result<()> {
    // They read /etc/profile first, which sets a PATH of its own.
    let path = command.get_envs().find(|(name, _)| *name == "PATH");
    let path = path.and_then(|(_, path)| path).context("no PATH")?;
    let (path, setup) = (path.display(), Shell::Bash.setup());
    let profile = format!("PATH='{path}'\nPS1='{PROMPT}'\n{setup}\n");
    Ok(fs::write(server.home().join(".profile"), profile)?)
}

#[test]
fn ours_opens_an_environment_on_a_host_of_its_own() -> Result<()> {
    let host = Host::new(3, "")?;
    let_log_in(&host.theirs, &host.peer.command("genv"))?;
    let client = SshClient::new(&[("gpu01", &host.theirs)])?;
    let mut command = Command::new(shell::installation()?.join("bin/genv"));
    client.on_path(&mut command)?;
    command.env("TERM", "xterm");
    command.args(["remote", "-H", "gpu01", "activate", "--gpus", "2", "--name", "mine"]);
    let mut terminal = Terminal::run_in(command, Shell::Bash)?;
    terminal.wait(&format!("(genv) {PROMPT}"))?;
    let (shown, _) = terminal.run("echo devices=$CUDA_VISIBLE_DEVICES")?;
    ensure!(shown.contains("devices=0,1"), "{shown}");
    let names = host.genv("envs query --query config.name")?;
    ensure!(names == "mine\n", "{names}");
    Ok(())
}

/// The series of a host, without its name.
fn of(scrape: &Scrape, host: &str) -> Vec<String> {
    let series = scrape.samples.iter().filter_map(|((name, labels), value)| {
        let mut labels = labels.clone();
        (labels.remove("hostname")? == host).then(|| format!("{name}{labels:?} {value}"))
    });
    series.collect()
}

#[test]
fn it_finds_a_host_with_enough_devices_and_opens_an_environment_there() -> Result<()> {
    let hosts = [Host::new(1, "")?, Host::new(3, "")?];
    let busy = Sleeper::start(&[])?;
    hosts[1].environment("busy", "busy", &busy, "--index 0")?;
    for host in &hosts {
        let_log_in(&host.ours, &host.peer.our_command("genv")?)?;
    }
    let client = SshClient::new(&[("small", &hosts[0].ours), ("big", &hosts[1].ours)])?;
    let mut command = login(&client, &hosts[0], "-H small,big activate --name training --gpus 2")?;
    command.env("TERM", "xterm");
    let mut terminal = Terminal::run_in(command, Shell::Bash)?;
    // The prompt tells that the environment is active.
    terminal.wait(&format!("(genv) {PROMPT}"))?;
    let (shown, code) = terminal.run("genv status; echo devices=$CUDA_VISIBLE_DEVICES")?;
    ensure!(code == 0 && shown.contains(" is active."), "{shown}");
    ensure!(shown.contains("training") && shown.contains("devices=1,2"), "{shown}");
    let holders = hosts[1].genv("devices ps --format csv --no-header")?;
    ensure!(holders.matches(",training,").count() == 2, "{holders}");

    terminal.type_line("exit")?;
    until("the environment ends with its shell", || Ok(!hosts[1].genv("envs ps")?.contains("training")))
}
