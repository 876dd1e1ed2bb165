//! State files that are damaged in every way, and the commands of another user meanwhile: no environment ends, and no
//! device gets another holder.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use genv_tests::patience::until;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::life_cycle::admitted::{BOB, Job, Machine, is_root};

type Damage = fn(&Path) -> Result<()>;

const DAMAGES: &[(&str, Damage)] = &[
    ("removed", |path| Ok(fs::remove_file(path)?)),
    ("empty", |path| Ok(fs::write(path, "")?)),
    ("cut off", |path| with_bytes(path, |bytes| bytes.truncate(bytes.len() / 2))),
    ("NUL bytes", |path| with_bytes(path, |bytes| bytes.fill(0))),
    ("bytes that are no UTF-8", |path| {
        with_bytes(path, |bytes| {
            let at = bytes.iter().position(|byte| *byte == b',').unwrap_or_default();
            bytes.splice(at..at, *b"\xff\xfe");
        })
    }),
    ("another document", |path| Ok(fs::write(path, "{\"version\": 9}")?)),
    ("too large", |path| with_bytes(path, |bytes| bytes.resize(5 << 20, b' '))),
];

const PLANTS: &[(&str, Damage)] = &[
    ("a link", |path| planted(path, |path| symlink("/etc/passwd", path))),
    ("a dangling link", |path| planted(path, |path| symlink("/nonexistent/file", path))),
    ("a folder", |path| planted(path, |path| fs::create_dir(path))),
    ("a pipe", |path| planted(path, make_pipe)),
];

pub(crate) fn make_pipe(path: &Path) -> std::io::Result<()> {
    let mode = Mode::from_raw_mode(0o666);
    Ok(mknodat(CWD, path, FileType::Fifo, mode, 0)?)
}

const FILES: [&str; 3] = ["envs.json", "devices.json", "genv-members.json"];

fn with_bytes(path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
    let mut bytes = fs::read(path)?;
    change(&mut bytes);
    Ok(fs::write(path, bytes)?)
}

fn planted(path: &Path, plant: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    // It need not be there.
    let _ = fs::remove_file(path);
    Ok(plant(path)?)
}

/// Values of one entry that are damaged: the file, the place, and what stands there.
fn entries() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("devices.json", "/devices/0", json!(5)),
        ("devices.json", "/devices/0/index", json!("x")),
        ("devices.json", "/devices/0/index", json!(1)),
        ("devices.json", "/devices/0/attachments", json!(7)),
        ("devices.json", "/devices/1/attachments", json!("e2")),
        ("devices.json", "/devices/0/attachments/0", json!(null)),
        ("devices.json", "/devices/0/attachments/0/eid", json!([])),
        ("devices.json", "/devices/0/attachments/0/gpu_memory", json!([])),
        ("devices.json", "/devices/0/attachments/0/time", json!("yesterday")),
        ("devices.json", "/devices/1/total_memory", json!(-1)),
        ("devices.json", "/devices", json!(7)),
        ("envs.json", "/envs/0", json!(null)),
        ("envs.json", "/envs/0/eid", json!([])),
        ("envs.json", "/envs/0/uid", json!(-1)),
        ("envs.json", "/envs/0/pids", json!([])),
        ("envs.json", "/envs/0/pids", json!([-1, 1e300, null])),
        ("envs.json", "/envs/0/creation", json!(5)),
        ("envs.json", "/envs/0/config", json!(7)),
        ("envs.json", "/envs/0/kernel_ids", json!(7)),
        ("envs.json", "/envs", json!(7)),
        ("genv-members.json", "/members", json!(7)),
        ("genv-members.json", "/members/0/pid", json!("x")),
        ("genv-members.json", "/devices", json!(7)),
        ("genv-members.json", "/boot_id", json!(5)),
        ("genv-members.json", "/version", json!(2)),
    ]
}

/// The commands of another user: first those that read, then those that change the state. Each prints its exit code, and two
/// of them the devices that they got.
const SCRIPT: &str = "
for command in 'envs' 'devices' 'free' 'who 0' 'usage snapshot' 'envs query --query eid'; do
    genv $command >/dev/null; echo $?
done
genv exec --eid b1 --gpus 2 -- printenv CUDA_VISIBLE_DEVICES
genv exec --eid b2 --gpus 3 -- true; echo $?
genv envs activate --eid b3 --uid USER --pid PID >/dev/null; echo $?
genv devices attach --eid b3 --count 1
genv envs config --eid b3 gpus --count 2 >/dev/null; echo $?
genv devices detach --eid b3 --quiet; echo $?
genv envs deactivate --pid PID >/dev/null; echo $?
genv exec --eid b1 --gpus 2 -- printenv CUDA_VISIBLE_DEVICES
";

const DONE: &str = "0\n0\n0\n0\n0\n0\n2,3\n4\n0\n2\n0\n0\n0\n2,3\n";

/// Damages the state of a job on devices 0 and 1, calls all commands as another user, and looks at what the job has then.
fn try_out(damage: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let machine = Machine::new()?;
    let job = machine.job()?;
    damage(&machine.state())?;
    let other = if is_root() { BOB } else { machine.user };
    let member = machine.sleeper(other)?;
    let script = SCRIPT.replace("USER", &other.to_string());
    let script = script.replace("PID", &member.pid().to_string());
    let done = machine.run(Some(other), &script)?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(String::from_utf8_lossy(&done.stdout) == DONE, "{done:?}");
    ensure!(!said.contains("panicked"), "{said}");
    keeps_its_devices(&machine, &job)
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

/// A name, and what it does to the state directory.
type Case = (String, Box<dyn Fn(&Path) -> Result<()> + Sync>);

fn all_of(cases: &[Case]) -> Result<()> {
    let failures = |cases: &[Case]| -> Vec<String> {
        let tried = cases.iter().map(|(name, damage)| (name, try_out(damage)));
        tried.filter_map(|(name, done)| Some(format!("{name}: {:#}", done.err()?))).collect()
    };
    let failed: Vec<String> = std::thread::scope(|scope| {
        let parts = cases.chunks(cases.len().div_ceil(4));
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || failures(part))).collect();
        threads.into_iter().flat_map(|it| it.join().unwrap_or_default()).collect()
    });
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

#[test]
fn no_command_turns_a_damaged_file_or_entry_into_the_loss_of_an_environment_or_a_device() -> Result<()> {
    let mut cases: Vec<Case> = Vec::new();
    for file in FILES {
        for (how, damage) in DAMAGES.iter().chain(PLANTS) {
            let damage = move |state: &Path| damage(&state.join(file));
            cases.push((format!("{file}, {how}"), Box::new(damage)));
        }
    }
    for (how, damage) in DAMAGES.iter().chain(PLANTS) {
        let damage = move |state: &Path| {
            damage(&state.join("envs.json"))?;
            damage(&state.join("devices.json"))
        };
        cases.push((format!("both, {how}"), Box::new(damage)));
    }
    for (file, place, value) in entries() {
        let name = format!("{file}, {place} is {value}");
        let damage = move |state: &Path| {
            let path = state.join(file);
            let mut content: Value = serde_json::from_slice(&fs::read(&path)?)?;
            *content.pointer_mut(place).context(place)? = value.clone();
            Ok(fs::write(path, serde_json::to_vec(&content)?)?)
        };
        cases.push((name, Box::new(damage)));
    }
    all_of(&cases)
}

#[test]
fn a_file_that_others_may_not_read_is_left_as_it_is() -> Result<()> {
    for file in FILES {
        let machine = Machine::new()?;
        let job = machine.job()?;
        let path = machine.state().join(file);
        let content = fs::read(&path)?;
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode));
        mode(0o000)?;
        for line in ["genv envs", "genv exec --gpus 1 -- true", "genv envs config --eid e1 name --name x"] {
            let done = machine.run(Some(machine.user), line)?;
            let said = String::from_utf8_lossy(&done.stderr);
            ensure!([0, 1].contains(&done.status.code().unwrap_or(2)), "{file}: {line}: {done:?}");
            ensure!(!said.contains("panicked"), "{said}");
        }
        // The unreadable file was not replaced.
        mode(0o666)?;
        ensure!(fs::read(&path)? == content, "{file}");
        keeps_its_devices(&machine, &job).context(file)?;
    }
    Ok(())
}

#[test]
fn devices_that_no_file_lists_any_more_are_those_that_a_process_of_the_environment_sees() -> Result<()> {
    let machine = Machine::new()?;
    let job = machine.job()?;
    let own = Some(machine.user);
    // Another user's command cannot know the devices, and another environment takes the first meanwhile.
    for file in ["devices.json", "genv-members.json"] {
        fs::write(machine.state().join(file), "")?;
    }
    if is_root() {
        let member = machine.sleeper(BOB)?;
        let line = format!("genv envs activate --eid b --uid {BOB} --pid {}", member.pid());
        machine.succeeds(Some(BOB), &line)?;
        machine.succeeds(Some(BOB), "genv devices attach --eid b --index 0")?;
        // On a busy machine a command may give up reading the job's environ; the next change finds its devices.
        until("its environment has the device that is left", || {
            machine.succeeds(own, "genv envs config --eid e1 name --name again")?;
            let held = machine.succeeds(own, "genv devices find --eid e1")?;
            ensure!(["\n", "1\n"].contains(&held.as_str()), "it has {held}");
            Ok(held == "1\n")
        })?;
        machine.succeeds(Some(BOB), &format!("genv envs deactivate --pid {}", member.pid()))?;
        for file in ["devices.json", "genv-members.json"] {
            fs::remove_file(machine.state().join(file))?;
        }
    }
    // An attach in the environment finds its devices again.
    machine.succeeds(own, "genv devices attach --eid e1 --count 2")?;
    keeps_its_devices(&machine, &job)?;
    // What its user gave back is not attached again.
    machine.succeeds(own, "genv devices detach --eid e1")?;
    machine.succeeds(own, "genv envs config --eid e1 name --name x")?;
    let held = machine.succeeds(own, "genv devices find --eid e1")?;
    ensure!(held == "\n", "it has {held}");
    Ok(())
}
