//! Markdown tables.

use std::fmt::Display;

use rustix::time::{ClockId, clock_gettime};

pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &[&str]) -> Self {
        Self { rows: vec![columns.iter().map(ToString::to_string).collect()] }
    }

    pub(crate) fn row(&mut self, cells: &[&dyn Display]) {
        self.rows.push(cells.iter().map(ToString::to_string).collect());
    }

    /// A row of a table of budgets: what something costs, and may cost.
    pub(crate) fn cost(&mut self, what: &str, seconds: f64, budget_seconds: Option<f64>) {
        let budget = budget_seconds.map(milliseconds).unwrap_or_default();
        let holds = budget_seconds.map_or("", |budget| verdict(seconds <= budget));
        self.row(&[&what, &milliseconds(seconds), &budget, &holds]);
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, row) in self.rows.iter().enumerate() {
            writeln!(f, "| {} |", row.join(" | "))?;
            if number == 0 {
                writeln!(f, "|{}", "---|".repeat(row.len()))?;
            }
        }
        Ok(())
    }
}

pub(crate) const fn verdict(holds: bool) -> &'static str {
    if holds { "yes" } else { "**no**" }
}

pub(crate) fn milliseconds(seconds: f64) -> String {
    format!("{:.3} ms", seconds * 1e3)
}

pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// CPU so far of this thread.
pub(crate) fn thread_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
