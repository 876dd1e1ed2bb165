//! `genv enforce`

use std::ffi::OsString;

use anyhow::Context as _;
use clap::Args;

use crate::handover;

/// Enforce rules on the use of GPUs: run genv-enforcer in place of genv, with the same flags.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Enforce {
    /// Flags of 'genv-enforcer run', or those of genv 1.4.3's 'genv enforce'.
    #[arg(value_name = "FLAG", trailing_var_arg = true, allow_hyphen_values = true)]
    flags: Vec<OsString>,
}

impl Enforce {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        self.run_for_hosts(Vec::new())
    }

    /// Whether the flags ask for help.
    pub(super) fn asks_for_help(&self) -> bool {
        self.flags.iter().any(|flag| flag == "--help" || flag == "-h")
    }

    /// Runs genv-enforcer for other hosts. `hosts`: flags of genv-enforcer that name them.
    pub(super) fn run_for_hosts(self, hosts: Vec<OsString>) -> anyhow::Result<()> {
        // Without a rule file the defaults of genv 1.4.3 apply.
        let configured = |flag: &OsString| {
            let flag = flag.to_string_lossy();
            flag == "--config" || flag.starts_with("--config=")
        };
        let mut flags = self.flags;
        if !flags.iter().any(configured) {
            flags.insert(0, "--genv-1".into());
        }
        flags.splice(0..0, hosts);
        exec_enforcer("enforce rules", "run", flags)
    }
}

/// Replaces this program by genv-enforcer with this subcommand.
pub(super) fn exec_enforcer(task: &str, subcommand: &str, flags: Vec<OsString>) -> anyhow::Result<()> {
    let enforcer = handover::find("genv-enforcer").with_context(|| {
        format!("cannot {task}: genv-enforcer is not installed. Put it next to genv or in a folder of PATH")
    })?;
    let subcommand = OsString::from(subcommand);
    handover::exec_program(&enforcer, std::iter::once(subcommand).chain(flags))
}
