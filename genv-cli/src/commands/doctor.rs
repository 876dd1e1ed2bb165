//! `genv doctor`

use std::io::Write as _;

use clap::Args;
use serde::Serialize;

use crate::doctor::{Check, Verdict, examine};
use crate::failure::Failure;
use crate::machine::Machine;
use crate::output::{BAD, Cell, DOUBTFUL, GOOD, Table, harmless, print_json, stdout};

const EXAMPLE: &str = "Example: print the failed checks
  genv doctor --json | jq '.checks[] | select(.verdict == \"fail\")'

The exit code is 1 if a check fails.";

/// Check genv on this machine, and print a remedy for each problem.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Doctor {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    verdict: Verdict,
    checks: Vec<Check>,
}

impl Doctor {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let checks = examine(&mut Machine::here()?);
        let has = |verdict: Verdict| checks.iter().any(|it| it.verdict == verdict);
        let worst = [Verdict::Fail, Verdict::Warn].into_iter().find(|it| has(*it));
        let report = Report { verdict: worst.unwrap_or(Verdict::Ok), checks };
        if self.json {
            print_json(&report)?;
        } else {
            print(&report)?;
        }
        match report.verdict {
            Verdict::Fail => Err(Failure::Silent(1).into()),
            Verdict::Ok | Verdict::Warn => Ok(()),
        }
    }
}

fn print(report: &Report) -> std::io::Result<()> {
    let mut table = Table::new(&[]).header(false);
    for check in &report.checks {
        let verdict = match check.verdict {
            Verdict::Ok => Cell::own("ok").style(GOOD),
            Verdict::Warn => Cell::own("warn").style(DOUBTFUL),
            Verdict::Fail => Cell::own("fail").style(BAD),
        };
        table.row([verdict, Cell::own(check.name), Cell::own(harmless(&check.found))]);
        if let Some(remedy) = &check.remedy {
            let remedy = Cell::own(format!("→ {}", harmless(remedy)));
            table.row([Cell::default(), Cell::default(), remedy]);
        }
    }
    let mut out = stdout();
    table.write(&mut out)?;
    out.flush()
}
