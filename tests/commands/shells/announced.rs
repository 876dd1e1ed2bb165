//! A user at a terminal reads one line about the effect of a command on the environment; scripts get no such line.

use std::fs;

use anyhow::{Result, ensure};
use genv_tests::shell::Shell;
use genv_tests::terminal::{PROMPT, Terminal};

use crate::shells::terminal::{fresh, ready, set_up, succeed};

const MODEL: &str = "NVIDIA H100 80GB HBM3";

fn printed(terminal: &mut Terminal, line: &str) -> Result<Vec<String>> {
    let shown = succeed(terminal, line)?;
    // fish prints invisible characters before the line.
    let lines = shown.lines().filter_map(|line| line.split_once("genv: "));
    Ok(lines.map(|(_, line)| line.trim_end().to_owned()).collect())
}

fn tells(terminal: &mut Terminal, story: &[(&str, &str)]) -> Result<()> {
    for (line, expected) in story {
        let lines = printed(terminal, line)?;
        ensure!(lines == [*expected], "{terminal:?}: {line}: {lines:#?}");
    }
    Ok(())
}

#[test]
fn each_change_of_an_environment_is_said_in_one_line() -> Result<()> {
    let (_account, mut terminal) = fresh(Shell::Bash)?;
    let of = |text: &str| text.replace("MODEL", MODEL);
    for (line, expected) in [
        (
            "genv activate --id e1 --gpus 2 --gpu-memory 4g",
            "started environment e1 with devices 0, 1 (MODEL, 4g of 80.0 GiB each)",
        ),
        ("genv attach --count 3", "attached device 2 (MODEL, 4g of 80.0 GiB): environment e1 has devices 0, 1, 2"),
        (
            "genv config gpus 1",
            "configured gpus 1, gpu-memory 4g (before: gpus 2, gpu-memory 4g). Devices stay as they are until 'genv attach'",
        ),
        ("genv attach", "detached devices 1, 2: environment e1 has device 0 (MODEL, 4g of 80.0 GiB)"),
        (
            "genv config gpu-memory --clear",
            "configured gpus 1 (before: gpus 1, gpu-memory 4g). Devices stay as they are until 'genv attach'",
        ),
        ("genv attach", "environment e1 has device 0 (MODEL, 80.0 GiB)"),
        ("genv attach", "environment e1 has device 0 (MODEL, 80.0 GiB) as before"),
        ("genv config name x", "configured gpus 1, name x (before: gpus 1)"),
        ("genv detach --index 3", "detached no device: environment e1 has device 0"),
        ("genv detach", "detached device 0: environment e1 has no device"),
        ("genv attach --index 3", "attached device 3 (MODEL, 80.0 GiB) to environment e1"),
        ("genv deactivate", "left environment e1, which has ended: device 3 was detached"),
        ("genv activate --id e2", "started environment e2 without devices: 'genv attach --count 1' attaches one"),
        ("genv config --clear", "configured no values, as before"),
        ("genv deactivate", "left environment e2, which has ended"),
    ] {
        tells(&mut terminal, &[(line, &of(expected))])?;
    }
    Ok(())
}

#[test]
fn what_was_loaded_and_saved_is_said_with_its_folder() -> Result<()> {
    let account = set_up(Shell::Bash)?;
    let folder = account.home().join(".genv");
    fs::create_dir(&folder)?;
    fs::write(folder.join("gpus"), "2")?;
    fs::write(folder.join("name"), "from disk")?;
    let path = folder.display();
    let mut terminal = ready(&account, Shell::Bash)?;
    let started =
        format!("started environment e1 with devices 0, 1 ({MODEL}, 80.0 GiB each); loaded gpus 2 from {path}");
    tells(
        &mut terminal,
        &[
            ("genv activate --id e1 --name own", &started),
            (
                "genv config gpus 3 --save",
                &format!(
                    "configured gpus 3, name own (before: gpus 2, name own); saved gpus 3, name own to {path}. Devices stay as they are until 'genv attach'"
                ),
            ),
            ("genv config --save", &format!("saved gpus 3, name own to {path}")),
            ("genv config --load", &format!("loaded gpus 3, name own from {path}")),
        ],
    )?;
    // A shell that joins loads no `.genv`.
    let mut second = ready(&account, Shell::Bash)?;
    let joined = format!("joined environment e1 with devices 0, 1 ({MODEL}, 80.0 GiB each)");
    let remains = format!("left environment e1, which continues with devices 0, 1: process {} remains", terminal.pid());
    let attaches = "started environment e2 without devices: 'genv attach' attaches 3; loaded gpus 3, name own from ";
    tells(
        &mut second,
        &[
            ("genv activate --id e1", &joined),
            ("genv deactivate", &remains),
            ("genv activate --id e2 --no-attach", &format!("{attaches}{path}")),
        ],
    )?;
    Ok(())
}

#[test]
fn devices_of_different_models_are_named_with_their_models() -> Result<()> {
    let account = set_up(Shell::Bash)?;
    let scenario = account.home().join("scenario.yaml");
    let devices = "[{name: Tesla T4, memory: 15gi}, {name: NVIDIA A100-SXM4-40GB, memory: 40gi}]";
    fs::write(&scenario, format!("version: 1\nhosts:\n- devices: {devices}\n"))?;
    let mut terminal = ready(&account, Shell::Bash)?;
    succeed(&mut terminal, &format!("export GENV_SCENARIO={}", scenario.display()))?;
    let lines = printed(&mut terminal, "genv activate --id e1 --gpus 2")?;
    let expected = [
        "the environment has devices of different models: NVIDIA A100-SXM4-40GB, Tesla T4. 'genv devices' shows them",
        "started environment e1 with device 0 (Tesla T4, 15.0 GiB) and device 1 (NVIDIA A100-SXM4-40GB, 40.0 GiB)",
    ];
    ensure!(lines == expected, "{lines:#?}");
    Ok(())
}

#[test]
fn a_change_is_said_at_a_terminal_and_nothing_to_scripts_and_to_those_who_ask_for_quiet() -> Result<()> {
    for shell in Shell::ALL {
        let (account, mut terminal) = fresh(shell)?;
        let started = "started environment e1 without devices: 'genv attach --count 1' attaches one";
        tells(&mut terminal, &[("genv activate --id e1", started)])?;
        let quiet = "genv deactivate --quiet|genv activate --quiet --id e1 --gpus 1|genv config -q name x|\
            genv config -q --clear|genv attach -q --count 2|genv detach --quiet|genv deactivate -q";
        // Output to a file has no reader at a terminal.
        let into_file = "genv activate --gpus 1 2>stderr; genv attach --count 2 2>>stderr; genv deactivate 2>>stderr";
        for line in quiet.split('|').chain([into_file]) {
            let lines = printed(&mut terminal, line)?;
            ensure!(lines.is_empty(), "{shell}: {line}: {lines:#?}");
        }
        ensure!(fs::read_to_string(account.home().join("stderr"))?.is_empty());
        // A script from an interactive shell has the terminal as its stderr.
        fs::write(account.home().join("script"), script(shell))?;
        let name = shell.name();
        let (shown, code) = terminal.run(&format!("{name} script"))?;
        ensure!(code == 0 && shown.contains("<0>"), "{shell}: {shown}");
        ensure!(!shown.contains("genv: "), "{shell}: {shown}");
        terminal.wait(PROMPT)?;
    }
    Ok(())
}

fn script(shell: Shell) -> String {
    format!(
        "{}\ngenv activate --gpus 1 && genv config name x && genv detach && echo \"<{}>\"\ngenv deactivate\n",
        shell.setup(),
        shell.code()
    )
}

#[test]
fn a_command_and_a_job_are_told_what_they_run_with() -> Result<()> {
    let (_account, mut terminal) = fresh(Shell::Bash)?;
    tells(&mut terminal, &[("genv exec -- true", "the command runs without devices: '--gpus 1' reserves one")])?;
    // A script in the terminal is told nothing.
    for line in [
        "genv exec --quiet -- true",
        "genv exec --gpus 0 -- true",
        "genv exec --gpus 1 -- true",
        "sh -c 'genv exec -- true; exit 0'",
    ] {
        let lines = printed(&mut terminal, line)?;
        ensure!(lines.is_empty(), "{line}: {lines:#?}");
    }
    for (number, flags, expected) in [
        (1, "--name train", "job 1 (train) runs without devices: '--gpus 1' reserves one. It continues".to_owned()),
        (2, "--gpus 1", format!("job 2 runs with device 0 ({MODEL}, 80.0 GiB). It continues")),
        (3, "--gpus 1 --for 1h", format!("job 3 runs with device 0 ({MODEL}, 80.0 GiB) until ")),
    ] {
        let line = format!("genv exec --detach {flags} -- true; genv wait {number}");
        let lines = printed(&mut terminal, &line)?;
        ensure!(lines.len() == 1 && lines[0].starts_with(&expected), "{line}: {lines:#?}");
    }
    Ok(())
}
