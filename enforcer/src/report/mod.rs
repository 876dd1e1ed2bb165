//! `genv-enforcer report`: what rules did, or would have done, in the last days, on one page, from the audit and what
//! logrotate made of it.

mod audit;
mod line;
mod tally;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use clap::Args;
use genv_core::model::local_time_zone;
use genv_core::text::moment;
use jiff::tz::TimeZone;
use serde::Serialize;

use crate::SilentExit;
use crate::flags::DirectoryFlag;
use crate::output::{now_seconds, print, print_json, print_note};
use crate::plan::words;
use tally::{Case, Counts, Row, Tally};

const EXAMPLE: &str = "Example: see what a week of dry-run would have done, before 'mode: enforce'
  genv-enforcer report
  genv-enforcer report --days 30 --json";

const SECONDS_OF_A_DAY: f64 = 86_400.0;

/// Rows that fit a page; `--json` has all.
const SHOWN_ROWS: usize = 40;

/// Report what rules did, or would have done, in the last days: by rule and user, and the three worst cases.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct ReportFlags {
    /// How many days back from now.
    #[arg(long, value_name = "DAYS", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    directory: DirectoryFlag,
}

/// What the command tells.
#[derive(Debug, Serialize)]
struct Report {
    version: u32,
    from_seconds: f64,
    until_seconds: f64,
    /// Lines of the audit that could not be read.
    damaged_lines: u64,
    rows: Vec<Row>,
    total: Counts,
    worst: Vec<Case>,
}

/// The command.
pub(crate) fn report(flags: &ReportFlags) -> anyhow::Result<()> {
    let until_seconds = now_seconds();
    let from_seconds = until_seconds - f64::from(flags.days) * SECONDS_OF_A_DAY;
    let mut tally = Tally::default();
    let mut is_whole = true;
    for file in audit::files(&flags.directory.path(), from_seconds)? {
        let name = file.name.clone();
        if let Err(error) = file.read(|line| tally.add(line, from_seconds)) {
            print_note(&format!("cannot read the rest of {name}: {error}. The report is about what comes before"));
            is_whole = false;
        }
    }
    let report = tally.report(from_seconds, until_seconds);
    if flags.json {
        print_json(&report)?;
    } else {
        print(&text(&report, &local_time_zone()))?;
    }
    if is_whole { Ok(()) } else { Err(SilentExit.into()) }
}

fn text(report: &Report, zone: &TimeZone) -> String {
    let mut out =
        format!("From {} until {}\n\n", moment(report.from_seconds, zone), moment(report.until_seconds, zone));
    if report.rows.is_empty() {
        out.push_str(
            "No rule did anything, or would have. Rules with action report or warn leave nothing here: 'genv-enforcer status'\n\
             and the metric genv_enforcer_actions_total show what they find.\n",
        );
    } else {
        out.push_str(&table(report));
        out.push_str("\nThe worst cases\n");
        for case in &report.worst {
            out.push_str(&case_text(case, zone));
        }
    }
    if report.total.would > 0 {
        out.push_str(
            "\nIn dry-run every warning counts as delivered. In enforce, what follows from a warning waits for its delivery where\n\
             its rule has 'undelivered: hold'.\n",
        );
    }
    if report.damaged_lines > 0 {
        let lines = words::count(report.damaged_lines, "line");
        // Writing to a string does not fail.
        let _ = writeln!(out, "\n{lines} of the audit could not be read, and are not counted.");
    }
    out
}

fn table(report: &Report) -> String {
    let shown = report.rows.len().min(SHOWN_ROWS);
    let cells = |rule: &str, user: &str, counts: [String; 4]| {
        let [would, done, refused, failed] = counts;
        [words::name(rule).into_owned(), words::name(user).into_owned(), would, done, refused, failed]
    };
    let of =
        |counts: &Counts| [counts.would, counts.done, counts.refused, counts.failed].map(|count| count.to_string());
    let mut rows = vec![cells("RULE", "USER", ["WOULD", "DONE", "REFUSED", "FAILED"].map(str::to_owned))];
    rows.extend(report.rows[..shown].iter().map(|row| cells(&row.rule, &row.username, of(&row.counts))));
    rows.push(cells("all", "", of(&report.total)));
    let mut widths = [0; 6];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let all = rows.pop();
    let more = report.rows.len() - shown;
    let line = |row: &[String; 6]| {
        let mut line = String::new();
        for (position, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Writing to a string does not fail.
            let _ = match position {
                0 => write!(line, "{cell:<width$}"),
                1 => write!(line, "  {cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        line + "\n"
    };
    out.extend(rows.iter().map(line));
    if more > 0 {
        let _ = writeln!(out, "and {more} more, which --json has");
    }
    out.extend(all.iter().map(line));
    out
}

fn case_text(case: &Case, zone: &TimeZone) -> String {
    let mut out = format!(
        "  {}  {}, rule {}, user {}\n",
        moment(case.from_seconds, zone),
        words::name(&case.hostname),
        words::name(&case.rule),
        words::name(&case.username)
    );
    // Writing to a string does not fail.
    let _ = writeln!(out, "    found: {}", case.why);
    let more = case.counts.all() - case.deeds.len() as u64;
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let _ = writeln!(out, "    {}{more}", case.deeds.join("; "));
    out
}
