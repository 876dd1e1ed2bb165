//! A user's shell on a machine with eight GPUs: the place `lab`, in bash, zsh and fish.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::docker::repository;
use genv_tests::documentation::{PORT_HERE, Page, Place};
use genv_tests::machine::put;
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience::{DRIVER_PATIENCE, output};
use genv_tests::process::{program, write_script};
use genv_tests::session::Session;
use genv_tests::shell::{Shell, installed};
use genv_tests::tools;
use tempfile::TempDir;

const DEVICES: &str = "{name: NVIDIA A100-SXM4-40GB, count: 8, memory: 40gi}";

const TRAIN: &str = "import os\nprint('training on', os.environ['CUDA_VISIBLE_DEVICES'])\n";

/// A user's home and programs, and genv's state, all new.
struct Lab {
    folder: TempDir,
    simulation: Simulation,
}

impl Lab {
    fn new() -> Result<Self> {
        // Beside the programs, so that they need no copy.
        let folder = tempfile::tempdir_in(tools::build_folder())?;
        let lab =
            Self { folder, simulation: Simulation::new(&format!("version: 1\nhosts:\n- devices: [{DEVICES}]\n")) };
        let shims = lab.at("lib/genv/shims");
        fs::create_dir_all(lab.project())?;
        for name in ["genv", "genv-enforcer"] {
            put(&program(name)?, &lab.at("bin").join(name))?;
        }
        put_exporter(&lab.at("bin/genv-exporter"))?;
        for name in ["nvidia-smi", "docker", "podman"] {
            put(&program("genv-shim")?, &shims.join(name))?;
        }
        for (tool, name, called) in [
            ("nvidia-smi-550", "nvidia-smi", "nvidia-smi"),
            ("prometheus-3", "prometheus", "prometheus"),
            ("prometheus-3", "promtool", "promtool"),
            ("alertmanager-sid", "alertmanager-here", "alertmanager"),
        ] {
            symlink(tools::program(tool, name), lab.at("bin").join(called))?;
        }
        Ok(lab)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn project(&self) -> PathBuf {
        self.at("home/project")
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = self.simulation.command(program);
        let library = self.simulation.library();
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.at("bin").display());
        let scenario = self.simulation.scenario();
        let libraries = self.simulation.library_folder();
        command
            .env_clear()
            .env("GENV_SCENARIO", scenario)
            .env("LD_LIBRARY_PATH", libraries)
            .env("GENV_NVML_LIBRARY", library)
            .env("GENV_TMPDIR", self.at("state"))
            .env("HOME", self.at("home"))
            .env("LANG", "C.UTF-8")
            .env("PATH", path)
            // Of root, `pause` and `waive` would reach an enforcer of this machine.
            .env("STATE_DIRECTORY", self.at("enforcer"))
            .env("TERM", "dumb")
            .envs([DRIVER_PATIENCE])
            .current_dir(self.project());
        command
    }

    fn session(&self, shell: Shell) -> Result<Session> {
        Session::start(self.command(&installed(shell.name())), shell)
    }

    fn lay_out(&self, text: &str) -> Result<()> {
        let write = |name: &str, text: &str| fs::write(self.project().join(name), text);
        fs::create_dir(self.at("enforcer"))?;
        write("train.py", TRAIN)?;
        for (section, rules, tests) in [
            ("## A first policy", "policy.yaml", "policy_test.yaml"),
            ("## Tests of rules", "enforcer.yaml", "rules_test.yaml"),
        ] {
            for text in documented_yaml(section)? {
                let name = if text.contains("\ntests:\n") { tests } else { rules };
                write(name, &text)?;
            }
        }
        for name in ["prometheus.yml", "rules", "targets"] {
            let shipped = repository().join("prometheus").join(name);
            symlink(shipped, self.project().join(name))?;
        }
        if text.contains(".jsonl") {
            let genv = self.at("bin/genv");
            let mut snapshot = self.command(&genv);
            let printed = output(snapshot.args(["snapshot"]))?;
            ensure!(printed.status.success(), "{printed:?}");
            let line = String::from_utf8(printed.stdout)?;
            for name in ["monday.jsonl", "gpu01.jsonl", "gpu02.jsonl"] {
                write(name, &line)?;
            }
        }
        if text.contains("alertmanager") {
            // Where Debian's Alertmanager is installed, they are below /usr/share.
            let here = tools::folder("alertmanager-sid").join("files/usr/share/prometheus/alertmanager");
            for template in fs::read_dir(here)? {
                let template = template?;
                symlink(template.path(), self.project().join(template.file_name()))?;
            }
        }
        Ok(())
    }
}

/// Installs genv-exporter here, with [`PORT_HERE`] as its default port.
fn put_exporter(to: &Path) -> Result<()> {
    let program = program("genv-exporter")?;
    let program = program.display();
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *\" publish \"* | *--web.listen-address* | *--web.systemd-socket*) ;;\n\
         *) set -- \"$@\" --web.listen-address=127.0.0.1:{} ;; esac\nexec {program} \"$@\"\n",
        *PORT_HERE
    );
    write_script(to, &script)
}

/// The rules and their tests that a section of docs/enforcement.md has: its first two blocks of YAML.
fn documented_yaml(section: &str) -> Result<[String; 2]> {
    let pages = Page::all()?;
    let page = pages.iter().find(|page| page.name == "docs/enforcement.md");
    let (_, text) = page
        .and_then(|page| page.text.split_once(&format!("\n{section}\n")))
        .with_context(|| format!("no section {section}"))?;
    let mut blocks = text.split("```yaml\n").skip(1);
    let mut next = || {
        let block = blocks.next().and_then(|rest| rest.split_once("```"));
        block.map(|(block, _)| block.to_owned())
    };
    next().zip(next()).map(Into::into).with_context(|| format!("{section} has no two files"))
}

#[test]
fn every_command_for_a_users_shell_does_what_the_page_says() -> Result<()> {
    let shells = [(Place::Lab, Shell::Bash), (Place::LabZsh, Shell::Zsh), (Place::LabFish, Shell::Fish)];
    for (place, shell) in shells {
        Page::each_with(place, |page| {
            let lab = Lab::new()?;
            lab.lay_out(&page.text)?;
            page.follow(place, lab.session(shell)?, |_| Ok(()))
        })?;
    }
    Ok(())
}
