//! What is shown: the environment's devices, its memory, its processes, and not a byte else changed.

use anyhow::{Context, Result, ensure};

use crate::shims::stage::{GENERATIONS, MIG_OF_1, MIG_OF_3, Stage, UUID, real_output, text};

fn shown(stage: &Stage, generation: u32, arguments: &[&str]) -> Result<String> {
    let output = stage.nvidia_smi(generation).args(arguments).output()?;
    ensure!(output.status.success(), "{generation} {arguments:?}: {output:?}");
    // Only the summary reports the content that it leaves out.
    let said = text(&output.stderr);
    let is_summary = arguments.first().is_none_or(|first| *first == "-f");
    ensure!(
        said.lines().all(|line| is_summary && line.contains("used by others")),
        "{generation} {arguments:?}: {output:?}"
    );
    Ok(text(&output.stdout))
}

fn without_time(table: &str) -> &str {
    table.split_once('\n').map_or(table, |(_, rest)| rest)
}

/// Without the time, and without the limit that nvidia-smi takes from uninitialised memory.
fn steady(output: &str) -> Vec<&str> {
    let varies = |line: &str| line.contains("<timestamp>") || line.contains("<default_power_limit>");
    without_time(output).lines().filter(|line| !varies(line)).collect()
}

/// With names in the place of pids, in the same width.
fn without_pids(stage: &Stage, table: &str) -> String {
    let width = |pid: u32, name: &str| (format!(" {pid:>9}  "), format!(" {name:>9}  "));
    let (own, own_name) = width(stage.own.pid(), "own");
    let (other, other_name) = width(stage.other.pid(), "other");
    table.replace(&own, &own_name).replace(&other, &other_name)
}

#[test]
fn the_table_shows_the_environment_in_the_layout_of_every_generation_and_what_others_use() -> Result<()> {
    let stage = Stage::new()?;
    for generation in GENERATIONS {
        let output = stage.nvidia_smi(generation).output()?;
        let table = text(&output.stdout);
        let table = without_pids(&stage, without_time(&table));
        insta::assert_snapshot!(format!("table_{generation}"), table);
        assert_eq!(
            text(&output.stderr),
            "genv: 1.0 GiB of device 0 are used by others: 'genv who 0' tells more\n\
             genv: 6.0 GiB of device 1 are used by others: 'genv who 1' tells more\n",
            "{generation}"
        );
    }
    Ok(())
}

#[test]
fn named_devices_are_shown_as_far_as_they_are_the_environments() -> Result<()> {
    let stage = Stage::new()?;
    // 535 tells PCI addresses by the simulated library too.
    let indices = |ids: &str| -> Result<String> {
        let query = ["--query-gpu=index", "--format=csv,noheader", "-i", ids];
        Ok(shown(&stage, 535, &query)?.replace('\n', " "))
    };
    for (ids, expected) in [
        ("0,1,2,3,99", "0 1 "),
        (MIG_OF_1, "1 "),
        (&format!("{},{},0", UUID[2], MIG_OF_3), "0 "),
        ("00000000:01:00.0,nosuch", "0 "),
    ] {
        assert_eq!(indices(ids)?, expected, "{ids}");
    }
    for ids in ["2", MIG_OF_3, ""] {
        let output = stage.nvidia_smi(550).args(["-i", ids]).output()?;
        assert_eq!(text(&output.stdout), "No devices were found\n", "{ids}");
        assert_eq!(output.status.code(), Some(6), "{ids}");
        assert!(text(&output.stderr).contains("attached to 0,1"), "{output:?}");
    }
    Ok(())
}

#[test]
fn the_list_has_the_environments_gpus_with_their_mig_devices_and_raw_shows_everybody_there() -> Result<()> {
    let stage = Stage::new()?;
    for generation in GENERATIONS {
        let real = text(&real_output(&stage, generation, &["-L"])?.stdout);
        let end = real.find("GPU 2").context("no GPU 2")?;
        assert!(real[..end].contains(MIG_OF_1));
        assert_eq!(shown(&stage, generation, &["-L"])?, real[..end], "{generation}");
        let real = text(&real_output(&stage, generation, &["-i", "0,1"])?.stdout);
        let raw = stage.nvidia_smi(generation).env("GENV_SMI", "raw").output()?;
        assert_eq!(without_time(&text(&raw.stdout)), without_time(&real), "{generation}");
    }
    Ok(())
}

#[test]
fn a_file_gets_what_a_terminal_would() -> Result<()> {
    let stage = Stage::new()?;
    let file = stage.folder().join("log");
    std::fs::write(&file, "what was there before\n".repeat(1000))?;
    for arguments in [&[][..], &["-q", "-x"], &["--query-compute-apps=pid,name", "--format=csv"]] {
        let into_file = [arguments, &["-f", file.to_str().context("a path")?]].concat();
        assert_eq!(shown(&stage, 550, &into_file)?, "");
        let written = std::fs::read_to_string(&file)?;
        let direct = shown(&stage, 550, arguments)?;
        assert_eq!(steady(&written), steady(&direct), "{arguments:?}");
        ensure!(!arguments.contains(&"--format=csv") || written == direct, "{written}");
        assert!(written.contains(&stage.own.pid().to_string()), "{written}");
        assert!(!written.contains(&stage.other.pid().to_string()), "{written}");
    }
    // A file that cannot be written is the real program's to complain about.
    let output = stage.nvidia_smi(550).args(["-f", "/nonexistent/log"]).output()?;
    let real = real_output(&stage, 550, &["-f", "/nonexistent/log"])?;
    assert_eq!((output.status, output.stdout), (real.status, real.stdout));
    Ok(())
}

#[test]
fn a_file_is_replaced_by_answers_alone() -> Result<()> {
    let stage = Stage::new()?;
    let file = stage.folder().join("log");
    let path = file.to_str().context("a path")?;
    let run = |generation, arguments: &[&str]| {
        std::fs::write(&file, "kept\n")?;
        let mut command = stage.nvidia_smi(generation);
        command.env("GENV_ENVIRONMENT_ID", "alone");
        let output = command.args(arguments).args(["-f", path]).output()?;
        anyhow::Ok((output, std::fs::read_to_string(&file)?))
    };
    for generation in GENERATIONS {
        for refused in [&["-l", "0"][..], &["-L"], &["--query-compute-apps=pid,nosuch", "--format=csv"]] {
            let (shim, content) = run(generation, refused)?;
            assert_eq!(content, "kept\n", "{generation} {refused:?}");
            let real = real_output(&stage, generation, &[refused, &["-f", path]].concat())?;
            assert_eq!((shim.stdout, shim.status), (real.stdout, real.status), "{generation} {refused:?}");
            ensure!(!shim.status.success());
        }
        // No process is an answer too.
        for (format, expected) in [("csv,noheader", ""), ("csv", "pid\n")] {
            let format = format!("--format={format}");
            let (shim, content) = run(generation, &["--query-compute-apps=pid", &format])?;
            assert_eq!((&*content, shim.status.code()), (expected, Some(0)));
        }
    }
    Ok(())
}

#[test]
fn what_cannot_be_written_is_said() -> Result<()> {
    let stage = Stage::new()?;
    let full = || std::fs::File::options().write(true).open("/dev/full");
    for arguments in [&[][..], &["-L"], &["-q", "-x"], &["-f", "/dev/full"]] {
        let mut command = stage.nvidia_smi(550);
        let output = command.args(arguments).stdout(full()?).output()?;
        let said = text(&output.stderr);
        ensure!(output.status.code() == Some(1), "{arguments:?}: {output:?}");
        ensure!(said.starts_with("genv: cannot write to ") && said.contains("No space left"), "{said}");
    }
    Ok(())
}

#[test]
fn a_detached_environment_has_no_devices() -> Result<()> {
    let stage = Stage::new()?;
    let none = include_str!("../../fixtures/nvidia-smi/580-table-none.txt");
    let empty_list = "No devices found.\n";
    for (arguments, expected, code) in [
        (&[][..], none, 6),
        (&["-L"], empty_list, 0),
        (&["-q", "-x"], none, 6),
        (&["--query-gpu=index", "--format=csv"], none, 6),
        (&["dmon"], none, 6),
        (&["nvlink", "-s"], none, 6),
        (&["topo", "-p", "-i", "0,1"], none, 6),
    ] {
        let mut command = stage.nvidia_smi(550);
        let output = command.args(arguments).env("GENV_ENVIRONMENT_ID", "free").output()?;
        assert_eq!((&*text(&output.stdout), output.status.code()), (expected, Some(code)), "{arguments:?}");
        assert!(text(&output.stderr).contains("genv attach"), "{output:?}");
    }
    // As the real program says when it is asked for what is not there.
    for generation in GENERATIONS {
        let real = real_output(&stage, generation, &["-i", "99"])?;
        assert_eq!((&*text(&real.stdout), real.status.code()), (none, Some(6)), "{generation}");
    }
    stage.simulation.rewrite("version: 1\nhosts: [{name: gpu02, devices: []}]");
    for generation in GENERATIONS {
        let real = real_output(&stage, generation, &["-L"])?;
        assert_eq!((&*text(&real.stdout), real.status.code()), (empty_list, Some(0)), "{generation}");
    }
    Ok(())
}

#[test]
fn warnings_and_failures_of_the_real_program_come_through() -> Result<()> {
    let stage = Stage::new()?;
    for generation in GENERATIONS {
        for arguments in [&["--query-compute-apps=pid,nosuch", "--format=csv"][..], &["-L", "-i", "0"], &["-q", "-i"]] {
            let shim = stage.nvidia_smi(generation).args(arguments).output()?;
            let real = real_output(&stage, generation, arguments)?;
            assert_eq!((shim.stdout, shim.status), (real.stdout, real.status), "{generation} {arguments:?}");
            assert!(!shim.status.success());
        }
    }
    stage.simulation.rewrite("version: 1\nhosts: [{name: gpu02, devices: [{memory: 40gi}], environments: [], faults: [{init: driver_not_loaded}]}]");
    for arguments in [&[][..], &["-L"], &["-q", "-x"]] {
        let shim = stage.nvidia_smi(550).args(arguments).output()?;
        let real = real_output(&stage, 550, arguments)?;
        assert_eq!((text(&shim.stdout), shim.status.code()), (text(&real.stdout), Some(9)), "{arguments:?}");
    }
    Ok(())
}
