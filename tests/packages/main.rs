//! What `scripts/package` builds, installed where a real systemd runs; each test on a machine of its own.

mod deb;
mod documented;
mod listed;
mod playbook;
mod rpm;
mod shells;
mod tarball;
mod upgraded;
mod without_systemd;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use genv_tests::machine::{Machine, USER, put};

const DEB: &str = "/packages/genv.deb";
const RPM: &str = "/packages/genv.rpm";
const TARBALL: &str = "/packages/genv.tar.gz";

const CONFIG: &str = "etc/genv/enforcer.yaml";
const DAEMONS: [&str; 2] = ["genv-exporter", "genv-enforcer"];

/// A machine that has the packages, and nothing of them is installed.
fn boot() -> Result<Machine> {
    Machine::boot("debian-12-systemd", |layer| {
        for path in [DEB, RPM, TARBALL] {
            let ending = path.split_once("genv.").context("an ending")?.1;
            put(&built(ending)?, &layer.join(path.trim_start_matches('/')))?;
        }
        Ok(())
    })
}

fn built(ending: &str) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/packages");
    let files = fs::read_dir(&folder).context("there are no packages: run scripts/package")?;
    let files: Vec<_> = files.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
    let mut found = files.into_iter().filter(|file| file.to_string_lossy().ends_with(ending));
    found.next().with_context(|| format!("no {ending}: run scripts/package"))
}

/// Runs a command, which must succeed; its output and its errors.
fn said(machine: &Machine, words: &[&str]) -> Result<String> {
    let output = machine.output(words)?;
    let said = String::from_utf8([output.stdout, output.stderr].concat())?;
    ensure!(output.status.success(), "{words:?}: {said}");
    Ok(said)
}

fn install(machine: &Machine, package: &str) -> Result<String> {
    let install = ["apt-get", "install", "--yes", "--option=Dpkg::Options::=--force-confold", package];
    said(machine, &[&["env", "DEBIAN_FRONTEND=noninteractive"], &install[..]].concat())
}

/// Runs rpm without its check of dependencies: rpm does not know Debian's packages.
fn rpm(machine: &Machine, words: &[&str]) -> Result<String> {
    said(machine, &[&["rpm", "--nodeps"], words].concat())
}

/// Whether what an installation said tells of a driver that is missing, where it is.
fn driver_is_missed(said: &str) -> Result<()> {
    let line = "genv: no NVIDIA driver is loaded here: until one is, there are no devices. 'genv doctor' tells more";
    // The kernel's, and so the same on each machine of a test.
    let driver = Path::new("/proc/driver/nvidia/version").exists();
    ensure!(said.contains(line) != driver, "{said}");
    Ok(())
}

fn start_daemons(machine: &Machine) -> Result<()> {
    machine.run(&[&["systemctl", "enable", "--now"], &DAEMONS[..]].concat()).map(drop)
}

fn states(machine: &Machine, daemon: &str) -> Result<[String; 2]> {
    let ask = |what| -> Result<String> {
        let said = machine.output(&["systemctl", what, daemon])?.stdout;
        Ok(String::from_utf8(said)?.trim_end().to_owned())
    };
    Ok([ask("is-enabled")?, ask("is-active")?])
}

/// The files and folders with the package's name, without the settings of units, which are the machine's own.
fn left(machine: &Machine) -> Result<String> {
    let script = "find /etc /usr /var/lib -name '*genv*' -not -path '/etc/systemd/system/genv-*.service.d*' \
                  -not -path '/var/lib/systemd/*'";
    machine.run(&["sh", "-c", script])
}

fn start_member(machine: &Machine) -> Result<u32> {
    machine.start("member", &["/usr/bin/genv", "exec", "--name", "training", "--", "sleep", "1000000"], "sleep")
}

/// Checks that `genv root` prints this folder, and that the folder's `bin` leads to all programs and shims, as start-up
/// files of genv 0.x require. `user` runs a command there.
fn root_is(user: impl Fn(&[&str]) -> Result<String>, genv: &str, root: &str) -> Result<()> {
    let script = format!(
        "PATH=$({genv} root)/bin:$PATH; for name in genv genv-exporter genv-enforcer nvidia-smi docker; do
        type -P $name && test -x $(type -P $name) || exit 1; done; genv root; genv --version"
    );
    let said = user(&["bash", "-c", &script])?;
    let names = ["genv", "genv-exporter", "genv-enforcer", "nvidia-smi", "docker"];
    let paths: String = names.iter().map(|name| format!("{root}/bin/{name}\n")).collect();
    ensure!(said.starts_with(&format!("{paths}{root}\ngenv ")), "{said}");
    Ok(())
}

fn as_user(machine: &Machine, words: &[&str]) -> Result<String> {
    let home = format!("HOME=/home/{USER}");
    let user = ["runuser", "--user", USER, "--", "env", "--chdir", &home[5..], &home];
    machine.run(&[&user[..], words].concat())
}
