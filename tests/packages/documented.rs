//! root's shell on a machine with systemd, where the packages lie in the current folder: the place `machine` of the pages.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result};
use genv_tests::documentation::{Page, Place};
use genv_tests::machine::SCENARIO;
use genv_tests::session::Session;
use genv_tests::shell::Shell;

use crate::{DAEMONS, DEB, RPM, TARBALL, boot, built, install};

/// The current folder, with the packages under their own names.
const FOLDER: &str = "/packages/named";

/// A terminal is needed by it, and there is none.
const IN_A_TERMINAL: &str = "systemctl() {
    if [ \"$1\" = edit ]; then script --quiet --return --command \"systemctl $*\" /dev/null
    else command systemctl \"$@\"; fi
}";

/// What `systemctl edit` opens: what is in the file is replaced by what the page shows below.
const EDITOR: &str = "/usr/local/bin/editor";
const TYPED: &str = "/run/typed";

const ASSUME_YES: &str = "/etc/apt/apt.conf.d/yes";

/// What the page shows to be typed into the editor that a line opens.
fn shown_below(page: &Page, line: usize) -> String {
    let blocks = page.blocks().into_iter();
    let mut below = blocks.filter(|block| block.line > line && block.info == "ini");
    below.next().map(|block| block.text).unwrap_or_default()
}

fn follow(page: &Page) -> Result<()> {
    let machine = boot()?;
    machine.run(&["mkdir", FOLDER])?;
    for (path, ending) in [(DEB, "deb"), (RPM, "rpm"), (TARBALL, "tar.gz")] {
        let name = built(ending)?;
        let name = name.file_name().context("a name")?.to_string_lossy().into_owned();
        machine.run(&["ln", "--symbolic", path, &format!("{FOLDER}/{name}")])?;
    }
    let mut lines = page.typed(Place::Machine).into_iter();
    if !lines.any(|line| line.text.contains(" install ")) {
        install(&machine, DEB)?;
    }
    let has = |command| page.typed(Place::Machine).iter().any(|line| line.text.starts_with(command));
    if has("systemctl status ") && !has("systemctl enable ") {
        // It is about daemons that run.
        machine.run(&["systemctl", "enable", "--now", DAEMONS[0], DAEMONS[1]])?;
    }
    // What asks whether to go on is told to.
    machine.write(ASSUME_YES, "APT::Get::Assume-Yes \"true\";\n")?;
    machine.write(EDITOR, &format!("#!/bin/sh\ncat {TYPED} >\"$1\"\n"))?;
    fs::set_permissions(machine.path(EDITOR), fs::Permissions::from_mode(0o755))?;
    let shell = ["env", &format!("--chdir={FOLDER}"), "HOME=/root", "DEBIAN_FRONTEND=noninteractive", "TERM=dumb"];
    let mut command = machine.command(&shell);
    command.args([&format!("GENV_SCENARIO=/{SCENARIO}"), &format!("SYSTEMD_EDITOR={EDITOR}"), "bash"]);
    let mut session = Session::start(command, Shell::Bash)?.taking_time();
    session.succeed(IN_A_TERMINAL)?;
    page.follow(Place::Machine, session, |line| {
        if line.text.starts_with("systemctl edit ") {
            machine.write(TYPED, &shown_below(page, line.number))?;
        }
        Ok(())
    })
}

#[test]
fn every_command_for_a_machine_does_what_the_page_says() -> Result<()> {
    Page::each_with(Place::Machine, follow)
}
