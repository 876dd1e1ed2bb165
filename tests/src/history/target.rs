//! Exporters that are scraped, and what the scrapes leave in Prometheus.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Result;
use genv_web::metrics::MetricFamily;

use super::exporter::PlayedExporter;
use super::write::{SeriesId, Writer};
use crate::metrics::Labels;

/// When an exporter is in trouble; both times count from the beginning of the history.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub(super) instance: String,
    pub(super) from: Duration,
    pub(super) until: Duration,
    pub(super) frozen: bool,
}

/// An exporter that is scraped.
pub(super) struct Target {
    pub(super) exporter: PlayedExporter,
    pub(super) troubles: Vec<Trouble>,
    pub(super) scraped: Scraped,
    /// When it was last scraped, from the beginning.
    pub(super) at: Option<Duration>,
}

/// What was scraped of a target.
pub(super) struct Scraped {
    job: &'static str,
    pub(super) instance: String,
    /// What the last scrape had, in its order.
    series: Vec<Known>,
}

/// A series that was scraped: its metric's name and labels as the exporter tells them.
struct Known {
    /// As it is written.
    series: String,
    id: SeriesId,
}

impl Target {
    /// Scrapes it, or fails to, so long after the beginning.
    pub(super) fn scrape(&mut self, passed: Duration, at: i64, writer: &mut Writer) -> Result<()> {
        let now = |trouble: &&Trouble| trouble.from <= passed && passed < trouble.until;
        let frozen = self.troubles.iter().filter(now).any(|trouble| trouble.frozen);
        let down = self.troubles.iter().filter(now).any(|trouble| !trouble.frozen);
        let stopped_since = |trouble: &Trouble| {
            !trouble.frozen && trouble.until <= passed && self.at.is_some_and(|at| at < trouble.until)
        };
        if down || self.troubles.iter().any(stopped_since) {
            self.exporter.stop();
        }
        if !down && !frozen {
            self.exporter.collect()?;
        }
        self.at = Some(passed);
        let families = self.exporter.families();
        let answer = (!down).then_some(families.as_slice());
        self.scraped.write(answer, at, writer)
    }
}

impl Scraped {
    pub(super) fn new(job: &'static str, instance: &str) -> Self {
        Self { job, instance: instance.to_owned(), series: Vec::new() }
    }

    /// Writes a scrape (none if there was no answer), and that those series ended which it has no more.
    pub(super) fn write(&mut self, families: Option<&[MetricFamily]>, at: i64, writer: &mut Writer) -> Result<()> {
        let up = writer.series(self.labels("up", Labels::new()));
        writer.add(up, at, if families.is_some() { 1.0 } else { 0.0 })?;
        let families = families.unwrap_or_default();
        let samples = || families.iter().flat_map(MetricFamily::samples);
        let mut ids = Vec::with_capacity(self.series.len());
        // Most scrapes tell the same series in the same order as the one before.
        let mut next = 0;
        for (series, value) in samples() {
            let known = self.series.get(next);
            let known = known.filter(|known| known.series == series);
            let id = match known {
                Some(known) => known.id,
                None => {
                    let (name, labels) = crate::metrics::series(series)?;
                    writer.series(self.labels(&name, labels))
                }
            };
            if known.is_some() {
                next += 1;
            } else if let Some(position) = self.series.iter().position(|known| known.id == id) {
                next = position + 1;
            }
            ids.push(id);
            writer.add(id, at, value)?;
        }
        if self.series.iter().map(|known| &known.id).eq(&ids) {
            return Ok(());
        }
        let there: HashSet<&SeriesId> = ids.iter().collect();
        for known in self.series.iter().filter(|known| !there.contains(&known.id)) {
            writer.end(known.id, at)?;
        }
        let known = samples().zip(&ids).map(|((series, _), id)| Known { series: series.to_owned(), id: *id });
        self.series = known.collect();
        Ok(())
    }

    fn labels(&self, name: &str, mut labels: Labels) -> Labels {
        let own = [("__name__", name), ("job", self.job), ("instance", &self.instance)];
        labels.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
        labels
    }
}
