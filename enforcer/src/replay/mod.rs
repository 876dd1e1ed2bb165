//! `genv-enforcer replay`: what rules would have done in the time of a recording, and when.
//!
//! Every moment of the recording is planned by the same function as in the daemon, by a clock that the snapshots turn.
//! Nothing is done and nothing changes the recording: what would have been ended goes on in it, as in a dry run.

mod course;
mod event;
mod plot;
mod recording;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, IsTerminal as _, Write};

use anyhow::{Context as _, anyhow};
use genv_core::progress::ProgressLine;
use jiff::tz::TimeZone;
use serde::Serialize;

use crate::SilentExit;
use crate::config::Config;
use crate::flags::ReplayFlags;
use crate::groups::{self, Groups, UserGroups};
use crate::output::print_note;
use crate::plan::words;
use course::{Course, Said};
use event::{RuleSummary, time};
use plot::Plot;
use recording::{Recording, RecordingLine};

/// Lines that cannot be read are told one by one up to so many.
const TOLD_NOTES: usize = 20;

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    Text,
    /// Text with a plot at the end, for a terminal.
    Plotted,
}

/// What came of all of it.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    event: &'static str,
    version: u32,
    recording: &'a str,
    from_seconds: Option<f64>,
    until_seconds: Option<f64>,
    hosts: Vec<String>,
    snapshots: u64,
    damaged_lines: u64,
    cycles: u64,
    rules: &'a BTreeMap<String, RuleSummary>,
    /// Violations that were told and not over at the end.
    open: usize,
    /// The most at once, by host.
    unknown_processes: &'a BTreeMap<String, u64>,
    /// When the breaker would have tripped.
    breaker_seconds: Option<f64>,
}

/// The command.
pub(crate) fn replay(flags: &ReplayFlags) -> anyhow::Result<()> {
    let config = Config::load(&flags.config)?;
    let recording = Recording::open(&flags.recording)?;
    let mut groups = Groups::start().map_err(|error| {
        anyhow!("cannot start the thread that asks for groups: {error}. Allow more processes (ulimit -u)")
    })?;
    let matter = groups::are_needed(&config);
    let mut groups_of = |users: &BTreeSet<String>| {
        if matter { groups.of(users) } else { UserGroups::default() }
    };
    let progress = ProgressLine::on_stderr(true);
    let stdout = io::stdout().lock();
    let is_terminal = stdout.is_terminal();
    // A terminal shows each event at once, above the progress.
    let mut out: Box<dyn Write> =
        if is_terminal { Box::new(progress.above(stdout)) } else { Box::new(BufWriter::new(stdout)) };
    let form = match (flags.json, is_terminal) {
        (true, _) => Form::Json,
        (false, false) => Form::Text,
        (false, true) => Form::Plotted,
    };
    let mut note = |note: &str| {
        progress.clear();
        print_note(note);
    };
    let played = play(recording, &config, &mut groups_of, &mut out, &mut note, form, &progress);
    let is_whole = match played {
        // Whoever read the output has seen enough, as `head` has.
        Err(error) if is_broken_pipe(&error) => return Ok(()),
        played => played?,
    };
    if is_whole { Ok(()) } else { Err(SilentExit.into()) }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Plays a recording to its end. Returns whether every line of it could be read.
fn play(
    mut recording: Recording,
    config: &Config,
    groups: &mut dyn FnMut(&BTreeSet<String>) -> UserGroups,
    out: &mut dyn Write,
    note: &mut dyn FnMut(&str),
    form: Form,
    progress: &ProgressLine,
) -> anyhow::Result<bool> {
    let mut notes = Notes { note, told: 0 };
    let zone = &config.timezone;
    let mut plot = Plot::default();
    let mut say = |said: Said| -> anyhow::Result<()> {
        match said {
            Said::Note(text) => notes.print_note(&text),
            Said::Event(event) if form == Form::Json => {
                serde_json::to_writer(&mut *out, &event).map_err(io::Error::from)?;
                out.write_all(b"\n")?;
            }
            Said::Event(event) => {
                if form == Form::Plotted {
                    plot.add(&event);
                }
                out.write_all(event.text(zone).as_bytes())?;
            }
        }
        Ok(())
    };
    let mut course = Course::new(config, groups, &mut say);
    let (mut snapshots, mut damaged_lines) = (0_u64, 0_u64);
    let mut broken = None;
    loop {
        progress.show_sometimes(|| progress_words(recording.percent(), recording.line, course.until_seconds, zone));
        match recording.next() {
            Ok(None) => break,
            Ok(Some(RecordingLine::Snapshot(snapshot))) => {
                snapshots += 1;
                course.take(recording.line, *snapshot)?;
            }
            Ok(Some(RecordingLine::Damaged(why))) => {
                damaged_lines += 1;
                let line = recording.line;
                course.note(format!("line {line} is left out: {why}"))?;
            }
            Err(error) => {
                broken = Some(error);
                break;
            }
        }
    }
    course.cycle()?;
    if snapshots == 0 {
        let name = recording.name();
        return Err(broken.unwrap_or_else(|| {
            let why = if damaged_lines == 0 { "it is empty" } else { "none of its lines is a snapshot" };
            anyhow!("cannot replay {name}: {why}. Record with 'genv snapshot --follow > FILE'")
        }));
    }
    let summary = Summary {
        event: "summary",
        version: 1,
        recording: recording.name(),
        from_seconds: course.from_seconds,
        until_seconds: course.until_seconds,
        hosts: course.hostnames(),
        snapshots,
        damaged_lines,
        cycles: course.cycles,
        rules: &course.rules,
        open: course.still_open(),
        unknown_processes: &course.unknown_processes,
        breaker_seconds: course.tripped().map(|(at, _)| at),
    };
    let (from_seconds, until_seconds) = (summary.from_seconds, summary.until_seconds);
    let text = match form {
        Form::Json => serde_json::to_string(&summary).context("cannot write the summary")? + "\n",
        Form::Text | Form::Plotted => summary.text(config),
    };
    let plotted = from_seconds.zip(until_seconds).map(|(from, until)| plot.text(from, until, zone));
    let text = text + &plotted.unwrap_or_default();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    notes.end();
    match broken {
        Some(error) => Err(error.context("the recording was replayed up to its damage")),
        None => Ok(damaged_lines == 0),
    }
}

fn progress_words(percent: Option<u64>, line: u64, until_seconds: Option<f64>, zone: &TimeZone) -> String {
    let percent = percent.map(|percent| format!("{percent} % of the recording, "));
    let until = until_seconds.map(|seconds| format!(", {}", time(seconds, zone)));
    format!("genv-enforcer: {}line {line}{}", percent.unwrap_or_default(), until.unwrap_or_default())
}

/// Notes, up to a number.
struct Notes<'a> {
    note: &'a mut dyn FnMut(&str),
    told: usize,
}

impl Notes<'_> {
    fn print_note(&mut self, text: &str) {
        self.told += 1;
        if self.told <= TOLD_NOTES {
            (self.note)(text);
        }
    }

    fn end(&mut self) {
        if let Some(more) = self.told.checked_sub(TOLD_NOTES).filter(|more| *more > 0) {
            (self.note)(&format!("{more} more notes of this kind are not shown"));
        }
    }
}

impl Summary<'_> {
    fn text(&self, config: &Config) -> String {
        let zone = &config.timezone;
        let at = |seconds: Option<f64>| seconds.map_or_else(String::new, |it| time(it, zone));
        let mut text = format!(
            "\nFrom {} to {}: {}, {} on {}.\n",
            at(self.from_seconds),
            at(self.until_seconds),
            words::count(self.snapshots, "snapshot"),
            words::count(self.cycles, "cycle"),
            words::count(self.hosts.len(), "host"),
        );
        if self.damaged_lines > 0 {
            text += &format!("{} left out.\n", words::count(self.damaged_lines, "line"));
        }
        for rule in &config.rules {
            let Some(found) = self.rules.get(&rule.name) else {
                continue;
            };
            text += &format!(
                "{}: {}, {} held, {}, {} ({}), {}.\n",
                rule.name,
                words::count(found.violations, "violation"),
                found.held,
                words::count(found.warnings, "warning"),
                words::count(found.actions, "action"),
                rule.action.word(),
                words::count(found.users.len(), "user"),
            );
        }
        if config.rules.is_empty() {
            text += "There are no rules.\n";
        }
        if self.open > 0 {
            text += &format!("{} not over at the end.\n", words::count(self.open, "violation"));
        }
        text += "Pauses and waivers that were told at run time are not in a recording: nothing waited for them here.\n";
        for (hostname, count) in self.unknown_processes {
            let (count, name) = (words::count(*count, "process"), words::name(hostname));
            text += &format!("Unknown on {name}, never acted upon: up to {count} at once.\n");
        }
        text
    }
}
