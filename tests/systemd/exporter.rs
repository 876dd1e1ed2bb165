//! genv-exporter.service.

use anyhow::{Context as _, Result, ensure};
use genv_tests::machine::USER;
use genv_tests::metrics::Scrape;
use genv_tests::patience::until;

use crate::{
    DAC_READ_SEARCH, REFUSED, SYS_PTRACE, boot, is_confined, is_watched, opens_the_driver_alone,
    reads_by_a_confined_reader, started, stops_and_is_started_by_its_socket,
};

const UNIT: &str = "genv-exporter";
const PORT: u16 = 9820;

/// What peers of the same kind reach, rounded up.
const MOST_EXPOSURE: f64 = 1.5;

#[test]
fn it_runs_as_its_user_with_two_capabilities_and_the_driver_alone() -> Result<()> {
    let machine = boot()?;
    started(&machine, UNIT)?;
    machine.wait_for_status(UNIT, |status| status.starts_with("devices: 2, "))?;
    is_confined(&machine, UNIT, UNIT, SYS_PTRACE | DAC_READ_SEARCH)?;
    reads_by_a_confined_reader(&machine, UNIT, SYS_PTRACE | DAC_READ_SEARCH)?;
    machine.judge(UNIT, MOST_EXPOSURE)?;
    let found = machine.open_among(UNIT, ">/dev/ttyS136")?;
    ensure!(found == REFUSED, "ttyS136: {found:?}");
    opens_the_driver_alone(&machine, UNIT)?;
    stops_and_is_started_by_its_socket(&machine, UNIT, PORT)?;
    is_watched(&machine, UNIT)
}

#[test]
fn it_sees_environments_and_processes_of_others() -> Result<()> {
    let machine = boot()?;
    let member = machine.start("member", &["genv", "exec", "--name", "training", "--", "sleep", "1000000"], "sleep")?;
    let outsider = machine.start("outsider", &["sleep", "1000000"], "sleep")?;
    machine.use_devices(&[member, outsider])?;
    started(&machine, UNIT)?;
    let scrape = machine.scrape(PORT)?;
    scrape.value("genv_environment_info", &[("env_name", "training"), ("username", USER)])?;
    let states = |scrape: &Scrape| -> Result<Vec<f64>> {
        let states = ["environment", "outside", "unknown"];
        states.iter().map(|state| scrape.value("genv_processes", &[("state", state)])).collect()
    };
    ensure!(states(&scrape)? == [1.0, 1.0, 0.0], "{scrape:?}");
    for pid in [member, outsider] {
        let pid = pid.to_string();
        scrape.value("genv_process_memory_used_bytes", &[("pid", &pid), ("username", USER)])?;
    }

    // Of its two capabilities none is too many.
    for left in ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"] {
        machine.configure(
            UNIT,
            "without",
            &format!(
                "[Service]\nCapabilityBoundingSet=\nCapabilityBoundingSet={left}\n\
                 AmbientCapabilities=\nAmbientCapabilities={left}\n"
            ),
        )?;
        machine.run(&["systemctl", "restart", UNIT])?;
        let mut seen = Vec::new();
        until("the outsider is unknown", || {
            seen = states(&machine.scrape(PORT)?)?;
            Ok(seen == [1.0, 0.0, 1.0])
        })
        .with_context(|| format!("{left}: {seen:?} {}", machine.log(UNIT)))?;
    }
    Ok(())
}
