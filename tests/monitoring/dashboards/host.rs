//! What the Host and device dashboard says of the demonstration, whose owners, processes and errors are known.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use genv_tests::dashboard::Dashboard;

use crate::dashboards::interpolate::{Choice, Chosen};
use crate::dashboards::lint::ABOUT_ONE_HOST;
use crate::dashboards::page::Page;
use crate::dashboards::{demo, promql};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// In the demonstration erin's work by day begins after seven hours.
const LASTING: Duration = Duration::from_secs(9 * 3600);

/// When the warmest GPU of gpu02 is throttled, and the last scrape was ten seconds ago.
const WARM: Duration = Duration::from_secs(8 * 3600 + 10);

fn host_dashboard() -> Result<Dashboard> {
    let mut shipped = Dashboard::shipped()?.into_iter();
    let found = shipped.find(|dashboard| dashboard.uid() == ABOUT_ONE_HOST);
    found.context("no Host and device")
}

/// A host, and one of its GPUs or all.
fn choice(host: &str, gpu: Option<&str>) -> Choice {
    let one = |value: &str| Chosen::Values(vec![value.to_owned()]);
    let all = || Chosen::All(".+".to_owned());
    Choice::from([
        ("job".to_owned(), all()),
        ("hostname".to_owned(), one(host)),
        ("index".to_owned(), gpu.map_or_else(all, one)),
    ])
}

fn it_tells_what_happened(tool: &str) -> Result<()> {
    let page = Page { dashboard: host_dashboard()?, past: demo(tool, LASTING)? };
    let (first, second) = (choice("gpu01", None), choice("gpu02", None));
    insta::assert_snapshot!("gpu02_by_day", page.all(&second, WARM)?);

    let who = "Who held each GPU";
    let errors = "XID errors and who held the GPU";
    let memory = "Memory by environment";
    let one = |gpu: &str| choice("gpu01", Some(gpu));
    let told = [
        ("gpu01 between two of frank's experiments", page.lines(who, &first, HOUR * 5 + MINUTE)?),
        ("gpu01 in one of them", page.lines(who, &first, HOUR * 5 + MINUTE * 5)?),
        ("gpu02 by night, one GPU lost", page.lines(who, &second, HOUR + MINUTE * 32)?),
        ("errors of gpu02", page.occurrences(errors, &second)?),
        ("memory of a GPU that another uses than its holder", page.lines(memory, &one("4"), HOUR)?),
        ("memory of a split GPU", page.lines(memory, &one("7"), HOUR)?),
        ("a split GPU and its parts", page.lines("GPUs of the host", &one("7"), HOUR)?),
        ("memory of what was asked for", page.lines("Memory of what was asked for", &first, HOUR)?),
        ("processes of gpu01", page.lines("Processes on the GPUs", &first, HOUR)?),
    ];
    let told = told.map(|(what, lines)| format!("# {what}\n{lines}\n"));
    insta::assert_snapshot!("owners_and_errors", told.join("\n"));
    Ok(())
}

#[test]
fn with_prometheus_2_host_and_device_tells_what_happened() -> Result<()> {
    it_tells_what_happened("prometheus")
}

#[test]
fn with_prometheus_3_host_and_device_tells_what_happened() -> Result<()> {
    it_tells_what_happened("prometheus-3")
}

/// Of a host that is read over SSH there is a collector `ssh`, and there may be more some day.
#[test]
fn every_collector_is_shown_whatever_its_name() -> Result<()> {
    let dashboard = host_dashboard()?;
    let mut seen = 0;
    for panel in dashboard.queried_panels() {
        for target in panel.targets() {
            let expression = promql::parse(target.expression(), &dashboard);
            let expression = expression.map_err(anyhow::Error::msg)?;
            for selector in promql::selectors(&expression) {
                let named = selector.vector.matchers.find_matchers("collector");
                ensure!(named.is_empty(), "{}: {selector}", panel.name());
                seen += usize::from(selector.metric().starts_with("genv_collector_"));
            }
        }
    }
    ensure!(seen > 0, "no collector is shown");
    Ok(())
}
