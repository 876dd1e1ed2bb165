//! Every NVML call that is made, with everything that it can answer wrongly: no device is called free and no holder idle,
//! nothing is done by it, and the truth comes back.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Enforcer, sleeper, victim};
use genv_tests::exporter::Exporter;
use genv_tests::metrics::Scrape;
use genv_tests::patience;
use genv_tests::process::Sleeper;
use genv_tests::state::{self, Environment};

use crate::faults::wrong_answers::{of_devices, of_the_host};
use crate::faults::{enforcer_of, exporter_beside, plans_nothing};

/// Two devices for each fault: of each pair the first is held by an environment and kept busy by its process, the
/// second used by a process outside of any environment.
struct Stage {
    faults: Vec<String>,
    inside: Sleeper,
    outside: Sleeper,
    exporter: Exporter,
    enforcer: Enforcer,
}

/// Memory in use on a busy device, and how much each user may use: more than all of that, less than any wrong number.
const RULES: &str = "version: 1\nmode: dry-run\ninterval: 1s\nrules:\n\
    - {kind: idle, over: 1s, action: detach, warn: []}\n\
    - {kind: env-memory, action: terminate, warn: []}\n\
    - {kind: max-memory-per-user, limit: 60gi, per: device, action: terminate, warn: []}\n";

const BUSY: f64 = 0.9;

impl Stage {
    fn new(faults: Vec<String>) -> Result<Self> {
        let member = sleeper(&[])?;
        let inside = sleeper(&[("GENV_ENVIRONMENT_ID", "held")])?;
        let outside = sleeper(&[("OUTSIDE", "1")])?;
        let setup = enforcer_of(RULES)?;
        let held: Vec<usize> = (0..faults.len()).map(|fault| 2 * fault).collect();
        let environment = Environment {
            pids: vec![member.pid(), inside.pid()],
            gpu_memory: Some("70gi"),
            ..Environment::new("held", victim(), inside.pid(), &held)
        };
        state::write(&setup.genv_directory(), 2 * faults.len(), &[environment])?;
        setup.rewrite_scenario(&scenario_of(&faults, "", false, BUSY, [&inside, &outside]))?;
        // A sweep of hundreds of devices takes its time.
        let (interval, max_age) = if faults.len() > 1 { ("2s", "30s") } else { ("500ms", "1s") };
        let exporter = exporter_beside(&setup)?
            .flag(&format!("--interval={interval}"))
            .flag(&format!("--snapshot.max-age={max_age}"))
            .start()?;
        Ok(Self { enforcer: setup.start()?, faults, inside, outside, exporter })
    }

    fn play(&self, of_host: &str, faults: bool, busy: f64) -> Result<()> {
        let processes = [&self.inside, &self.outside];
        let scenario = scenario_of(&self.faults, of_host, faults, busy, processes);
        self.enforcer.setup().rewrite_scenario(&scenario)
    }

    fn devices(&self) -> usize {
        2 * self.faults.len()
    }

    /// Waits until everything is told and true.
    fn works(&self) -> Result<Scrape> {
        let all = self.devices() as f64;
        let number = |scrape: &Scrape, state| {
            let labels = [("state", state)];
            scrape.all("genv_device_processes", &labels).iter().map(|(_, it)| it).sum::<f64>()
        };
        self.exporter.wait_for("the truth", |scrape| {
            let up = scrape.all("genv_device_up", &[]);
            up.iter().map(|(_, up)| up).sum::<f64>() == all
                && number(scrape, "environment") == all / 2.0
                && number(scrape, "outside") == all / 2.0
                && scrape.all("genv_device_utilization_ratio", &[]).len() == self.devices()
                && scrape.all("genv_device_memory_used_bytes", &[]).len() == self.devices()
                && scrape.all("genv_environment_utilization_ratio", &[]).len() == self.devices() / 2
        })
    }

    fn fault_of(&self, index: &str) -> String {
        let index: usize = index.parse().unwrap_or_default();
        let role = if index.is_multiple_of(2) { "held" } else { "used" };
        format!("device {index}, {role}, {}", self.faults[index / 2])
    }

    /// No device is free, no holder idle, and no value beyond what there is.
    fn is_honest(&self, scrape: &Scrape) -> Result<()> {
        for (labels, available) in scrape.all("genv_device_available", &[]) {
            ensure!(available == 0.0, "free: {}", self.fault_of(&labels["index"]));
        }
        let mut processes = std::collections::BTreeMap::new();
        for (labels, number) in scrape.all("genv_device_processes", &[]) {
            *processes.entry(labels["index"].clone()).or_insert(0.0) += number;
        }
        for (index, number) in processes {
            ensure!(number == 1.0, "{number} processes: {}", self.fault_of(&index));
        }
        for (labels, ratio) in scrape.all("genv_environment_utilization_ratio", &[]) {
            let at = || self.fault_of(&labels["index"]);
            ensure!(ratio == BUSY || ratio == 0.45, "used at {ratio}: {}", at());
        }
        for (name, most) in [
            ("genv_device_utilization_ratio", 1.0),
            ("genv_device_memory_controller_busy_ratio", 1.0),
            ("genv_device_encoder_utilization_ratio", 1.0),
            ("genv_device_decoder_utilization_ratio", 1.0),
            ("genv_process_utilization_ratio", 1.0),
            ("genv_device_temperature_celsius", 200.0),
            ("genv_device_temperature_limit_celsius", 255.0),
            ("genv_device_power_watts", 1000.0),
            ("genv_device_power_limit_watts", 30_000.0),
            ("genv_device_clock_hertz", 1e11),
            ("genv_device_fan_speed_ratio", 1.5),
            ("genv_device_memory_total_bytes", 90e9),
            ("genv_device_memory_used_bytes", 90e9),
            ("genv_device_memory_free_bytes", 90e9),
            ("genv_device_memory_reserved_bytes", 90e9),
            ("genv_process_memory_used_bytes", 90e9),
            ("genv_environment_memory_used_bytes", 90e9),
            ("genv_user_memory_used_bytes", 90e9),
            ("genv_device_ecc_errors_total", 1e6),
            ("genv_device_pcie_replays_total", 1e6),
            // Ten minutes of 600 W.
            ("genv_device_energy_joules_total", 360_000.0),
            ("genv_user_energy_joules_total", 360_000.0),
        ] {
            for (labels, value) in scrape.all(name, &[]) {
                let at = || labels.get("index").map(|index| self.fault_of(index));
                // A GPU in the cold is below 0 °C.
                let least = if name == "genv_device_temperature_celsius" { -50.0 } else { 0.0 };
                ensure!((least..=most).contains(&value), "{name} {value}: {:?}", at());
            }
        }
        for (labels, _) in scrape.all("genv_device_xid_errors_total", &[]) {
            ensure!(labels["xid"].parse::<u64>()? < 10_000, "{labels:?}");
        }
        let idle = scrape.all("genv_user_device_seconds_total", &[("state", "idle")]);
        for (labels, seconds) in idle {
            ensure!(seconds == 0.0, "idle for {seconds} s: {}", self.fault_of(&labels["index"]));
        }
        Ok(())
    }

    /// The first device that has a count of processes although its list of computing processes fails.
    fn counted_despite_its_list(&self, scrape: &Scrape) -> Option<usize> {
        let fails = |fault: &str| fault.contains("GetComputeRunningProcesses, error") && !fault.contains("is_lost");
        let is_counted = |index: &usize| {
            let index = index.to_string();
            !scrape.all("genv_device_processes", &[("index", &index)]).is_empty()
        };
        let faults = self.faults.iter().enumerate();
        let mut failing = faults.filter(|(_, fault)| fails(fault)).map(|it| 2 * it.0);
        failing.find(is_counted)
    }

    fn plans_nothing(&self) -> Result<()> {
        self.enforcer.wait_for_cycles(3)?;
        plans_nothing(&self.enforcer)
    }

    fn genv(&self, words: &[&str]) -> Result<String> {
        let mut command: Command = self.enforcer.setup().program("genv", words)?;
        // Some faults are that the driver never answers.
        command.envs([patience::NO_PATIENCE]);
        Ok(String::from_utf8(patience::output(&mut command)?.stdout)?)
    }

    /// `genv free` calls no device free, and `genv who` none unused.
    fn commands_are_honest(&self, indices: &[usize]) -> Result<()> {
        let free = self.genv(&["free", "--no-header"])?;
        for line in free.lines().filter(|line| line.split_whitespace().count() > 4) {
            let index = line.split_whitespace().next().unwrap_or_default();
            ensure!(!line.ends_with(" free"), "{line}: {}", self.fault_of(index));
        }
        for index in indices {
            let index = index.to_string();
            let who = self.genv(&["who", &index])?;
            ensure!(!who.contains("No process uses it"), "{who}: {}", self.fault_of(&index));
        }
        Ok(())
    }
}

fn scenario_of(
    faults: &[String],
    of_host: &str,
    in_force: bool,
    busy: f64,
    [inside, outside]: [&Sleeper; 2],
) -> String {
    let mut devices = String::new();
    let mut uses = [String::new(), String::new()];
    for (position, fault) in faults.iter().enumerate() {
        let fault = if in_force { fault } else { "" };
        for (of, uses) in uses.iter_mut().enumerate() {
            devices.push_str(&format!(
                "  - {{memory: 80gi, power: {{idle: 60, max: 600}}, fans: [0.5], ecc: {{corrected: 1}}, faults: [{fault}]}}\n"
            ));
            uses.push_str(&format!("{{index: {}, memory: 20gi, utilization: {busy}}}, ", 2 * position + of));
        }
    }
    format!(
        "version: 1\nhosts:\n- devices:\n{devices}  processes:\n\
         \x20 - {{pid: {}, devices: [{}]}}\n  - {{pid: {}, devices: [{}]}}\n  faults: [{of_host}]\n",
        inside.pid(),
        uses[0],
        outside.pid(),
        uses[1]
    )
}

#[test]
fn whatever_a_call_answers_no_device_is_free_no_holder_idle_and_nothing_is_done() -> Result<()> {
    let stage = Stage::new(of_devices())?;
    stage.is_honest(&stage.works()?)?;
    stage.plans_nothing()?;

    stage.play("", true, BUSY)?;
    stage.exporter.wait_for("distrusted readings", |scrape| {
        let readings = scrape.all("genv_device_distrusted_readings_total", &[]);
        readings.iter().any(|(_, number)| *number > 2.0)
            && scrape.all("genv_device_processes", &[]).len() > stage.devices()
            && stage.counted_despite_its_list(scrape).is_none()
    })?;
    // The scenario may have changed while these were read.
    let wrong = stage.exporter.next_collection("gpu")?;
    stage.is_honest(&wrong)?;
    let sample: Vec<usize> = (0..stage.devices()).step_by(41).collect();
    stage.commands_are_honest(&sample)?;
    stage.plans_nothing()?;
    stage.is_honest(&stage.exporter.scrape()?)?;

    stage.play("", false, BUSY)?;
    stage.is_honest(&stage.works()?)?;
    stage.plans_nothing()
}

#[test]
fn whatever_a_driver_does_as_a_whole_no_device_is_free_no_holder_idle_and_nothing_is_done() -> Result<()> {
    let stage = Stage::new(vec![String::new()])?;
    stage.works()?;
    for fault in &of_the_host() {
        stage.play(fault, false, BUSY)?;
        let success = [("collector", "gpu")];
        let two_more = || {
            stage.exporter.next_collection("processes")?;
            stage.exporter.next_collection("processes")
        };
        let scrape = two_more()?;
        stage.is_honest(&scrape).with_context(|| fault.clone())?;
        stage.commands_are_honest(&[0, 1]).with_context(|| fault.clone())?;
        stage.plans_nothing().with_context(|| fault.clone())?;
        scrape.value("genv_collector_success", &success).with_context(|| fault.clone())?;
        stage.play("", false, BUSY)?;
        stage.is_honest(&stage.works().with_context(|| fault.clone())?).with_context(|| fault.clone())?;
    }
    stage.plans_nothing()?;

    // The truth is acted upon.
    stage.play("", false, 0.0)?;
    let is_idle = |status: &serde_json::Value| status["violations"][0]["rule"] == "idle";
    stage.enforcer.wait_for_status("an idle holder", is_idle)?;
    Ok(())
}
