//! XID errors, as Prometheus sees them.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use genv_tests::exporter::Setup;
use genv_tests::nvml_sim::Simulation;
use genv_tests::prometheus::Prometheus;

use crate::faults::two_devices;

#[test]
fn the_first_xid_error_of_a_device_is_visible_to_increase() -> Result<()> {
    // The error happens when Prometheus has scraped for some seconds; scenario time begins with 2026.
    const EPOCH_SECONDS: u64 = 1_767_225_600;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() - EPOCH_SECONDS;
    let xid = format!(", xid: [{{xid: 79, at: {}s}}]", now + 10);
    let simulation = Simulation::new(&two_devices("", &xid));
    let exporter = Setup::with_driver(&simulation)?.flag("--interval=2s").start()?;
    let prometheus = Prometheus::start("prometheus", exporter.port())?;
    prometheus.wait_for_value("sum(genv_device_up)", 2.0)?;
    let early = prometheus.query("genv_device_xid_errors_total")?;
    ensure!(early.is_empty(), "an error too early: {early:?}");

    let increase = r#"increase(genv_device_xid_errors_total{index="0",xid="79"}[1m])"#;
    prometheus.wait_for(increase, |answer| matches!(answer, [(_, errors)] if *errors > 0.0))?;
    prometheus.wait_for_value("sum(genv_device_xid_errors_total)", 1.0)?;
    let happened = prometheus.value(r#"genv_device_last_xid_timestamp_seconds{index="0"}"#)?;
    let wanted = (EPOCH_SECONDS + now + 10) as f64;
    ensure!((happened - wanted).abs() < 5.0, "{happened} is not about {wanted}");
    Ok(())
}
