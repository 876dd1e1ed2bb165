//! Users who keep every rule, what genv's files say of them, and the daemon that judges them.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use genv_tests::enforcer::{Enforcer, Setup, is_alive, sleeper_of};
use genv_tests::patience::until;
use genv_tests::process::{Sleeper, children};
use genv_tests::root::FIRST_UID;
use jiff::{Timestamp, tz::TimeZone};
use serde_json::{Value, json};

use super::INTERVAL;
use super::clock::WallClock;

/// Who breaks the rules, and writes what he likes into the state.
pub(super) const MALLORY: u32 = FIRST_UID + 10;

/// Whom nothing may happen to, from [`MALLORY`] on.
const ALICE: u32 = MALLORY + 1;
const BOB: u32 = MALLORY + 2;
const CAROL: u32 = MALLORY + 3;
const DAVE: u32 = MALLORY + 4;
const ERIN: u32 = MALLORY + 5;
const FRANK: u32 = MALLORY + 6;

/// Who breaks a rule when all is over.
const GRACE: u32 = MALLORY + 7;

const DEVICES: usize = 8;

/// A device that no environment of the others has.
pub(super) const SPARE: usize = 7;

/// As `genv` writes times.
pub(super) const TIME: &str = "%d/%m/%Y %H:%M:%S";

fn rules() -> String {
    format!(
        "version: 1
mode: enforce
interval: {INTERVAL}
timezone: UTC
breaker: {{signals_per_minute: 200, share_of_users: 1}}
defaults: {{action: terminate, warn: []}}
rules:
- {{kind: non-env-processes, for: 500ms, match: {{except_users: [\"uid:{CAROL}\"]}}}}
- {{kind: env-devices, action: kill, for: 500ms, grace: 1s}}
- {{kind: env-memory, for: 500ms}}
- {{kind: max-devices-per-user, limit: 2, action: detach, for: 500ms}}
- {{kind: max-environments-per-user, limit: 2, for: 500ms}}
- {{kind: max-processes-per-environment, limit: 4, for: 500ms}}
- {{kind: max-memory-per-user, limit: 60gi, for: 500ms}}
- {{kind: max-age, limit: 1d, for: 0s}}
- {{kind: idle, below: 0.05, over: 2s, for: 0s, action: detach}}
"
    )
}

/// Both of genv's files.
#[derive(Clone, Debug)]
pub(super) struct Files {
    pub(super) environments: Value,
    pub(super) devices: Value,
}

impl Files {
    pub(super) fn environments(&mut self) -> &mut Vec<Value> {
        self.environments["envs"].as_array_mut().unwrap()
    }

    pub(super) fn attachments(&mut self, device: usize) -> &mut Vec<Value> {
        self.devices["devices"][device]["attachments"].as_array_mut().unwrap()
    }

    /// Adds an environment that is attached to these devices.
    pub(super) fn add(&mut self, eid: &str, uid: u32, pids: &[u32], devices: &[usize], memory: Option<&str>) {
        let time = now();
        self.environments().push(json!({
            "eid": eid, "uid": uid, "creation": time, "username": format!("u{uid}"),
            "config": {"name": null, "gpu_memory": memory, "gpus": devices.len()},
            "pids": pids, "kernel_ids": [],
        }));
        for device in devices {
            self.attachments(*device).push(json!({"eid": eid, "gpu_memory": memory, "time": time}));
        }
    }
}

/// The time as `genv` writes it, in UTC.
pub(super) fn now() -> String {
    Timestamp::now().to_zoned(TimeZone::UTC).strftime(TIME).to_string()
}

/// A process to which nothing may happen.
#[derive(Debug)]
pub(super) struct Innocent {
    pub(super) name: &'static str,
    pub(super) uid: u32,
    pub(super) pid: u32,
    /// What starts it, or itself.
    _started: Sleeper,
    uses: String,
}

/// A process that uses these devices, as a scenario has it.
pub(super) fn uses(pid: u32, devices: &[usize], memory: &str, utilization: f64) -> String {
    let devices =
        devices.iter().map(|index| format!("{{index: {index}, memory: {memory}, utilization: {utilization}}}"));
    let devices = devices.collect::<Vec<_>>().join(", ");
    format!("{{pid: {pid}, devices: [{devices}]}}")
}

#[derive(Debug)]
pub(super) struct Lab {
    pub(super) enforcer: Enforcer,
    pub(super) innocents: Vec<Innocent>,
    /// The files before any mischief.
    pub(super) honest: Files,
    pub(super) clock: WallClock,
}

impl Lab {
    pub(super) fn start() -> Result<Self> {
        let mut honest = Files {
            environments: json!({"envs": []}),
            devices: json!({"devices": (0..DEVICES)
                .map(|index| json!({"index": index, "total_memory": "81920mi", "attachments": []}))
                .collect::<Vec<_>>()}),
        };
        let mut innocents = Vec::new();
        let mut add = |name, uid, started: Sleeper, pid: Option<u32>, devices: &[usize]| {
            let pid = pid.unwrap_or(started.pid());
            let uses = if devices.is_empty() { String::new() } else { uses(pid, devices, "8gi", 0.9) };
            innocents.push(Innocent { name, uid, pid, _started: started, uses });
            pid
        };
        let outside = [("A", "1")];
        // A shell that lives, and a process that says where it belongs.
        let shell = add("alice's shell", ALICE, sleeper_of(ALICE, &outside)?, None, &[]);
        honest.add("a", ALICE, &[shell], &[0], Some("40gi"));
        add("alice's job", ALICE, sleeper_of(ALICE, &[("GENV_ENVIRONMENT_ID", "a")])?, None, &[0]);
        // A member that uses its device itself.
        let member = add("bob's job", BOB, sleeper_of(BOB, &outside)?, None, &[1]);
        honest.add("b", BOB, &[member], &[1], None);
        // Outside, as the rule allows her.
        add("carol's job", CAROL, sleeper_of(CAROL, &outside)?, None, &[2]);
        // A child of a shell, which says nothing.
        let (shell, child) = shell_with_a_child(DAVE)?;
        let (shell_pid, mut eids) = (shell.pid(), Vec::new());
        add("dave's job", DAVE, shell, Some(child), &[3]);
        honest.add("d", DAVE, &[shell_pid], &[3], Some("20gi"));
        // On no device.
        add("erin's editor", ERIN, sleeper_of(ERIN, &outside)?, None, &[]);
        // All that is allowed.
        for (eid, device) in [("f1", 4), ("f2", 5)] {
            let job = add("frank's job", FRANK, sleeper_of(FRANK, &[("GENV_ENVIRONMENT_ID", eid)])?, None, &[device]);
            honest.add(eid, FRANK, &[job], &[device], Some("30gi"));
            eids.push(eid);
        }
        let setup = Setup::new(&scenario(&innocents, &[]), &rules())?.interval(INTERVAL);
        fs::set_permissions(setup.folder(), fs::Permissions::from_mode(0o755))?;
        restore(&setup, &honest)?;
        let (setup, clock) = WallClock::of(setup)?;
        let enforcer = setup.start()?;
        Ok(Self { enforcer, innocents, honest, clock })
    }

    pub(super) fn state(&self) -> PathBuf {
        self.enforcer.setup().genv_directory()
    }

    /// Undoes what was done to the files and to the clock.
    pub(super) fn restore(&self) -> Result<()> {
        self.clock.turn("+0")?;
        restore(self.enforcer.setup(), &self.honest)
    }

    /// Has the driver tell of the innocents, and of these.
    pub(super) fn show(&self, others: &[String], faults: &str) -> Result<()> {
        let scenario = scenario(&self.innocents, others);
        self.enforcer.setup().rewrite_scenario(&format!("{scenario}  faults: [{faults}]\n"))
    }

    /// The innocents who were ended.
    pub(super) fn ended(&self) -> Vec<String> {
        let ended = self.innocents.iter().filter(|it| !is_alive(it.pid));
        ended.map(|it| format!("{} ({}) was ended", it.name, it.pid)).collect()
    }

    /// Whether an environment has this device by its own user's will.
    pub(super) fn holds(&self, eid: &str, device: u64) -> bool {
        let attachments = self.honest.devices["devices"][usize::try_from(device).unwrap()]["attachments"].as_array();
        attachments.is_some_and(|all| all.iter().any(|it| it["eid"] == eid))
    }

    /// A process that breaks a rule and has nothing to do with the mischief, which the driver lists.
    pub(super) fn guilty(&self) -> Result<Sleeper> {
        let guilty = sleeper_of(GRACE, &[("A", "1")])?;
        self.show(&[uses(guilty.pid(), &[SPARE], "1gi", 0.5)], "")?;
        Ok(guilty)
    }

    pub(super) fn is_innocents(&self, pid: u64) -> bool {
        self.innocents.iter().any(|it| u64::from(it.pid) == pid)
    }
}

/// A shell of a user, and a child of it that sleeps, and ends with it.
fn shell_with_a_child(uid: u32) -> Result<(Sleeper, u32)> {
    let mut command = Command::new("sh");
    command.args(["-c", "setpriv --pdeathsig KILL sleep 1000000; true"]).env_clear().env("PATH", "/usr/bin:/bin");
    let shell = Sleeper::spawn(command.uid(uid).gid(uid))?;
    let mut child = None;
    until("the shell has a child", || {
        child = children(shell.pid()).first().copied();
        let comm = child.map(|child| fs::read_to_string(format!("/proc/{child}/comm")));
        Ok(matches!(comm, Some(Ok(comm)) if comm == "sleep\n"))
    })?;
    Ok((shell, child.unwrap()))
}

fn scenario(innocents: &[Innocent], others: &[String]) -> String {
    let uses = innocents.iter().map(|it| &it.uses).filter(|it| !it.is_empty());
    let all = uses.chain(others).map(String::as_str).collect::<Vec<_>>().join(",\n    ");
    format!("version: 1\nhosts:\n- devices: [{{count: {DEVICES}, memory: 80gi}}]\n  processes: [{all}]\n")
}

/// Puts the files back, each at once, and removes what lies beside them.
fn restore(setup: &Setup, files: &Files) -> Result<()> {
    let folder = setup.genv_directory();
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
    let new = folder.join(".new");
    for (name, content) in [("devices.json", &files.devices), ("envs.json", &files.environments)] {
        fs::write(&new, content.to_string())?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o666))?;
        let path = folder.join(name);
        if path.symlink_metadata().is_ok_and(|it| it.is_dir()) {
            fs::remove_dir_all(&path)?;
        }
        fs::rename(&new, path)?;
    }
    for entry in fs::read_dir(&folder)? {
        let entry = entry?;
        let removed = match entry.file_name().to_str() {
            Some("devices.json" | "envs.json") => Ok(()),
            _ if entry.file_type().is_ok_and(|it| it.is_dir()) => fs::remove_dir_all(entry.path()),
            _ => fs::remove_file(entry.path()),
        };
        // A new state file that the enforcer has not renamed yet is gone a moment later.
        if !removed.as_ref().is_err_and(|it| it.kind() == ErrorKind::NotFound) {
            removed?;
        }
    }
    Ok(())
}
