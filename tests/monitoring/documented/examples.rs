//! The examples of help texts succeed. Those about other hosts are run where there are some.

use anyhow::{Context as _, Result, ensure};
use genv_tests::documentation::examples::Examples;
use genv_tests::documentation::passing::NOT_RUN;
use genv_tests::documentation::{Line, with_port_here};
use genv_tests::shell::Shell;

use crate::documented::lab::Lab;

/// What is another file, environment or process here.
const INSTEAD: [(&str, &str); 4] =
    [("/etc/genv/", ""), ("/etc/genv", "."), ("12496", "$GENV_ENVIRONMENT_ID"), ("4711", "$$")];

/// What goes on for as long as the lines below it need it, or for ever.
const GOES_ON: [&str; 2] =
    ["genv-exporter --gpu.source=simulated --interval=1s", "genv snapshot --follow > monday.jsonl"];

/// What is about a machine on which an enforcer runs.
const OF_ENFORCER: [&str; 2] = ["genv-enforcer explain ", WHY];

/// What asks the enforcer of the machine, which is another one here.
const WHY: &str = "genv why";

/// What goes on until somebody has seen enough.
const ENDLESS: &str = "genv snapshot --follow --interval=1s | ";

/// A line as it is typed here.
fn typed(line: &Line) -> String {
    let mut typed = with_port_here(&line.text);
    for (example, here) in INSTEAD {
        typed = typed.replace(example, here);
    }
    if line.text == WHY {
        typed += " --state-directory \"$STATE_DIRECTORY\"";
    }
    if GOES_ON.contains(&&*line.text) {
        typed += " &";
    }
    if line.text.starts_with(ENDLESS) {
        typed = format!("timeout 2 {typed}");
    }
    typed
}

fn follow(examples: &Examples) -> Result<()> {
    let texts: Vec<&str> = examples.lines.iter().map(|line| &*line.text).collect();
    for shell in [Shell::Bash, Shell::Fish] {
        let of_fish = |line: &&Line| line.text.ends_with("| source");
        let lines: Vec<&Line> = examples
            .typed()
            .filter(|line| of_fish(line) == (shell == Shell::Fish))
            .filter(|line| !NOT_RUN.iter().any(|(start, _)| line.text.starts_with(start)))
            .collect();
        let Some(first) = lines.first() else {
            continue;
        };
        let lab = Lab::new()?;
        lab.lay_out(&texts.join("\n"))?;
        let mut session = lab.session(shell)?;
        session.succeed(shell.setup())?;
        if !first.text.starts_with("genv activate ") {
            session.succeed("genv activate --gpus 1")?;
        }
        if OF_ENFORCER.iter().any(|start| first.text.starts_with(start)) {
            session.succeed("genv-enforcer run --config enforcer.yaml &")?;
        }
        for line in lines {
            let done = session.succeed(&typed(line));
            done.with_context(|| Examples::place_of(line))?;
        }
        session.finish()?;
    }
    Ok(())
}

#[test]
fn every_example_of_a_help_text_succeeds() -> Result<()> {
    let _alone = crate::documented::alone()?;
    let mut faults = Vec::new();
    for examples in Examples::all()? {
        if !examples.is_of_hosts() {
            faults.extend(follow(&examples).err().map(|fault| format!("{fault:#}")));
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n\n"));
    Ok(())
}
