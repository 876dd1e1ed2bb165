//! The table of `genv devices` on a user's terminal, in short.

use anyhow::{Context as _, Result, ensure};
use genv_tests::patience::output;

use crate::diary::person::Person;
use crate::diary::stage::Stage;

/// The devices as this user sees them: `0 ann train 2.0 until | 1 free | 2 ben used, not held 2.0 +1 | 3 free`. For each
/// device the user and the environment, the memory in use in GiB, `until` if it has the end of a lease, and the number
/// of processes outside.
pub(crate) fn devices(stage: &Stage, person: &Person) -> Result<String> {
    let line = "stty cols 120; genv devices --color never";
    let words = ["script", "-qec", line, "/dev/null"];
    let output = output(&mut stage.command(person.uid, person.name, &words))?;
    let shown = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    ensure!(output.status.success(), "{shown}");
    in_short(&shown).with_context(|| shown.clone())
}

fn in_short(shown: &str) -> Result<String> {
    let mut lines = shown.lines();
    let header = lines.next().context("no line")?;
    let column = |name: &str| header.find(name).with_context(|| format!("no {name}"));
    let (user, environment, since) = (column("USER")?, column("ENVIRONMENT")?, column("SINCE")?);
    let (until, memory) = (header.find("UNTIL"), column("MEMORY GiB")?);
    let mut devices = Vec::new();
    for line in lines.filter(|line| line.starts_with(|first: char| first.is_ascii_digit())) {
        let cell = |from: usize, to: usize| -> String {
            let characters = line.chars().skip(from).take(to - from);
            characters.collect::<String>().trim().to_owned()
        };
        let rest = cell(memory, line.chars().count());
        let used = rest.split('/').next().unwrap_or_default().trim();
        let outside = line.split_whitespace().next_back().unwrap_or_default();
        let has_end = until.is_some_and(|until| !cell(until, memory).is_empty());
        let mut parts = vec![
            cell(0, 3),
            cell(user, environment),
            cell(environment, since),
            if used == "0.0" { String::new() } else { used.to_owned() },
            if has_end { "until".to_owned() } else { String::new() },
            if outside == "0" { String::new() } else { format!("+{outside}") },
        ];
        parts.retain(|part| !part.is_empty());
        devices.push(parts.join(" "));
    }
    // What the driver has not said in time is told below the table, and asked again.
    Ok(devices.join(" | "))
}
