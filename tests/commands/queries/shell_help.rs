//! Completion in real shells, and manual pages.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Result, ensure};
use genv_tests::process::program;
use genv_tests::shell::installed;
use serde_json::{Value, json};

use crate::queries::lab::{Lab, device, environment};

fn lab() -> Result<Lab> {
    let lab = Lab::new()?;
    lab.write(
        &[
            environment("12496", &json!("training")),
            environment("other", &Value::Null),
            environment("$(touch hacked)", &Value::Null),
            environment("`touch hacked`", &Value::Null),
        ],
        &[device(0, &[]), device(1, &[])],
    )?;
    Ok(lab)
}

/// What a shell prints of a script in which genv is found.
fn run(lab: &Lab, shell: &str, script: &str) -> Result<String> {
    let genv = program("genv")?;
    let folder = genv.parent().unwrap_or(&genv).display();
    let output = lab
        .command(installed(shell))
        .args(["-c", script])
        .env("PATH", format!("{folder}:{}", std::env::var("PATH")?))
        .output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && stderr.is_empty(), "{shell}: {stderr}");
    ensure!(!lab.folder().join("hacked").exists(), "{shell} has run an id");
    Ok(String::from_utf8(output.stdout)?)
}

/// What bash offers for the last of these words.
fn offered(lab: &Lab, words: &[&str]) -> Result<BTreeSet<String>> {
    let (last, words) = (words.last().copied().unwrap_or_default(), words.join("' '"));
    let script = format!(
        "source <(genv completions bash)\n\
         eval \"$(genv shell --init bash)\"\n\
         COMP_WORDS=(genv '{words}') COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMP_TYPE=9\n\
         compopt() {{ :; }}\n\
         _clap_complete_genv genv '{last}' ''\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let printed = run(lab, "bash", &script)?;
    Ok(printed.lines().map(|it| it.trim().to_owned()).collect())
}

fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|it| (*it).to_owned()).collect()
}

#[test]
fn bash_completes_commands_ids_and_indices() -> Result<()> {
    let lab = lab()?;
    let commands = offered(&lab, &[""])?;
    for command in ["activate", "devices", "envs", "free", "who"] {
        ensure!(commands.contains(command), "{commands:?}");
    }
    ensure!(!commands.contains("man"), "{commands:?}");
    // An id that means something to a shell is not offered.
    assert_eq!(offered(&lab, &["devices", "find", "--eid", ""])?, set(&["12496", "other"]));
    assert_eq!(offered(&lab, &["envs", "query", "--eid", "o"])?, set(&["other"]));
    assert_eq!(offered(&lab, &["activate", "--id", "1"])?, set(&["12496"]));
    let indices = offered(&lab, &["who", ""])?;
    ensure!(indices.is_superset(&set(&["0", "1"])), "{indices:?}");
    Ok(())
}

#[test]
fn fish_completes_ids() -> Result<()> {
    let lab = lab()?;
    let script = "genv completions fish | source\ncomplete -C 'genv devices find --eid '";
    let printed = run(&lab, "fish", script)?;
    let ids = printed.lines().map(|line| line.split('\t').next().unwrap_or(line));
    assert_eq!(ids.collect::<BTreeSet<_>>(), BTreeSet::from(["12496", "other"]));
    Ok(())
}

#[test]
fn every_command_has_a_manual_page() -> Result<()> {
    let lab = lab()?;
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
