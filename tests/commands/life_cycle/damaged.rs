//! A damaged state, and the commands of another user meanwhile: no environment ends, and no device gets another holder.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use genv_tests::state;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::life_cycle::admitted::{BOB, Job, Machine, is_root};

type Damage = fn(&Path) -> Result<()>;

const DAMAGES: [(&str, &str, Damage); 7] = [
    (state::FILE, "removed", |path| Ok(fs::remove_file(path)?)),
    (state::FILE, "cut off", cut_off),
    (state::FILE, "a wrong value", |path| {
        let content = fs::read_to_string(path)?;
        Ok(fs::write(path, content.replace("\"uid\":", "\"uid\":-"))?)
    }),
    (state::FILE, "a pipe", pipe),
    (state::FILE, "a folder", |path| {
        fs::remove_file(path)?;
        Ok(fs::create_dir(path)?)
    }),
    (state::COPY, "cut off", cut_off),
    (state::COPY, "a pipe", pipe),
];

fn cut_off(path: &Path) -> Result<()> {
    let content = fs::read(path)?;
    Ok(fs::write(path, &content[..content.len() / 2])?)
}

fn pipe(path: &Path) -> Result<()> {
    fs::remove_file(path)?;
    Ok(make_pipe(path)?)
}

pub(crate) fn make_pipe(path: &Path) -> std::io::Result<()> {
    let mode = Mode::from_raw_mode(0o666);
    Ok(mknodat(CWD, path, FileType::Fifo, mode, 0)?)
}

/// What commands show of a job on the devices 0 and 1.
const SHOWN: [(&str, &str); 5] = [
    ("envs", "training"),
    ("devices", "training"),
    ("who 0", "training"),
    ("envs query --query eid", "e1\n"),
    ("devices find --eid e1", "0,1\n"),
];

/// Damages the state of a job on devices 0 and 1, calls commands as another user, and looks at what the job has then.
fn try_out(file: &str, damage: Damage) -> Result<()> {
    let machine = Machine::new()?;
    let job = machine.job()?;
    let path = machine.state().join(file);
    damage(&path)?;
    let is_kept = file == state::FILE && fs::symlink_metadata(&path).is_ok();
    let other = Some(if is_root() { BOB } else { machine.user });
    // The exit code, and what is printed.
    let run = |line: &str| -> Result<(Option<i32>, String, String)> {
        let done = machine.run(other, line)?;
        Ok((done.status.code(), String::from_utf8(done.stdout)?, String::from_utf8(done.stderr)?))
    };
    let counts = |stderr: &str, verb: &str| {
        let sentence = format!("{verb} is its copy, with 1 environment");
        stderr.contains("state.json is ") && stderr.contains(&sentence)
    };
    let look = |command: &str| -> Result<String> {
        let (code, stdout, stderr) = run(&format!("genv {command}"))?;
        ensure!(code == Some(0), "{command}: {stderr}");
        ensure!(counts(&stderr, "Shown") == (file == state::FILE), "{command}: {stderr}");
        Ok(stdout)
    };
    for (command, word) in SHOWN {
        let stdout = look(command)?;
        ensure!(stdout.contains(word), "{command}: {stdout}");
    }
    let free = look("free --no-header")?;
    let free: BTreeSet<&str> = free.lines().filter_map(|line| line.split_whitespace().next()).collect();
    ensure!(free == BTreeSet::from(["2", "3"]), "{free:?}");
    if is_root() {
        let (code, _, stderr) = run("genv devices detach --eid e1")?;
        ensure!(code == Some(1) && stderr.contains("only this user and root may do so"), "{stderr}");
    }
    ensure!(kept(&machine.state())?.is_empty(), "a command that changes nothing keeps nothing");
    let (code, stdout, stderr) = run("genv exec --eid b1 --gpus 2 -- printenv CUDA_VISIBLE_DEVICES")?;
    ensure!(code == Some(0) && stdout == "2,3\n", "{stdout}{stderr}");
    ensure!(counts(&stderr, "What counts") == (file == state::FILE), "{stderr}");
    let kept = kept(&machine.state())?;
    ensure!(kept.len() == usize::from(is_kept) && kept.iter().all(|it| stderr.contains(it)), "{kept:?}: {stderr}");
    let (code, _, stderr) = run("genv exec --eid b2 --gpus 3 -- true")?;
    ensure!(code == Some(4) && !stderr.contains("copy"), "{stderr}");
    let contents = [fs::read(machine.state().join(state::FILE))?, fs::read(machine.state().join(state::COPY))?];
    ensure!(contents[0] == contents[1]);
    keeps_its_devices(&machine, &job)
}

/// The names of damaged files that were kept.
fn kept(folder: &Path) -> Result<Vec<String>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: Vec<String> = names.collect::<Result<_>>()?;
    Ok(names.into_iter().filter(|name| name.starts_with("state.json.corrupt-")).collect())
}

fn keeps_its_devices(machine: &Machine, job: &Job) -> Result<()> {
    let own = Some(machine.user);
    machine.succeeds(own, "genv envs config --eid e1 name --name again")?;
    let held = machine.succeeds(own, "genv devices find --eid e1")?;
    ensure!(held == "0,1\n", "it has {held}");
    let listed = machine.succeeds(own, "genv envs query --query eid uid pids")?;
    let expected = format!("e1,{},{}\n", machine.user, job.command.0);
    ensure!(listed == expected, "{listed}");
    ensure!(Path::new(&format!("/proc/{}", job.command.0)).exists(), "it was ended");
    Ok(())
}

#[test]
fn no_command_turns_a_damaged_file_into_the_loss_of_an_environment_or_a_device() -> Result<()> {
    for (file, how, damage) in DAMAGES {
        try_out(file, damage).with_context(|| format!("{file}: {how}"))?;
    }
    Ok(())
}

#[test]
fn a_file_that_cannot_be_read_is_left_as_it_is() -> Result<()> {
    let machine = Machine::new()?;
    let job = machine.job()?;
    let path = machine.state().join(state::FILE);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000))?;
    let version = || -> Result<_> {
        let found = fs::symlink_metadata(&path)?;
        Ok((found.ino(), found.mtime(), found.mtime_nsec()))
    };
    let before = version()?;
    for line in ["genv envs", "genv exec --gpus 1 -- true", "genv envs config --eid e1 name --name x"] {
        let done = machine.run(Some(machine.user), line)?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.code() == Some(1), "{line}: {done:?}");
        ensure!(said.contains("cannot read ") && said.contains("let everybody read it"), "{line}: {said}");
    }
    ensure!(version()? == before);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    keeps_its_devices(&machine, &job)
}
