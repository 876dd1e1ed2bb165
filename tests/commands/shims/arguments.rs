//! What the real program is called with, in every mode. It is a program that tells: the real ones refuse some of these
//! modes on a simulated driver.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Result, ensure};
use genv_tests::state;

use crate::shims::stage::{GENERATIONS, Stage, called_with, real, text};

#[test]
fn every_mode_gets_the_environments_devices_where_it_takes_them() -> Result<()> {
    let stage = Stage::new()?;
    for (typed, called) in [
        // Rewritten on the way back.
        ("", "-i 0,1"),
        ("-L", "-L"),
        ("-q -x", "-i 0,1 -q -x"),
        ("--query-compute-apps=pid --format=csv", "-i 0,1 --query-compute-apps=pid --format=csv"),
        // Restricted.
        ("-q -d MEMORY", "-i 0,1 -q -d MEMORY"),
        ("-pm 1", "-i 0,1 -pm 1"),
        ("-r -i 3,1", "-r -i 1"),
        ("-i=0 -i 1,0,3 -r", "-i=0 -i 0,1 -r"),
        ("-g 3,1 -r", "-g 1 -r"),
        // Subcommands.
        ("dmon -c 1 -i 1,2", "dmon -c 1 -i 1"),
        ("mig -lgi", "mig -i 0,1 -lgi"),
        // One device at a time.
        ("nvlink -s", "nvlink -i 0 -s\nnvlink -i 1 -s"),
        // The topology between the environment's devices, and of the machine.
        ("topo -p -i 0,1", "topo -p -i 0,1"),
        ("topo -p -i 0,2", "No devices were found"),
        ("topo -m", "topo -m"),
        ("drain -p 0000:00:00.0 -m 1", "No devices were found"),
        // Not known.
        ("--nosuch 1", "-i 0,1 --nosuch 1"),
        ("nosuch --set -i 1,2", "nosuch --set -i 1"),
        // Untouched.
        ("--help", "--help"),
    ] {
        assert_eq!(stage.recorded("mine", typed)?, called, "{typed}");
    }
    Ok(())
}

/// What the help of a real program tells of: a section's options, in all spellings.
fn options(help: &str, section: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| line.trim() != section);
    let lines = lines.skip(1).take_while(|line| !line.ends_with(" OPTIONS:"));
    let mut options = Vec::new();
    // What an option is for is further to the right.
    for line in lines.filter(|line| line.len() - line.trim_start().len() < 20) {
        for word in line.split_whitespace().take_while(|word| word.starts_with('-')) {
            options.push(word.trim_end_matches(['=', ',']).to_owned());
        }
    }
    options
}

/// The subcommands that a help tells of: each has a help of its own.
fn subcommands(help: &str) -> Vec<String> {
    let parts = help.split("\"nvidia-smi ").skip(1);
    let subcommands = parts.filter_map(|part| part.split_once(" -h\""));
    subcommands.map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn all_that_real_programs_help_with_gets_the_environments_devices() -> Result<()> {
    let stage = Stage::new()?;
    let mut helps = vec![include_str!("../../fixtures/nvidia-smi/580-options.txt").to_owned()];
    for generation in GENERATIONS {
        helps.push(text(&Command::new(real(generation)).arg("-h").output()?.stdout));
    }
    let all = |section: &str| -> BTreeSet<String> { helps.iter().flat_map(|help| options(help, section)).collect() };
    let settings = all("DEVICE MODIFICATION OPTIONS:");
    ensure!(settings.len() > 50, "{settings:?}");
    let questions = ["LIST", "SUMMARY", "QUERY", "SELECTIVE QUERY"];
    let questions = questions.map(|section| all(&format!("{section} OPTIONS:")));
    for option in settings.iter().chain(questions.iter().flatten()) {
        let line = format!("{option} 1");
        let expected = match option.as_str() {
            "-i" | "--id" => line.clone(),
            // They take no devices.
            "-L" | "--list-gpus" | "-B" | "--list-excluded-gpus" | "-u" | "--unit" | "--dtd" => line.clone(),
            // That goes to a file which the shim writes.
            "-f" | "--filename" => "-i 0,1".to_owned(),
            _ => format!("-i 0,1 {line}"),
        };
        let mut command = stage.recorder("nvidia-smi");
        // That it fails is no answer, which would go into the file.
        let output = command.current_dir(stage.folder()).args(line.split(' ')).output()?;
        assert_eq!(called_with(&text(&output.stdout)), expected);
    }

    let known: BTreeSet<String> = helps.iter().flat_map(|help| subcommands(help)).collect();
    ensure!(known.len() > 20, "{known:?}");
    for subcommand in known {
        let called = stage.recorded("alone", &subcommand)?;
        match subcommand.as_str() {
            // They are about the whole machine, or name their devices otherwise.
            "topo" | "replay" => assert_eq!(called, subcommand),
            // Without a name it may be about any device.
            "drain" => assert_eq!(called, ""),
            _ => assert_eq!(called, format!("{subcommand} -i 2")),
        }
    }
    Ok(())
}

#[test]
fn lists_end_where_the_real_program_takes_no_more() -> Result<()> {
    let stage = Stage::new()?;
    let sixteen = "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15";
    for (environment, typed, called) in [
        ("five", "dmon", "dmon -i 0,1,2,3,4".to_owned()),
        ("wide", "dmon", format!("dmon -i {sixteen}")),
        ("five", "pmon", "[all 1] pmon -i 0,1,2,3,4".to_owned()),
        ("five", "pmon -i 0,1", "pmon -i 0,1".to_owned()),
        ("wide", "pmon", format!("[all 1] pmon -i {sixteen}")),
        ("alone", "nvlink -s", "nvlink -i 2 -s".to_owned()),
        ("alone", "encodersessions -l 1", "encodersessions -i 2 -l 1".to_owned()),
    ] {
        assert_eq!(stage.recorded(environment, typed)?, called, "{environment} {typed}");
    }
    let mut command = stage.recorder("nvidia-smi");
    let output = command.arg("dmon").env("GENV_ENVIRONMENT_ID", "wide").output()?;
    assert!(text(&output.stderr).contains("the first 16 of 18 devices"), "{output:?}");
    Ok(())
}

#[test]
fn settings_never_reach_a_device_that_is_not_the_environments() -> Result<()> {
    let stage = Stage::new()?;
    let settings = "-pm 1|-r|-pl 100|-mig 0|--gpu-reset|-r -i 3|mig -dgi|clocks --sync-boost-add|rusd -spm none|-svfd 1|--nosuch 1|nosuch";
    for typed in settings.split('|') {
        let called = stage.recorded("free", typed)?;
        assert_eq!(called, "No devices were found", "{typed}");
        // Nobody knows what an environment has that does not exist any more.
        assert_eq!(stage.recorded("gone", typed)?, "", "{typed}");
    }
    let of_others = "-r -i 3|-r -i GPU-00000000-0000-0000-0000-000000000003|-r -g 3|--gpu=3 -r|-r -i 0 -i 3|\
        -r -i 0 -g 3|power-profiles -sr 1 -i 3|-pm 1 --id=2,3";
    for typed in of_others.split('|') {
        assert_eq!(stage.recorded("mine", typed)?, "No devices were found", "{typed}");
    }
    // What is not known may be a setting, and a note says what became of it.
    for (environment, code, expected) in [("free", 6, "GENV_BYPASS=1"), ("mine", 7, "restricts it to this")] {
        let mut command = stage.recorder("nvidia-smi");
        let output = command.arg("--nosuch").env("GENV_ENVIRONMENT_ID", environment).output()?;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains("\"--nosuch\"") && said.contains(expected), "{said}");
    }
    let mut drain = stage.recorder("nvidia-smi");
    let output = drain.args(["drain", "-m", "1"]).env("GENV_ENVIRONMENT_ID", "mine").output()?;
    assert_eq!((output.status.code(), called_with(&text(&output.stdout))), (Some(1), String::new()));
    assert!(text(&output.stderr).contains("name it behind -p or --pciid; 'GENV_BYPASS=1"), "{output:?}");
    std::fs::write(stage.state().join(state::FILE), "{\"version\":")?;
    let output = stage.recorder("nvidia-smi").args(["-pm", "1"]).output()?;
    assert_eq!((output.status.code(), called_with(&text(&output.stdout))), (Some(1), String::new()));
    assert!(text(&output.stderr).contains("state.json"), "{output:?}");
    Ok(())
}

#[test]
fn outside_an_environment_and_after_its_end_the_real_program_is_untouched() -> Result<()> {
    let stage = Stage::new()?;
    for (variable, value) in [
        ("GENV_ENVIRONMENT_ID", None),
        // An empty variable names none.
        ("GENV_ENVIRONMENT_ID", Some("")),
        ("GENV_ENVIRONMENT_ID", Some("gone")),
        ("GENV_BYPASS", Some("1")),
    ] {
        let has_ended = value == Some("gone");
        // After the end no setting runs.
        let settings = ["-pm 1", "nvlink -s"];
        for line in ["", "-L", "-q -x", "dmon"].iter().chain(settings.iter().filter(|_| !has_ended)) {
            let mut command = stage.recorder("nvidia-smi");
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
            let output = command.args(line.split_whitespace()).output()?;
            assert_eq!(called_with(&text(&output.stdout)), *line, "{variable} {value:?}");
            assert_eq!(output.status.code(), Some(7), "{variable} {value:?} {line}");
            let said = text(&output.stderr);
            assert_eq!(said.contains("environment \"gone\" does not exist any more"), has_ended, "{said}");
            ensure!(has_ended || said.is_empty(), "{variable} {value:?} {line}: {said}");
        }
    }
    Ok(())
}

#[test]
fn hostile_names_neither_run_nor_play_tricks_on_the_terminal() -> Result<()> {
    let stage = Stage::new()?;
    let witness = stage.folder().join("witness");
    let eid = format!("$(touch {0}) `touch {0}`; touch {0}; '\"\u{1b}]0;x\u{7}\n", witness.display());
    for line in ["", "-pm 1", "-i $(touch_me)\u{1b}[31m"] {
        for environment in [eid.as_str(), "mine"] {
            let mut command = stage.recorder("nvidia-smi");
            let output = command.args(line.split_whitespace()).env("GENV_ENVIRONMENT_ID", environment).output()?;
            let said = text(&output.stderr);
            assert!(!said.contains('\u{1b}') && said.lines().count() <= 1, "{said:?}");
        }
    }
    assert!(!witness.exists());
    Ok(())
}
