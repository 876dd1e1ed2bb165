//! promtool, on an exporter of the demonstration.

use anyhow::{Result, ensure};
use genv_tests::exporter::Setup;
use genv_tests::prometheus::check_metrics;

#[test]
fn promtool_finds_nothing_in_the_demo() -> Result<()> {
    let exporter = Setup::new()?.flag("--gpu.source=simulated").start()?;
    let scrape = exporter.wait_for("the hosts of the demo", |scrape| scrape.all("genv_host_up", &[]).len() == 2)?;
    ensure!(scrape.all("genv_host_up", &[]).iter().all(|(_, up)| *up == 1.0));
    let scrape = exporter.get("/metrics")?;
    assert_eq!(scrape.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    for tool in ["prometheus", "prometheus-3"] {
        let (fine, said) = check_metrics(tool, &scrape.body)?;
        ensure!(fine && said.is_empty(), "promtool of {tool} says: {said}");
    }
    Ok(())
}
