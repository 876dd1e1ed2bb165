//! A user's shell from which three hosts can be reached over SSH: the place `hosts`.

use std::fs;

use anyhow::Result;
use genv_tests::documentation::{Page, Place};
use genv_tests::root;
use genv_tests::session::Session;
use genv_tests::shell::{Account, Shell, search_path};
use genv_tests::ssh::SshClient;
use genv_tests::tools::build_folder;

use crate::remote_commands::support::Host;

const NAMES: [&str; 3] = ["gpu01", "gpu02", "gpu03"];

const DEVICES: &str = "{name: NVIDIA A100-SXM4-80GB, count: 4, memory: 80gi}";

/// The rules that are packaged.
const RULES: &str = include_str!("../../packaging/enforcer.yaml");

fn follow(page: &Page) -> Result<()> {
    let account = Account::new()?;
    let hosts = NAMES.map(|_| Host::with(DEVICES, "", &[], Some(Shell::Bash)));
    let hosts: Vec<Host> = hosts.into_iter().collect::<Result<_>>()?;
    let servers: Vec<_> = NAMES.into_iter().zip(hosts.iter().map(|host| &host.server)).collect();
    let client = SshClient::new(&servers)?;
    fs::write(account.home().join("hosts"), "gpu[01-03]\n")?;
    fs::write(account.home().join("enforcer.yaml"), RULES)?;
    let mut bash = account.command("bash")?;
    // All programs are there.
    let system = search_path()?;
    bash.env("PATH", format!("{}:{}", build_folder().display(), system.display()));
    client.on_path(&mut bash)?;
    page.follow(Place::Hosts, Session::start(bash, Shell::Bash)?, |_| Ok(()))
}

#[test]
fn every_command_about_other_hosts_does_what_the_page_says() -> Result<()> {
    root::apart(|| {
        if rustix::process::geteuid().is_root() {
            // The ports that pages name are free there.
            root::own_network()?;
        }
        Page::each_with(Place::Hosts, follow)
    })
}
