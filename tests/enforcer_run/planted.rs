//! What a user can plant in the place of the shared state's files: nothing of it is waited for, and none of it is read
//! without end.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, ends, sleeper, victim};
use genv_tests::nvml_sim::used_by;
use genv_tests::state::{self, Environment};
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// Everything that may have a name.
const KINDS: [&str; 7] = [
    "fifo",
    "socket",
    "directory",
    "link to /dev/zero",
    "1 TiB",
    "zeros",
    "braces",
];

fn plant(path: &Path, kind: &str) -> Result<()> {
    let _ = fs::remove_file(path);
    let _ = fs::remove_dir(path);
    match kind {
        "fifo" => mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0)?,
        "socket" => drop(UnixListener::bind(path)?),
        "directory" => fs::create_dir(path)?,
        "link to /dev/zero" => symlink("/dev/zero", path)?,
        "1 TiB" => File::create(path)?.set_len(1 << 40)?,
        "zeros" => fs::write(path, vec![0; 9 << 20])?,
        _ => fs::write(path, "{\"envs\": [{".repeat(1 << 18))?,
    }
    Ok(())
}

/// The most memory that it ever had.
fn peak_mebibytes(enforcer: &Enforcer) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", enforcer.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes: u64 = line
        .and_then(|it| it.split_whitespace().next())
        .context("no peak")?
        .parse()?;
    Ok(kibibytes >> 10)
}

#[test]
fn nothing_in_the_place_of_a_state_file_is_waited_for_or_read_without_end() -> Result<()> {
    let setup = Setup::new(
        &used_by(&[]),
        "version: 1\nmode: enforce\nbreaker: {share_of_users: 1}\n\
         rules:\n- {kind: env-devices, action: terminate, for: 0s, warn: []}\n",
    )?;
    let genv = setup.genv_directory();
    let (member, process) = (sleeper(&[])?, sleeper(&[("GENV_ENVIRONMENT_ID", "mine")])?);
    let environments = [Environment::new("mine", victim(), member.pid(), &[1])];
    state::write(&genv, 2, &environments)?;
    let enforcer = setup.start()?;
    let before = peak_mebibytes(&enforcer)?;
    let confirmed = format!("genv-confirmed-{}.json", victim());
    let names = [
        "envs.json",
        "devices.json",
        "genv-members.json",
        "genv.lock",
        &confirmed,
    ];
    for name in names {
        for kind in KINDS {
            plant(&genv.join(name), kind)?;
            enforcer
                .wait_for_cycles(1)
                .with_context(|| format!("{kind} as {name}"))?;
            // Nor does a command that only reads wait.
            let mut command = enforcer.setup().program("genv", &["envs"])?;
            genv_tests::patience::output(&mut command)
                .with_context(|| format!("{kind} as {name}"))?;
        }
        let _ = fs::remove_dir(genv.join(name));
        let _ = fs::remove_file(genv.join(name));
        state::write(&genv, 2, &environments)?;
    }
    let peak = peak_mebibytes(&enforcer)?;
    ensure!(peak < before + 150, "{before} MiB, and then {peak} MiB");
    // It sees and acts as before.
    enforcer
        .setup()
        .rewrite_scenario(&used_by(&[process.pid()]))?;
    ends(process.pid())
}
