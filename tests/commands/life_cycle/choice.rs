//! Devices by index, by model and by memory.

use anyhow::{Context as _, Result, ensure};
use genv_tests::shell::Account;
use genv_tests::state;
use serde_json::{Value, json};

use crate::life_cycle::devices::visible;
use crate::life_cycle::queue::{Job, NEXT};
use crate::life_cycle::running::run_with;

const MIXED: &str = "{devices: [{name: Tesla T4, memory: 15360mi, count: 2}, {name: NVIDIA A100-SXM4-40GB, memory: 40960mi}, \
                     {name: Tesla T4, memory: 15360mi}, {name: NVIDIA A100-SXM4-40GB, memory: 40960mi}, \
                     {name: NVIDIA H100 80GB HBM3, memory: 81559mi}]}";

pub(crate) struct Mixed {
    pub(crate) account: Account,
    scenario: String,
}

impl Mixed {
    pub(crate) fn new() -> Result<Self> {
        let account = Account::new()?;
        let path = account.home().join("scenario.yaml");
        std::fs::write(&path, format!("version: 1\nhosts:\n  - {MIXED}\n"))?;
        let scenario = path.to_str().context("a path")?.to_owned();
        Ok(Self { account, scenario })
    }

    fn genv(&self, words: &[&str]) -> Result<(i32, String, String)> {
        run_with(&self.account, &[("GENV_SCENARIO", &self.scenario)], words)
    }

    pub(crate) fn exec(&self, flags: &[&str]) -> Result<(String, String)> {
        let command = ["--", "printenv", "CUDA_VISIBLE_DEVICES"];
        let (code, devices, stderr) = self.genv(&[&["exec"], flags, &command].concat())?;
        ensure!(code == 0, "{flags:?}: {code} {stderr}");
        Ok((devices.trim().to_owned(), stderr))
    }

    pub(crate) fn refused(&self, words: &[&str]) -> Result<String> {
        let (code, _, stderr) = self.genv(words)?;
        ensure!(code == 4, "{words:?}: {code} {stderr}");
        Ok(stderr)
    }

    fn job(&self, flags: &[&str]) -> Result<Job> {
        Job::start_with(&self.account, &[("GENV_SCENARIO", &self.scenario)], flags)
    }
}

#[test]
fn devices_are_chosen_by_index_model_and_memory() -> Result<()> {
    let mixed = Mixed::new()?;
    for (flags, expected) in [
        (&["--index", "2,3"][..], "2,3"),
        (&["--index", "5", "--index=1"], "1,5"),
        (&["--gpu-type", "h100,a100"], "2"),
        (&["--gpu-type", "h100 80gb"], "5"),
        (&["--gpu-memory-at-least", "40g"], "2"),
        (&["--gpu-type", "a100", "--gpu-memory", "4g"], "2"),
        (&["--gpus", "3"], "0,1,3"),
    ] {
        let (devices, stderr) = mixed.exec(flags)?;
        ensure!(devices == expected, "{flags:?}: {devices}");
        ensure!(stderr.is_empty(), "{flags:?}: {stderr}");
    }
    Ok(())
}

#[test]
fn a_joined_environment_gets_devices_beside_its_own_and_keeps_its_configuration() -> Result<()> {
    let mixed = Mixed::new()?;
    let member = mixed.job(&["--eid", "e", "--gpus", "1"])?;
    member.runs()?;
    let lines = [
        "genv activate --id e --index 3,4",
        "echo $GENV_GPUS >&2; false",
        "genv deactivate",
        "genv activate --id e",
        "genv deactivate",
        "genv activate --id e --gpu-type a100 --gpus 2",
    ];
    let visible = visible(&mixed.account, MIXED, &lines)?;
    ensure!(visible == ["0,3,4", "1: 1\n", "", "0,3,4", "", "2,4"], "{visible:?}");
    Ok(())
}

#[test]
fn who_waits_for_a_type_gets_that_type_and_is_listed_with_it() -> Result<()> {
    let mixed = Mixed::new()?;
    let holder = mixed.job(&["--index", "2"])?;
    holder.runs()?;
    let other = mixed.job(&["--index", "4"])?;
    other.runs()?;
    let one = ["--gpu-type", "a100", "--gpu-memory-at-least", "40g"];
    let stderr = mixed.refused(&[&["exec"], &one[..], &["--", "true"]].concat())?;
    let user = genv_core::proc::username(rustix::process::getuid().as_raw());
    ensure!(stderr.contains(&format!(" of {user} holds device 2, environment ")), "{stderr}");

    let waits = mixed.job(&[&["--wait"], &one[..]].concat())?;
    ensure!(waits.stderr_lines.next_line()? == NEXT);
    let (_, listed, _) = mixed.genv(&["queue"])?;
    ensure!(listed.contains("  1        a100, 37.3 GiB or more  all     "), "{listed}");
    let listed: Value = serde_json::from_str(&mixed.genv(&["queue", "--json"])?.1)?;
    let place = &listed["waiting"][0];
    ensure!(
        place["gpu_types"] == json!(["a100"]) && place["gpu_memory_at_least_bytes"] == 40_000_000_000_u64,
        "{place}"
    );
    let numbers = mixed.job(&["--index", "0,4", "--wait"])?;
    ensure!(numbers.stderr_lines.next_line()?.contains("one before you"));
    let (_, listed, _) = mixed.genv(&["queue"])?;
    ensure!(listed.contains("numbers 0, 4  any"), "{listed}");

    other.ends()?;
    waits.runs()?;
    let (_, held, _) = mixed.genv(&["devices", "query", "--query", "eids"])?;
    let held: Vec<bool> = held.lines().map(|eids| !eids.is_empty()).collect();
    ensure!(held == [false, false, true, false, true, false], "{held:?}");
    waits.ends()?;
    numbers.runs()
}

#[test]
fn a_type_is_refused_where_the_driver_does_not_answer_and_memory_is_known_from_before() -> Result<()> {
    let account = Account::new()?;
    state::write(&account.state(), 2, &[])?;
    let host = "{devices: [{count: 2}], faults: [{init: driver_not_loaded}]}";
    let lines = ["genv activate --gpus 1 --gpu-type h100", "genv activate --gpus 1", "genv attach --index 1"];
    let visible = visible(&account, host, &lines)?;
    ensure!(visible[0].starts_with("4: genv: cannot attach devices of type 'h100': "), "{visible:?}");
    ensure!(visible[0].ends_with(", or choose devices by '--index'\n"), "{visible:?}");
    ensure!(visible[1..] == ["0", "0,1"], "{visible:?}");
    Ok(())
}
