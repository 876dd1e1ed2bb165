//! Command lines within sentences and tables: the programs know their commands and flags, and take those that are complete.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::documentation::Page;
use genv_tests::documentation::examples::Examples;
use genv_tests::documentation::passing::{bare, stands_for_another};
use genv_tests::documentation::synopsis::Helps;
use genv_tests::patience::output;
use genv_tests::process::program;
use genv_tests::shell::Shell;

use crate::documented::lab::Lab;

/// Programs whose command lines are looked at.
const PROGRAMS: [&str; 3] = ["genv", "genv-exporter", "genv-enforcer"];

/// What begins with a program's name, and is said by one.
const SAID: [&str; 2] = ["genv : Depends: libc6", "genv is not installed: its state directory does not exist"];

/// What only genv 1.4.3 has.
const OF_GENV_1: [&str; 2] = ["genv llm", "genv remote llm"];

/// What pages tell to be refused, with the code that they tell.
const REFUSED: [(&str, i32); 1] = [("genv config gpus x", 2)];

/// What goes on until it is ended, and listens nowhere.
const ENDLESS: [&str; 1] = ["genv snapshot --follow"];

/// Wrong usage.
const USAGE: i32 = 2;

/// The program whose command line this is.
fn program_of(text: &str) -> Option<&'static str> {
    let line = bare(text);
    let named = line.split_whitespace().next();
    let ours = !OF_GENV_1.contains(&line) && !SAID.iter().any(|said| line.starts_with(said));
    let program = PROGRAMS.into_iter().find(|name| named == Some(name));
    program.filter(|_| ours)
}

/// Whether a line can be typed as it is: no word of it stands for another, it says more than which command is meant, and it
/// names no file of a machine.
fn is_complete(line: &str) -> bool {
    let is_name = |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-');
    !line.contains("/etc/") && !line.split_whitespace().any(stands_for_another) && !line.split_whitespace().all(is_name)
}

/// What our programs tell of themselves.
fn helps() -> Helps<impl Fn(&[String]) -> Result<Option<String>>> {
    Helps::new(|path: &[String]| {
        let mut command = Command::new(program(&path[0])?);
        let printed = output(command.args(&path[1..]).arg("--help"))?;
        Ok(printed.status.success().then(|| String::from_utf8_lossy(&printed.stdout).into_owned()))
    })
}

#[test]
fn programs_know_every_command_and_flag_of_the_examples_in_help_texts() -> Result<()> {
    let helps = helps();
    let mut known = 0;
    for examples in Examples::all()? {
        for line in &examples.lines {
            // What stands within quotes or parentheses as parts of a pipe: `eval "$(a)"` as `eval | | a`.
            let parts = line.text.replace(['"', '(', ')'], " | ");
            let parts = parts.replace(['<', '$'], " ");
            for program in PROGRAMS {
                let fault = helps.know(&parts, program);
                fault.with_context(|| Examples::place_of(line))?;
                known += usize::from(parts.split_whitespace().any(|word| word == program));
            }
        }
    }
    ensure!(known > 30, "only {known} command lines");
    Ok(())
}

#[test]
fn programs_know_every_command_and_flag_that_a_page_names() -> Result<()> {
    let helps = helps();
    Page::judge_spans(
        101,
        |text| program_of(text).is_some(),
        |_, text| {
            let program = program_of(text).context("no program")?;
            let fault = helps.know(bare(text), program).err();
            Ok(fault.map(|fault| fault.to_string()))
        },
    )
}

#[test]
fn command_lines_within_sentences_are_no_wrong_usage() -> Result<()> {
    let _alone = crate::documented::alone()?;
    Page::judge_spans(
        1,
        |text| program_of(text).is_some() && is_complete(bare(text)),
        |page, text| {
            let line = bare(text);
            let shell = if line.ends_with("| source") { Shell::Fish } else { Shell::Bash };
            let lab = Lab::new()?;
            lab.lay_out(&page.text)?;
            let mut session = lab.session(shell)?;
            session.succeed(shell.setup())?;
            session.succeed("genv activate --gpus 1")?;
            let once = if ENDLESS.contains(&line) { " | head -n 1" } else { "" };
            let (code, printed) = session.run(&format!("{line}{once}"))?;
            let refused = REFUSED.iter().find(|(refused, _)| *refused == line);
            let fine = refused.map_or(code != USAGE && code < 126, |(_, wanted)| code == *wanted);
            Ok((!fine).then(|| format!("ended with {code}: {printed}")))
        },
    )
}

#[test]
fn scripts_that_a_page_names_are_there_and_know_their_words() -> Result<()> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    Page::judge_spans(
        1,
        |text| text.starts_with("scripts/"),
        |_, text| {
            let mut words = text.split_whitespace();
            let script = repository.join(words.next().context("no script")?);
            let help = output(Command::new(script).arg("--help"))?;
            let help = String::from_utf8(help.stdout)?;
            let unknown = words.find(|word| !stands_for_another(word) && *word != "--help" && !help.contains(word));
            Ok(unknown.map(|word| format!("its --help knows no {word}")))
        },
    )
}

#[test]
fn units_that_a_page_names_for_systemd_are_packaged() -> Result<()> {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd");
    Page::judge_spans(
        3,
        |text| text.starts_with("systemctl ") && text.contains(" genv-"),
        |_, text| {
            let mut named = text.split_whitespace().filter(|word| word.starts_with("genv-"));
            let missing = named.find(|unit| {
                let files = [(*unit).to_owned(), format!("{unit}.service")];
                !files.iter().any(|file| units.join(file).exists())
            });
            Ok(missing.map(|unit| format!("there is no {unit}")))
        },
    )
}
