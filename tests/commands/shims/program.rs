//! How the real program is found.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::Result;
use genv_tests::process::{copy_program, write_script};

use crate::shims::stage::{Stage, called_with, text};

#[test]
fn what_is_not_rewritten_is_executed_in_the_same_process() -> Result<()> {
    let stage = Stage::new()?;
    for (name, line) in [
        ("nvidia-smi", "-q"),
        ("nvidia-smi", "dmon"),
        ("nvidia-smi", "nvlink -s -i 0"),
        ("nvidia-smi", "--version"),
        ("docker", "run --gpus all image"),
        ("podman", "ps"),
    ] {
        let mut command = stage.recorder(name);
        let child = command.args(line.split_whitespace()).stdout(std::process::Stdio::piped()).spawn()?;
        let pid = child.id();
        let output = child.wait_with_output()?;
        let first = text(&output.stdout).lines().next().map(str::to_owned);
        assert_eq!(first, Some(format!("pid {pid}")), "{name} {line}");
        assert_eq!(output.status.code(), Some(7), "{name} {line}");
    }
    Ok(())
}

#[test]
fn no_shim_is_taken_for_the_real_program() -> Result<()> {
    let stage = Stage::new()?;
    let elsewhere = stage.folder().join("elsewhere");
    fs::create_dir(&elsewhere)?;
    symlink(stage.shims().join("nvidia-smi"), elsewhere.join("nvidia-smi"))?;
    let alias = stage.folder().join("alias");
    symlink(stage.shims(), &alias)?;
    // Another copy of the shim, of another version say, is a shim too.
    let copied = stage.folder().join("copied");
    fs::create_dir(&copied)?;
    copy_program("genv-shim", &copied.join("nvidia-smi"))?;
    // So is that of genv 1.x, which runs the first program of that name on PATH that is not in its own folder.
    let older = stage.folder().join("site-packages/genv/shims");
    fs::create_dir_all(&older)?;
    write_script(&older.join("nvidia-smi"), "#!/bin/sh\nexec nvidia-smi \"$@\"\n")?;
    let older_alias = stage.folder().join("older-alias");
    symlink(&older, &older_alias)?;
    // Neither what cannot be executed nor a folder is a program.
    let unusable = stage.folder().join("unusable");
    fs::create_dir_all(unusable.join("folder/nvidia-smi"))?;
    fs::write(unusable.join("nvidia-smi"), "no program")?;

    let shims = stage.shims();
    let folders = [&elsewhere, &alias, &shims, &copied, &older, &older_alias, &unusable, &unusable.join("folder")];
    let folders: Vec<&std::path::Path> = folders.iter().map(|folder| folder.as_path()).collect();
    let recorders = stage.recorders();
    for path in [[&folders[..], &[recorders.as_path()]].concat(), [&[recorders.as_path()], &folders[..]].concat()] {
        let output = stage.shim("nvidia-smi", &path).arg("-q").output()?;
        assert_eq!(called_with(&text(&output.stdout)), "-i 0,1 -q", "{output:?}");
    }

    let nowhere = [&elsewhere, &alias, &unusable].map(|folder| folder.as_path());
    let output = stage.shim("nvidia-smi", &nowhere).output()?;
    assert_eq!(output.status.code(), Some(127));
    let said = text(&output.stderr);
    assert!(said.starts_with("genv: cannot run nvidia-smi: there is no other program of that name on PATH"), "{said}");
    Ok(())
}

#[test]
fn programs_that_run_one_another_or_cannot_be_run_are_said_to() -> Result<()> {
    let stage = Stage::new()?;
    let folder = stage.folder().join("folder");
    fs::create_dir(&folder)?;
    for name in ["nvidia-smi", "docker", "podman"] {
        for (script, code, words) in [
            (format!("#!/bin/sh\nexec {name} \"$@\"\n"), 126, "run one another without end"),
            ("#!/nonexistent/interpreter\n".to_owned(), 127, "cannot run"),
        ] {
            write_script(&folder.join(name), &script)?;
            let output = stage.shim(name, &[&folder]).args(["run", "image"]).output()?;
            assert_eq!(output.status.code(), Some(code), "{name}: {output:?}");
            assert!(text(&output.stderr).contains(words), "{output:?}");
        }
    }
    Ok(())
}

#[test]
fn under_its_own_name_it_says_what_it_is_for() -> Result<()> {
    let program = genv_tests::process::program("genv-shim")?;
    let run = |argument: &str| std::process::Command::new(&program).arg(argument).output();
    assert!(text(&run("--version")?.stdout).starts_with("genv-shim "));
    assert!(text(&run("--help")?.stdout).contains("GENV_BYPASS=1"));
    let output = run("-q")?;
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true));
    Ok(())
}
