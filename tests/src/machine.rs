//! A machine of its own with Debian's systemd as its first process; needs root, and the package util-linux.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::http::{self, Response};
use crate::metrics::Scrape;
use crate::nvml_sim::used_by;
use crate::patience::{self, until};
use crate::process::children;
use crate::tools::{self, build_folder};

const DRIVER: &str = "usr/lib/libnvidia-ml.so.1";

pub const UNITS: &str = "usr/lib/systemd/system";

pub const SCENARIO: &str = "etc/genv/scenario.yaml";

pub const USER: &str = "alice";

pub struct Machine {
    boot: Child,
    /// Its first process, as this machine numbers it.
    init: u32,
    _layer: tempfile::TempDir,
}

impl Machine {
    /// Starts one from a tree that `scripts/debian-tools` makes, with what `furnish` puts into a folder besides, and the
    /// simulated driver. Nothing of genv runs there yet, and a user has a home.
    pub fn boot(tree: &str, furnish: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tree = tools::folder(tree).join("root");
        // Beside the programs, so that they need no copy.
        let layer = tempfile::tempdir_in(build_folder())?;
        fs::set_permissions(layer.path(), fs::Permissions::from_mode(0o755))?;
        put(&build_folder().join("libnvml_sim.so"), &layer.path().join(DRIVER))?;
        fs::create_dir_all(layer.path().join("etc"))?;
        for (file, text) in [("machine-id", "0123456789abcdef0123456789abcdef\n"), ("hostname", "gpu01\n")] {
            fs::write(layer.path().join("etc").join(file), text)?;
        }
        furnish(layer.path())?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(here.join("systemd/boot"))
            .args([&tree, layer.path()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let boot = command.spawn().context("setpriv, of the package util-linux")?;
        let mut machine = Self { boot, init: 0, _layer: layer };
        until("systemd is the first process", || machine.find_init())?;
        let mut state = String::new();
        until("systemd answers", || {
            let output = machine.output(&["systemctl", "is-system-running", "--wait"])?;
            state = String::from_utf8(output.stdout)?.trim().to_owned();
            Ok(!["", "offline", "unknown"].contains(&state.as_str()))
        })?;
        if state != "running" {
            bail!("{state}: {}", machine.run(&["systemctl", "--failed"])?);
        }
        machine.run(&["useradd", "--create-home", USER])?;
        for unit in ["genv-enforcer", "genv-exporter"] {
            let scenario = format!("[Service]\nEnvironment=GENV_SCENARIO=/{SCENARIO}\n");
            machine.configure(unit, "scenario", &scenario)?;
        }
        machine.use_devices(&[])?;
        Ok(machine)
    }

    fn find_init(&mut self) -> Result<bool> {
        if self.boot.try_wait()?.is_some() {
            let mut said = String::new();
            let mut stderr = self.boot.stderr.take().context("no stderr")?;
            stderr.read_to_string(&mut said)?;
            bail!("it has ended: {said}");
        }
        // The script has one child, which waits for one.
        let child_of = |pid: u32| children(pid).first().copied();
        let child = child_of(self.boot.id()).and_then(child_of);
        let name = child.map(|pid| fs::read_to_string(format!("/proc/{pid}/comm")));
        let Some((pid, Ok(name))) = child.zip(name) else {
            return Ok(false);
        };
        self.init = pid;
        Ok(name.trim_end() == "systemd")
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={}", self.init))
            .args(["--all", "--"])
            .args(words)
            .env_clear()
            .envs([("PATH", "/usr/sbin:/usr/bin"), ("SYSTEMD_PAGER", "")]);
        command
    }

    pub fn output(&self, words: &[&str]) -> Result<Output> {
        patience::output(&mut self.command(words))
    }

    /// As [`Machine::output`], which must succeed; what it printed.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        let output = self.output(words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{words:?}: {said}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// A file there, as it is seen from here.
    pub fn path(&self, path: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.init));
        root.join(path.trim_start_matches('/'))
    }

    pub fn read(&self, path: &str) -> Result<String> {
        fs::read_to_string(self.path(path)).with_context(|| path.to_owned())
    }

    /// Writes a file that everybody there may read, at once.
    pub fn write(&self, path: &str, text: &str) -> Result<()> {
        let (to, new) = (self.path(path), self.path(&format!("{path}.new")));
        fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
        fs::write(&new, text)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
        Ok(fs::rename(new, to)?)
    }

    pub fn configure(&self, unit: &str, name: &str, text: &str) -> Result<()> {
        let file = format!("etc/systemd/system/{unit}.service.d/{name}.conf");
        self.write(&file, text)?;
        self.run(&["systemctl", "daemon-reload"]).map(drop)
    }

    /// Lets the driver tell of two devices, and that these processes use the first.
    pub fn use_devices(&self, pids: &[u32]) -> Result<()> {
        self.write(SCENARIO, &used_by(pids))
    }

    /// Starts a command of [`USER`] as a service of its own; the pid, as that machine numbers it, of the process of this
    /// name that it becomes or starts.
    pub fn start(&self, unit: &str, words: &[&str], process: &str) -> Result<u32> {
        let (name, user) = (format!("--unit={unit}"), format!("--uid={USER}"));
        let home = format!("--working-directory=/home/{USER}");
        let scenario = format!("--setenv=GENV_SCENARIO=/{SCENARIO}");
        let start = ["systemd-run", "--quiet", &name, &user, &home, &scenario];
        self.run(&[&start[..], words].concat())?;
        let mut found = None;
        until("it runs", || {
            let group = format!("sys/fs/cgroup/system.slice/{unit}.service/cgroup.procs");
            // It may be gone, and so may each process.
            let pids = self.run(&["cat", &format!("/{group}")]);
            let pids = pids.with_context(|| self.log(unit))?;
            found = pids.lines().find_map(|pid| {
                let name = self.read(&format!("proc/{pid}/comm")).ok()?;
                (name.trim_end() == process).then(|| pid.parse().ok())?
            });
            Ok(found.is_some())
        })?;
        found.context("no pid")
    }

    pub fn is_alive(&self, pid: u32) -> bool {
        self.path(&format!("proc/{pid}")).exists()
    }

    pub fn property(&self, unit: &str, name: &str) -> Result<String> {
        let said = self.run(&["systemctl", "show", "--value", "--property", name, unit])?;
        Ok(said.trim_end().to_owned())
    }

    pub fn main_pid(&self, unit: &str) -> Result<u32> {
        Ok(self.property(unit, "MainPID")?.parse()?)
    }

    pub fn wait_for_status(&self, unit: &str, is_so: impl Fn(&str) -> bool) -> Result<()> {
        let mut status = String::new();
        until("its status is so", || {
            status = self.property(unit, "StatusText")?;
            Ok(is_so(&status))
        })
        .with_context(|| format!("{status:?}: {}", self.log(unit)))
    }

    pub fn log(&self, unit: &str) -> String {
        let words = ["journalctl", "--output=cat", "--unit", unit];
        self.run(&words).unwrap_or_else(|error| error.to_string())
    }

    pub fn journal(&self, matches: &[&str]) -> Result<Vec<Value>> {
        let said = self.run(&[&["journalctl", "--output=json"], matches].concat())?;
        said.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// systemd's own judgement of a service and its socket: nothing is wrong with them, and the service is exposed at most so.
    pub fn judge(&self, unit: &str, most_exposure: f64) -> Result<()> {
        let (service, socket) = (format!("{unit}.service"), format!("{unit}.socket"));
        let output = self.output(&["systemd-analyze", "verify", &service, &socket])?;
        let said = String::from_utf8([output.stdout, output.stderr].concat())?;
        ensure!(output.status.success() && said.is_empty(), "{said}");
        let installed = format!("/{UNITS}/{service}");
        for words in [&[service.as_str()][..], &["--offline=true", &installed]] {
            let judge = ["systemd-analyze", "--no-pager", "security"];
            let said = self.run(&[&judge[..], words].concat())?;
            let level = said.split_once(&format!("Overall exposure level for {service}: "));
            let level = level.and_then(|(_, rest)| rest.split_whitespace().next());
            let exposure: f64 = level.with_context(|| said.clone())?.parse()?;
            ensure!(exposure <= most_exposure, "{exposure}: {said}");
        }
        Ok(())
    }

    pub fn get(&self, port: u16, path: &str) -> Result<Response> {
        let network = File::open(format!("/proc/{}/ns/net", self.init))?;
        let path = path.to_owned();
        // A network is that of a thread.
        let inside = thread::spawn(move || {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            http::get(port, &path)
        });
        inside.join().map_err(|_| anyhow!("it panicked"))?
    }

    pub fn scrape(&self, port: u16) -> Result<Scrape> {
        Scrape::parse(&self.get(port, "/metrics")?.text()?)
    }

    /// What comes of a shell's redirection, such as `<>/dev/null`, among the processes of a service: nothing, or the error.
    pub fn open_among(&self, unit: &str, redirection: &str) -> Result<String> {
        let script = format!("echo $$ >/sys/fs/cgroup/system.slice/{unit}.service/cgroup.procs && exec 3{redirection}");
        let output = self.output(&["bash", "-c", &script])?;
        let said = String::from_utf8(output.stderr)?;
        ensure!(!said.contains("cgroup.procs"), "{said}");
        Ok(said.rsplit_once(": ").map_or("", |(_, error)| error.trim_end()).to_owned())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // With its first process all of it ends, and then the script, which clears up.
        let init = i32::try_from(self.init).ok().and_then(Pid::from_raw);
        if let Some(init) = init {
            let _ = kill_process(init, Signal::KILL);
        } else {
            let _ = self.boot.kill();
        }
        let _ = self.boot.wait();
    }
}

/// Puts a file where one of a machine is, without a copy if it can be.
pub fn put(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop)).with_context(|| from.display().to_string())
}
