//! The cost of reading hosts over SSH: here, and on each host. All hosts are this machine, by the real sshd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use genv_tests::exporter::{Exporter, Setup};
use genv_tests::footprint::Footprint;
use genv_tests::http;
use genv_tests::process::{resident_bytes, tree_cpu_seconds, write_script};
use genv_tests::ssh::SshServer;
use genv_tests::tools::build_folder;
use tempfile::TempDir;

use crate::load::Load;
use crate::table::{Table, mebibytes, milliseconds, verdict};

/// Numbers of hosts, unless `GENV_BENCH_HOSTS` is one.
const SIZES: [usize; 3] = [1, 8, 32];

/// How long each is watched, but for some cycles at least.
const WATCHED: Duration = Duration::from_secs(30);

/// Of one host and cycle, where the hosts are read.
const HERE_BUDGET_SECONDS: f64 = 1e-3;
/// Of one cycle, on a host.
const THERE_BUDGET_SECONDS: f64 = 3e-3;

/// Asks for compressed text, as Prometheus does.
const GZIP: [(&str, &str); 1] = [("Accept-Encoding", "gzip")];

/// genv reuses no output of `ssh -G` until the files of the configuration are 5 s old, as those of a lab are.
const CONFIGURATION_AGE: Duration = Duration::from_secs(6);

/// Hosts that come and go, how often, for how long, and how often their exporter is measured.
const CHURN_HOSTS: usize = 256;
const CHURN_EVERY: Duration = Duration::from_secs(30);
const CHURN_TIME: Duration = Duration::from_secs(3600);
const CHURN_ROWS: u32 = 12;
/// The part of the hosts that is away: one in so many.
const AWAY: usize = 16;

/// How long hosts may take until all of them are there.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) fn table() -> Result<Table> {
    let sizes = match number_asked_for()? {
        Some(hosts) => vec![hosts],
        None => SIZES.to_vec(),
    };
    let mut table = Table::new(&[
        "hosts",
        "interval",
        "CPU here, per host and cycle",
        "budget",
        "holds",
        "CPU on the host, per cycle, sshd included",
        "budget",
        "holds",
        "all up after",
        "CPU until all are up, per host",
        "resident memory",
        "/metrics",
        "of it gzip",
    ]);
    for hosts in sizes {
        let fleet = Fleet::start(hosts, &build_folder())?;
        let measured = fleet.measure()?;
        table.row(&[
            &hosts,
            &format!("{} s", fleet.interval.as_secs()),
            &milliseconds(measured.here_seconds),
            &milliseconds(HERE_BUDGET_SECONDS),
            &verdict(measured.here_seconds <= HERE_BUDGET_SECONDS),
            &milliseconds(measured.there_seconds),
            &milliseconds(THERE_BUDGET_SECONDS),
            &verdict(measured.there_seconds <= THERE_BUDGET_SECONDS),
            &format!("{:.1} s", measured.until_up.as_secs_f64()),
            &milliseconds(measured.starting_seconds),
            &mebibytes(measured.resident_bytes),
            &mebibytes(measured.page_bytes as u64),
            &mebibytes(measured.gzip_bytes as u64),
        ]);
    }
    Ok(table)
}

/// What an exporter holds over an hour, while every half minute one host in 16 leaves its list and as many come back.
pub(crate) fn churn_table() -> Result<Table> {
    let mut table =
        Table::new(&["after", "hosts", "CPU, per host and cycle", "memory of its own", "threads", "open files"]);
    let fleet = Fleet::start(number_asked_for()?.unwrap_or(CHURN_HOSTS), &build_folder())?;
    let exporter = fleet.exporter()?;
    fleet.wait_until_up(&exporter)?;
    let groups: Vec<&[String]> = fleet.names.chunks(fleet.names.len().div_ceil(AWAY)).collect();
    let turns = CHURN_TIME.div_duration_f64(CHURN_EVERY) as u32;
    let cycles_per_turn = CHURN_EVERY.div_duration_f64(fleet.interval) as u32;
    let (began, mut cpu_seconds, mut host_cycles) = (Instant::now(), tree_cpu_seconds(exporter.pid())?, 0);
    for turn in 1..=turns {
        let away = groups[turn as usize % groups.len()];
        let there: Vec<&str> = fleet.names.iter().filter(|it| !away.contains(it)).map(String::as_str).collect();
        fleet.list(&there.join("\n"))?;
        watch(&exporter, fleet.interval, cycles_per_turn)?;
        host_cycles += cycles_per_turn as usize * there.len();
        if turn % (turns / CHURN_ROWS) == 0 {
            let (cpu, footprint) = (tree_cpu_seconds(exporter.pid())?, Footprint::of(exporter.pid())?);
            table.row(&[
                &format!("{} min", began.elapsed().as_secs() / 60),
                &up(&exporter.get("/metrics")?.text()?),
                &milliseconds((cpu - cpu_seconds) / host_cycles as f64),
                &mebibytes(footprint.anonymous_bytes),
                &footprint.threads,
                &footprint.descriptors,
            ]);
            (cpu_seconds, host_cycles) = (cpu, 0);
        }
    }
    Ok(table)
}

/// Hosts that are up on a page.
fn up(page: &str) -> usize {
    page.lines().filter(|line| line.starts_with("genv_host_up{") && line.ends_with(" 1")).count()
}

/// `GENV_BENCH_HOSTS`.
pub(crate) fn number_asked_for() -> Result<Option<usize>> {
    Ok(std::env::var("GENV_BENCH_HOSTS").ok().map(|hosts| hosts.parse()).transpose()?)
}

/// Hosts, of which one process in ten changes in each cycle.
pub(crate) struct Fleet {
    /// The folder of the exporter's program, and of the hosts' `genv`.
    programs: PathBuf,
    server: SshServer,
    client: TempDir,
    names: Vec<String>,
    pub(crate) interval: Duration,
    _folder: TempDir,
    _load: Load,
}

/// What an exporter of a fleet costs.
pub(crate) struct Measured {
    /// CPU of a cycle of one host, here and there.
    pub(crate) here_seconds: f64,
    there_seconds: f64,
    pub(crate) until_up: Duration,
    /// CPU until all are up, per host.
    pub(crate) starting_seconds: f64,
    pub(crate) resident_bytes: u64,
    page_bytes: usize,
    gzip_bytes: usize,
}

impl Fleet {
    pub(crate) fn start(hosts: usize, programs: &Path) -> Result<Self> {
        let load = Load::start(true)?;
        let folder = tempfile::tempdir()?;
        let state = folder.path().join("state");
        load.write_state(&state)?;
        let mut session = Command::new("genv");
        session
            .env("PATH", format!("{}:/usr/bin:/bin", programs.display()))
            .env("GENV_NVML_LIBRARY", load.simulation.library())
            .env("GENV_SCENARIO", load.simulation.scenario())
            .env("GENV_TMPDIR", &state);
        // As many as come at once.
        let server = SshServer::start(&session, &[format!("MaxStartups {}", hosts.max(200)).as_str()])?;
        let names: Vec<String> = (0..hosts).map(|number| format!("gpu{number:04}")).collect();
        let client = client_of(&names, &server)?;
        std::thread::sleep(CONFIGURATION_AGE);
        let interval = Duration::from_secs(match hosts {
            0..=32 => 1,
            33..=256 => 5,
            _ => 10,
        });
        let programs = programs.to_owned();
        Ok(Self { programs, server, client, names, interval, _folder: folder, _load: load })
    }

    /// Measures an exporter of all hosts.
    pub(crate) fn measure(&self) -> Result<Measured> {
        let hosts = self.names.len();
        let began = Instant::now();
        let exporter = self.exporter()?;
        self.wait_until_up(&exporter)?;
        let until_up = began.elapsed();
        let starting = tree_cpu_seconds(exporter.pid())?;
        // The allocations of the start are no longer needed.
        watch(&exporter, self.interval, 2)?;

        let cycles = (WATCHED.as_secs_f64() / self.interval.as_secs_f64()).ceil() as u32;
        let (here, there) = (tree_cpu_seconds(exporter.pid())?, tree_cpu_seconds(self.server.pid())?);
        let gzip_bytes = watch(&exporter, self.interval, cycles)?;
        let each = f64::from(cycles) * hosts as f64;
        let here_seconds = (tree_cpu_seconds(exporter.pid())? - here) / each;
        let there_seconds = (tree_cpu_seconds(self.server.pid())? - there) / each;
        let resident_bytes = resident_bytes(exporter.pid())?;
        let page = exporter.get("/metrics")?.text()?;
        let up = up(&page);
        ensure!(up == hosts, "only {up} of {hosts} hosts are up: {}", exporter.log());
        Ok(Measured {
            here_seconds,
            there_seconds,
            until_up,
            starting_seconds: starting / hosts as f64,
            resident_bytes,
            page_bytes: page.len(),
            gzip_bytes,
        })
    }

    /// Waits until all hosts are up. It asks for the text of each host, compressed: the page of all hosts would add CPU, and plain
    /// text memory, to what is measured.
    fn wait_until_up(&self, exporter: &Exporter) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for name in &self.names {
            let path = format!("/metrics?host={name}");
            while http::get_with(exporter.port(), &path, &GZIP)?.status != 200 {
                ensure!(Instant::now() < deadline, "{name} is not up: {}", exporter.log());
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }

    /// The exporter in a mount namespace of its own, in which the client's files are `/etc/hosts` and `/etc/ssh/ssh_config`. Needs
    /// root.
    fn exporter(&self) -> Result<Exporter> {
        let setup = Setup::new()?;
        self.list(&self.names.join("\n"))?;
        let program = setup.folder().join("genv-exporter");
        let script = format!(
            "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind {client}/hosts /etc/hosts && mount --bind {client}/ssh_config \
             /etc/ssh/ssh_config && exec {programs}/genv-exporter \"$@\"' genv-exporter \"$@\"\n",
            client = self.client.path().display(),
            programs = self.programs.display()
        );
        write_script(&program, &script)?;
        let interval = format!("--interval={}ms", self.interval.as_millis());
        setup.program(&program).flag(&interval).flag(&format!("--hostfile={}", self.host_file().display())).start()
    }

    fn host_file(&self) -> PathBuf {
        self.client.path().join("list")
    }

    /// Writes the exporter's host file.
    fn list(&self, names: &str) -> Result<()> {
        Ok(fs::write(self.host_file(), names)?)
    }
}

/// A client's `ssh_config`, `known_hosts` and `hosts`, as in a lab: one block for all hosts. Each host has a name and a line in
/// `known_hosts` of its own, so that no sign-in waits for another.
fn client_of(names: &[String], server: &SshServer) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let line = server.known_hosts_line()?;
    let (_, key) = line.split_once(' ').context("a line without a key")?;
    let (at, port) = (|name| folder.path().join(name), server.port());
    let known_hosts = names.iter().map(|name| format!("[{name}]:{port} {key}")).collect::<String>();
    fs::write(at("known_hosts"), known_hosts)?;
    fs::write(at("hosts"), names.iter().map(|name| format!("127.0.0.1 {name}\n")).collect::<String>())?;
    let configuration = format!(
        "Host gpu*\n  Port {port}\n  IdentityFile {}\n  IdentitiesOnly yes\n  IdentityAgent none\n  UserKnownHostsFile {}\n\
         Host *\n  GlobalKnownHostsFile /dev/null\n",
        server.identity().display(),
        at("known_hosts").display()
    );
    fs::write(at("ssh_config"), configuration)?;
    Ok(folder)
}

/// Scrapes once each cycle, as Prometheus does; size of the last answer.
fn watch(exporter: &Exporter, interval: Duration, cycles: u32) -> Result<usize> {
    let began = Instant::now();
    let mut bytes = 0;
    for cycle in 1..=cycles {
        std::thread::sleep((interval * cycle).saturating_sub(began.elapsed()));
        let answer = http::get_with(exporter.port(), "/metrics", &GZIP)?;
        ensure!(answer.status == 200, "/metrics answered {}", answer.status);
        bytes = answer.body.len();
    }
    Ok(bytes)
}
