//! Whether every command line, of whatever program, is run somewhere, or has its reason not to be.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use genv_tests::docker::repository;
use genv_tests::documentation::passing::{ELSEWHERE, Fate, NOT_RUN, Passing};
use genv_tests::documentation::{Page, Place};

#[test]
fn every_command_line_within_a_sentence_is_run_or_has_a_reason_not_to_be() -> Result<()> {
    let passing = Passing::new()?;
    Page::judge_spans(
        200,
        |text| passing.fate(text).is_some(),
        |_, text| {
            Ok((passing.fate(text) == Some(Fate::Unknown)).then(|| {
                "it is run nowhere: type it in a block with a place where that is run, or give its program a place, or \
                 its reason, in tests/src/documentation/passing.rs"
                    .to_owned()
            }))
        },
    )
}

#[test]
fn blocks_that_are_not_run_have_a_reason() -> Result<()> {
    for page in Page::all()? {
        for line in page.typed(Place::Hardware) {
            let mut reasons = NOT_RUN.iter();
            let has_reason = reasons.any(|(start, _)| line.text.starts_with(start));
            ensure!(has_reason, "{}: nothing says why not", page.place_of(&line));
        }
    }
    Ok(())
}

#[test]
fn the_lists_of_what_is_not_run_here_have_nothing_that_no_page_has() -> Result<()> {
    let passing = Passing::new()?;
    let mut used = BTreeSet::new();
    for page in Page::all()? {
        for span in page.spans() {
            if let Some(Fate::Listed(start)) = passing.fate(&span.text) {
                used.insert(start);
            }
        }
        for place in [Place::Hardware, Place::Source] {
            for line in page.typed(place) {
                let starts = NOT_RUN.iter().map(|(start, _)| *start);
                let mut starts = starts.chain(ELSEWHERE.iter().map(|(start, ..)| *start));
                used.extend(starts.find(|start| line.text.starts_with(start)));
            }
        }
    }
    for (start, why) in NOT_RUN {
        ensure!(used.contains(start), "no page has {start}, which {why}");
    }
    for (start, file, text) in ELSEWHERE {
        ensure!(used.contains(start), "no page has {start}");
        let runs = fs::read_to_string(repository().join(file)).with_context(|| start.to_owned())?;
        ensure!(runs.contains(text), "{start}: {file} does not have {text}");
    }
    Ok(())
}
