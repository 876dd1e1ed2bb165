//! What is typed in the source folder: the place `source`, and cargo's command lines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::documentation::passing::ELSEWHERE;
use genv_tests::documentation::{Page, Place};
use genv_tests::patience::output;
use genv_tests::session::Session;
use genv_tests::shell::{Shell, installed};
use serde_json::Value;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn every_command_for_the_source_folder_succeeds() -> Result<()> {
    for page in Page::all()? {
        let mut bash = Command::new(installed("bash"));
        bash.current_dir(repository());
        let mut session = Session::start(bash, Shell::Bash)?;
        for line in page.typed(Place::Source) {
            let at = page.place_of(&line);
            let command = line.text.split('#').next().unwrap_or_default().trim();
            match ELSEWHERE.iter().find(|(elsewhere, ..)| *elsewhere == command) {
                Some((_, file, text)) => {
                    let runs = fs::read_to_string(repository().join(file))?.contains(text);
                    ensure!(runs, "{at}: {file} does not run it");
                }
                None => drop(session.succeed(&line.text).context(at)?),
            }
        }
        session.finish()?;
    }
    Ok(())
}

#[test]
fn packages_and_tests_that_a_page_names_for_cargo_are_there() -> Result<()> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version=1"]);
    let metadata = output(cargo.current_dir(repository()))?;
    let metadata: Value = serde_json::from_slice(&metadata.stdout)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let is_there = |kind: &str, name: &str| {
        let named = |of: &Value| of["name"] == name;
        let has_target = |package: &Value| {
            let targets = package["targets"].as_array();
            targets.is_some_and(|targets| targets.iter().any(named))
        };
        match kind {
            "-p" => packages.iter().any(named),
            "--test" => packages.iter().any(has_target),
            _ => true,
        }
    };
    Page::judge_spans(
        4,
        |text| text.contains("cargo ") && (text.contains(" -p ") || text.contains(" --test ")),
        |_, text| {
            let words: Vec<&str> = text.split_whitespace().collect();
            let mut pairs = words.windows(2);
            let missing = pairs.find(|pair| !is_there(pair[0], pair[1]));
            Ok(missing.map(|pair| format!("there is no {}", pair[1])))
        },
    )
}
