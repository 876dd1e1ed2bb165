//! The counter of restarts of readers, the processes that call the driver for a daemon: see [`genv_core::gpu::reader`].

use std::collections::HashMap;

use genv_core::gpu::reader::restarts;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Registry, Result};

const NAME: &str = "genv_reader_restarts_total";
const HELP: &str = "Restarts of the processes that call the driver for this program, by what ended the one before: signal, exit, hang (a call did not return) or answer (it could not be read).";
const REASON: &str = "reason";

/// Registers the counter.
///
/// # Errors
/// The registry has a metric of this name.
pub fn register(registry: &Registry) -> Result<()> {
    let desc = Desc::new(NAME.to_owned(), HELP.to_owned(), vec![REASON.to_owned()], HashMap::new())?;
    registry.register(Box::new(ReaderRestarts(desc)))
}

/// Asks for the counts when metrics are gathered: `core`, which counts, has no registry.
struct ReaderRestarts(Desc);

impl Collector for ReaderRestarts {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut family = MetricFamily::default();
        family.set_name(NAME.to_owned());
        family.set_help(HELP.to_owned());
        family.set_field_type(MetricType::COUNTER);
        family.set_metric(restarts().into_iter().map(|(reason, count)| metric(reason, count)).collect());
        vec![family]
    }
}

fn metric(reason: &str, count: u64) -> Metric {
    let mut label = LabelPair::default();
    label.set_name(REASON.to_owned());
    label.set_value(reason.to_owned());
    let mut counter = Counter::default();
    counter.set_value(count as f64);
    let mut metric = Metric::from_label(vec![label]);
    metric.set_counter(counter);
    metric
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instruments::text;

    #[test]
    fn each_reason_is_there_before_a_reader_was_started() {
        let registry = Registry::new();
        register(&registry).unwrap();
        let page = text(&registry);
        for reason in ["signal", "exit", "hang", "answer"] {
            let line = format!("genv_reader_restarts_total{{reason=\"{reason}\"}} 0");
            assert!(page.lines().any(|it| it == line), "{line} is not in\n{page}");
        }
        assert!(page.contains("# TYPE genv_reader_restarts_total counter"), "{page}");
    }
}
