//! Manual pages.

use std::fs;

use anyhow::{Result, ensure};

use crate::queries::lab::Lab;

#[test]
fn every_command_has_a_manual_page() -> Result<()> {
    let lab = Lab::new()?;
    let folder = lab.folder().join("man");
    lab.genv(&format!("man {}", folder.display()))?;
    let help = lab.genv("--help")?;
    let listed = help.lines().skip_while(|line| !line.starts_with("Commands:"));
    let commands = listed.skip(1).take_while(|line| line.starts_with("  "));
    let names = commands.filter_map(|line| {
        let name = line.strip_prefix("  ")?;
        name.split_whitespace().next().filter(|_| !name.starts_with(' '))
    });
    let names: Vec<&str> = names.collect();
    ensure!(names.len() > 15, "{names:?}");
    for name in names.iter().filter(|name| **name != "help") {
        let page = fs::read_to_string(folder.join(format!("genv-{name}.1")))?;
        ensure!(page.contains(".SH SYNOPSIS") && page.contains(".SH OPTIONS"), "{name}: {page}");
    }
    ensure!(fs::read_to_string(folder.join("genv.1"))?.contains(".TH genv 1"));
    Ok(())
}
