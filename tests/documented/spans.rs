//! Command lines within sentences and tables: the programs know their commands and flags, and take those that are complete.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::documentation::{Line, Page};
use genv_tests::patience::output;
use genv_tests::process::program;
use genv_tests::shell::Shell;

use crate::lab::Lab;
use crate::synopsis::{Helps, stands_for_another};

/// Programs whose command lines are looked at.
const PROGRAMS: [&str; 3] = ["genv", "genv-exporter", "genv-enforcer"];

/// What begins with a program's name, and is said by one.
const SAID: [&str; 2] = [
    "genv : Depends: libc6",
    "genv is not installed: its state directory does not exist",
];

/// What only genv 1.4.3 has.
const OF_GENV_1: [&str; 2] = ["genv llm", "genv remote llm"];

/// What pages tell to be refused, with the code that they tell.
const REFUSED: [(&str, i32); 1] = [("genv config gpus x", 2)];

/// What goes on until it is ended, and listens nowhere.
const ENDLESS: [&str; 1] = ["genv snapshot --follow"];

/// Wrong usage.
const USAGE: i32 = 2;

/// The command lines of a page that begin with this, without variables in front.
fn lines(page: &Page, program: &str) -> Vec<Line> {
    let spans = page.spans().into_iter().map(|mut span| {
        while let Some((word, rest)) = span.text.split_once(' ')
            && word.contains('=')
            && word.starts_with(|first: char| first.is_ascii_uppercase())
        {
            span.text = rest.to_owned();
        }
        span
    });
    let begins = |span: &Line| {
        span.text.split_whitespace().next() == Some(program)
            && !OF_GENV_1.contains(&&*span.text)
            && !SAID.iter().any(|said| span.text.starts_with(said))
    };
    spans.filter(begins).collect()
}

/// Whether a line can be typed as it is: no word of it stands for another, it says more than which command is meant, and it
/// names no file of a machine.
fn is_complete(line: &str) -> bool {
    let is_name = |word: &str| {
        word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-')
    };
    !line.contains("/etc/")
        && !line.split_whitespace().any(stands_for_another)
        && !line.split_whitespace().all(is_name)
}

#[test]
fn programs_know_every_command_and_flag_that_a_page_names() -> Result<()> {
    let helps = Helps::new(|path: &[String]| {
        let mut command = Command::new(program(&path[0])?);
        let printed = output(command.args(&path[1..]).arg("--help"))?;
        Ok(printed
            .status
            .success()
            .then(|| String::from_utf8_lossy(&printed.stdout).into_owned()))
    });
    let (mut faults, mut known) = (Vec::new(), 0);
    for page in Page::all()? {
        for name in PROGRAMS {
            for line in lines(&page, name) {
                known += 1;
                let fault = helps.know(&line.text, name).err();
                faults.extend(fault.map(|fault| {
                    format!("{}:{}: `{}`: {fault}", page.name, line.number, line.text)
                }));
            }
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    ensure!(known > 100, "only {known} command lines");
    Ok(())
}

#[test]
fn command_lines_within_sentences_are_no_wrong_usage() -> Result<()> {
    let _alone = crate::alone();
    let mut faults = Vec::new();
    for page in Page::all()? {
        for line in PROGRAMS.iter().flat_map(|name| lines(&page, name)) {
            if !is_complete(&line.text) {
                continue;
            }
            let shell = if line.text.ends_with("| source") {
                Shell::Fish
            } else {
                Shell::Bash
            };
            let lab = Lab::new()?;
            lab.lay_out(&page)?;
            let mut session = lab.session(shell)?;
            session.succeed(shell.setup())?;
            session.succeed("genv activate --gpus 1")?;
            let once = if ENDLESS.contains(&&*line.text) {
                " | head -n 1"
            } else {
                ""
            };
            let (code, printed) = session.run(&format!("{}{once}", line.text))?;
            let refused = REFUSED.iter().find(|(refused, _)| *refused == line.text);
            let fine = refused.map_or(code != USAGE && code < 126, |(_, wanted)| code == *wanted);
            if !fine {
                faults.push(format!(
                    "{}:{}: `{}` ended with {code}: {printed}",
                    page.name, line.number, line.text
                ));
            }
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

#[test]
fn scripts_that_a_page_names_are_there_and_know_their_words() -> Result<()> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut faults = Vec::new();
    for page in Page::all()? {
        for line in page.spans() {
            let mut words = line.text.split_whitespace();
            let Some(script) = words.next().filter(|word| word.starts_with("scripts/")) else {
                continue;
            };
            let at = format!("{}:{}: `{}`", page.name, line.number, line.text);
            let help =
                output(Command::new(repository.join(script)).arg("--help")).context(at.clone())?;
            let help = String::from_utf8(help.stdout)?;
            let mut unknown = words.filter(|word| {
                !stands_for_another(word) && *word != "--help" && !help.contains(word)
            });
            faults.extend(
                unknown
                    .next()
                    .map(|word| format!("{at}: its --help knows no {word}")),
            );
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

#[test]
fn units_that_a_page_names_for_systemd_are_packaged() -> Result<()> {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd");
    let mut faults = Vec::new();
    let mut known = 0;
    for page in Page::all()? {
        for line in page
            .spans()
            .into_iter()
            .filter(|line| line.text.starts_with("systemctl "))
        {
            for unit in line
                .text
                .split_whitespace()
                .filter(|word| word.starts_with("genv-"))
            {
                known += 1;
                let files = [unit.to_owned(), format!("{unit}.service")];
                if !files.iter().any(|file| units.join(file).exists()) {
                    faults.push(format!(
                        "{}:{}: `{}`: there is no {unit}",
                        page.name, line.number, line.text
                    ));
                }
            }
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    ensure!(known > 2, "only {known} units");
    Ok(())
}
