//! Devices that are lost, err, or cannot tell all.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use genv_tests::exporter::Setup;
use genv_tests::metrics::Scrape;
use genv_tests::nvml_sim::{Simulation, on_device_0};
use genv_tests::process::Sleeper;
use genv_tests::prometheus::Prometheus;

use crate::faults::{gpu_works, started, two_devices};

#[test]
fn a_lost_device_is_down_while_the_other_one_goes_on() -> Result<()> {
    let simulation = Simulation::new(&two_devices("", ""));
    let exporter = started(&simulation)?;
    exporter.wait_for("devices", gpu_works)?;

    simulation.rewrite(&two_devices("", ", faults: [{lost: true}]"));
    let up = |scrape: &Scrape, index| scrape.value("genv_device_up", &[("index", index)]).unwrap_or(f64::NAN);
    let lost = exporter.wait_for("a lost device", |scrape| up(scrape, "0") == 0.0)?;
    ensure!(up(&lost, "1") == 1.0);
    ensure!(lost.all("genv_device_utilization_ratio", &[("index", "0")]).is_empty());
    ensure!(lost.value("genv_device_utilization_ratio", &[("index", "1")])? == 0.5);
    ensure!(lost.value("genv_device_available", &[("index", "0")])? == 0.0);

    simulation.rewrite(&two_devices("", ""));
    exporter.wait_for("both devices", gpu_works)?;
    Ok(())
}

/// What each device of the scenario cannot tell, and the families that it therefore lacks.
const NOT_SUPPORTED: &[(&str, &[&str])] = &[
    ("utilization", &["utilization_ratio", "memory_controller_busy_ratio"]),
    ("encoder", &["encoder_utilization_ratio"]),
    ("decoder", &["decoder_utilization_ratio"]),
    (
        "memory",
        &[
            "memory_total_bytes",
            "memory_used_bytes",
            "memory_free_bytes",
            "memory_reserved_bytes",
            "memory_unattached_bytes",
        ],
    ),
    ("memory_reserved", &["memory_reserved_bytes"]),
    ("temperature", &["temperature_celsius"]),
    ("temperature_limits", &["temperature_limit_celsius"]),
    ("power", &["power_watts"]),
    ("power_limit", &["power_limit_watts"]),
    // Energy is then power over time, which is as good.
    ("energy", &[]),
    ("clocks", &["clock_hertz"]),
    ("fans", &["fan_speed_ratio"]),
    ("throttled", &["throttled"]),
    ("ecc", &["ecc_errors_total"]),
    ("pcie_replays", &["pcie_replays_total"]),
    // Whether somebody uses it is then not known.
    ("processes", &["processes", "available"]),
    // Of the processes alone: the device's own series are all there.
    ("process_memory", &[]),
    ("process_utilization", &[]),
    ("xid_events", &[]),
];

#[test]
fn a_device_that_cannot_tell_one_thing_lacks_that_alone() -> Result<()> {
    let process = Sleeper::start(&[("PATH", "/bin")])?;
    let mut devices = String::new();
    let mut uses = String::new();
    let nothing: (&str, &[&str]) = ("", &[]);
    let cases: Vec<_> = std::iter::once(&nothing).chain(NOT_SUPPORTED).collect();
    for (index, (measurement, _)) in cases.iter().enumerate() {
        devices.push_str(&format!(
            "  - {{memory: 40gi, fans: [0.5], ecc: {{corrected: 1}}, faults: [{{not_supported: [{measurement}]}}]}}\n"
        ));
        uses.push_str(&format!("{{index: {index}, memory: 1gi, utilization: 0.5}}, "));
    }
    let simulation = Simulation::new(&format!(
        "version: 1\nhosts:\n- environments: []\n  devices:\n{devices}  processes:\n  - {{pid: {}, devices: [{uses}]}}\n",
        process.pid()
    ));
    // Long enough that the driver has sampled utilization in between.
    let exporter = Setup::with_driver(&simulation)?.flag("--interval=1s").start()?;
    let scrape = exporter.wait_for("devices and accounting", |scrape| {
        scrape.all("genv_device_up", &[]).len() == cases.len()
            && scrape
                .all("genv_user_device_seconds_total", &[("index", "0"), ("state", "outside")])
                .iter()
                .any(|(_, seconds)| *seconds > 0.0)
            && scrape.all("genv_process_utilization_ratio", &[]).iter().any(|(_, ratio)| *ratio == 0.5)
    })?;
    let families = |index: usize| -> BTreeSet<&str> {
        let index = index.to_string();
        let of_device = |labels: &genv_tests::metrics::Labels| labels.get("index") == Some(&index);
        let series = scrape.samples.keys();
        series.filter_map(|(name, labels)| name.strip_prefix("genv_device_").filter(|_| of_device(labels))).collect()
    };
    let all = families(0);
    for (index, (measurement, lacks)) in cases.iter().enumerate() {
        let lacks: BTreeSet<&str> = lacks.iter().copied().collect();
        let missing: BTreeSet<&str> = all.difference(&families(index)).copied().collect();
        ensure!(lacks.is_subset(&all), "{measurement}: no device at all has {lacks:?}");
        ensure!(missing == lacks, "without {measurement} a device lacks {missing:?}, not {lacks:?}");
    }
    let first = |name: &str| scrape.value(name, &[("index", "0")]);
    ensure!(first("genv_process_memory_used_bytes")? == f64::from(1 << 30));
    ensure!(first("genv_process_utilization_ratio")? == 0.5);
    let position = |of: &str| cases.iter().position(|(measurement, _)| *measurement == of);
    for (measurement, family) in [
        ("processes", "genv_process_memory_used_bytes"),
        ("process_memory", "genv_process_memory_used_bytes"),
        ("process_utilization", "genv_process_utilization_ratio"),
    ] {
        let index = position(measurement).unwrap_or_default().to_string();
        let told = scrape.all(family, &[("index", &index)]);
        ensure!(told.is_empty(), "without {measurement}: {told:?}");
    }
    Ok(())
}

#[test]
fn more_processes_between_two_calls_are_all_found() -> Result<()> {
    let real: Vec<_> = (0..5).map(|_| Sleeper::start(&[("PATH", "/bin")])).collect::<Result<_>>()?;
    let uses = on_device_0(&real.iter().map(Sleeper::pid).collect::<Vec<_>>());
    let processes = format!("processes: [{uses}]\n  faults: [{{insufficient_size: 40}}]");
    let simulation = Simulation::new(&two_devices(&processes, ""));
    let exporter = started(&simulation)?;
    exporter.wait_for("all processes", |scrape| {
        real.iter().all(|process| scrape.mentions("pid", &process.pid().to_string()))
    })?;
    Ok(())
}

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
