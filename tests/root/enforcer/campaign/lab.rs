//! Users who keep every rule, what genv's state says of them, and the daemon that judges them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use genv_tests::enforcer::{Enforcer, Setup, ends, sleeper_of};
use genv_tests::patience::until;
use genv_tests::process::{Sleeper, children};
use genv_tests::root::FIRST_UID;
use genv_tests::state;
use jiff::Timestamp;
use serde_json::{Value, json};

/// The user who breaks the rules, and writes into the state whatever helps. Nothing may happen to the next six users.
pub(super) const MALLORY: u32 = FIRST_UID + 10;

const DEVICES: usize = 8;

/// A device that no environment of the others has.
pub(super) const SPARE: usize = 7;

/// An environ without a claim.
pub(super) const OUTSIDE: [(&str, &str); 1] = [("A", "1")];

/// The rules; CAROL may work outside of environments.
const RULES: &str = "version: 1
mode: enforce
interval: 1s
timezone: UTC
breaker: {signals_per_minute: 200, share_of_users: 1}
defaults: {action: terminate, warn: []}
rules:
- {kind: non-env-processes, for: 500ms, match: {except_users: ['uid:CAROL']}}
- {kind: env-devices, action: kill, for: 500ms, grace: 1s}
- {kind: env-memory, for: 500ms}
- {kind: max-devices-per-user, limit: 2, action: detach, for: 500ms}
- {kind: max-environments-per-user, limit: 2, for: 500ms}
- {kind: max-processes-per-environment, limit: 4, for: 500ms}
- {kind: max-memory-per-user, limit: 60gi, for: 500ms}
- {kind: max-age, limit: 1d, for: 0s}
- {kind: idle, below: 0.05, over: 2s, for: 0s, action: detach}
";

/// Random numbers that a seed repeats, by the generator splitmix64.
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    pub(super) fn one_of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}

/// The time in so many hours, Unix time.
pub(super) fn time_in(hours: i64) -> i64 {
    Timestamp::now().as_second() + hours * 3600
}

/// Members of an environment, by their pids alone.
pub(super) fn members(pids: &[u32]) -> Value {
    pids.iter().map(|pid| json!({ "pid": pid })).collect()
}

/// The document of genv's state.
#[derive(Clone, Debug)]
pub(super) struct Document(pub(super) Value);

impl Document {
    pub(super) fn environments(&mut self) -> &mut Vec<Value> {
        self.0["environments"].as_array_mut().unwrap()
    }

    /// One of the environments.
    pub(super) fn one(&mut self, random: &mut Random) -> &mut Value {
        let environments = self.environments();
        let one = random.below(environments.len());
        &mut environments[one]
    }

    /// The attachments of a device.
    pub(super) fn on(&mut self, device: usize) -> &mut Vec<Value> {
        self.0["devices"][device]["attachments"].as_array_mut().unwrap()
    }

    pub(super) fn attach(&mut self, device: usize, eid: &Value, memory: Option<&str>, time: i64) {
        self.on(device).push(json!({"eid": eid, "gpu_memory": memory, "attached_timestamp_seconds": time}));
    }

    /// Adds an environment that is attached to these devices.
    pub(super) fn add(&mut self, eid: &Value, uid: u32, pids: &[u32], devices: &[usize], memory: Option<&str>) {
        let time = time_in(0);
        for device in devices {
            self.attach(*device, eid, memory, time);
        }
        self.environments().push(json!({
            "eid": eid, "uid": uid, "username": format!("u{uid}"), "created_timestamp_seconds": time,
            "gpus": devices.len(), "gpu_memory": memory, "members": members(pids),
        }));
    }
}

/// A process to which nothing may happen.
#[derive(Debug)]
pub(super) struct Innocent {
    pub(super) uid: u32,
    pub(super) pid: u32,
    pub(super) is_outside: bool,
    /// The line of a scenario, if it uses a device.
    uses: Option<String>,
    /// What starts it, or itself.
    _started: Sleeper,
}

/// A process that uses a device, as a scenario has it.
pub(super) fn uses(pid: u32, device: usize, memory: &str, utilization: f64) -> String {
    format!("{{pid: {pid}, devices: [{{index: {device}, memory: {memory}, utilization: {utilization}}}]}}")
}

#[derive(Debug)]
pub(super) struct Lab {
    pub(super) enforcer: Enforcer,
    pub(super) innocents: Vec<Innocent>,
    /// The state before any mischief.
    pub(super) honest: Document,
}

impl Lab {
    pub(super) fn start() -> Result<Self> {
        let device = |index: usize| json!({"index": index, "total_memory": "81920mi", "attachments": []});
        let devices: Vec<Value> = (0..DEVICES).map(device).collect();
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let document = json!({"version": 1, "boot_id": boot_id.trim(), "environments": [], "devices": devices});
        let mut honest = Document(document);
        let mut innocents = Vec::new();
        // The user, the claim, the device in use, and the environment of which it is the member.
        for (user, claim, used, of) in [
            // A shell that lives, and a process that says where it belongs.
            (1, None, None, Some(("a", 0, Some("40gi")))),
            (1, Some("a"), Some(0), None),
            // A member that uses its device itself.
            (2, None, Some(1), Some(("b", 1, None))),
            // Outside, as the rule allows her.
            (3, None, Some(2), None),
            // A child of a shell, which says nothing.
            (4, None, Some(3), Some(("d", 3, Some("20gi")))),
            // On no device.
            (5, None, None, None),
            // All that is allowed.
            (6, Some("f1"), Some(4), Some(("f1", 4, Some("30gi")))),
            (6, Some("f2"), Some(5), Some(("f2", 5, Some("30gi")))),
        ] {
            let uid = MALLORY + user;
            let environ = claim.map_or(OUTSIDE, |claim| [("GENV_ENVIRONMENT_ID", claim)]);
            let started = if user == 4 { shell(uid)? } else { sleeper_of(uid, &environ)? };
            let pid = if user == 4 { child(&started)? } else { started.pid() };
            if let Some((eid, device, memory)) = of {
                honest.add(&json!(eid), uid, &[started.pid()], &[device], memory);
            }
            let uses = used.map(|device| uses(pid, device, "8gi", 0.9));
            let is_outside = claim.is_none() && of.is_none();
            innocents.push(Innocent { uid, pid, is_outside, uses, _started: started });
        }
        let rules = RULES.replace("CAROL", &(MALLORY + 3).to_string());
        let setup = Setup::new(&scenario(&innocents, &[]), &rules)?.interval("1s");
        fs::set_permissions(setup.folder(), fs::Permissions::from_mode(0o755))?;
        restore(&setup, &honest)?;
        let clock = setup.folder().join("clock").display().to_string();
        let setup = setup
            .env("LD_PRELOAD", &libfaketime()?.to_string_lossy())
            .env("FAKETIME_TIMESTAMP_FILE", &clock)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1");
        Ok(Self { enforcer: setup.start()?, innocents, honest })
    }

    pub(super) fn state(&self) -> PathBuf {
        self.enforcer.setup().genv_directory()
    }

    /// Undoes what was done to the files and to the clock, and has the driver list the innocents alone.
    pub(super) fn restore(&self) -> Result<()> {
        restore(self.enforcer.setup(), &self.honest)?;
        self.show(&[], "")
    }

    /// Has the driver tell of the innocents, and of these.
    pub(super) fn show(&self, others: &[String], faults: &str) -> Result<()> {
        let scenario = scenario(&self.innocents, others);
        self.enforcer.setup().rewrite_scenario(&format!("{scenario}  faults: [{faults}]\n"))
    }

    /// Whether an environment has this device by its own user's will.
    pub(super) fn holds(&self, eid: &Value, device: u64) -> bool {
        let attachments = &self.honest.0["devices"][usize::try_from(device).unwrap()]["attachments"];
        attachments.as_array().is_some_and(|all| all.iter().any(|attachment| attachment["eid"] == *eid))
    }

    /// Sees that a process of yet another user, which breaks a rule, is ended.
    pub(super) fn judges(&self) -> Result<()> {
        let guilty = sleeper_of(MALLORY + 7, &OUTSIDE)?;
        self.show(&[uses(guilty.pid(), SPARE, "1gi", 0.5)], "")?;
        ends(guilty.pid())
    }
}

/// A shell with a child that sleeps, and ends with the shell.
fn shell(uid: u32) -> Result<Sleeper> {
    let mut command = Command::new("sh");
    command.args(["-c", "setpriv --pdeathsig KILL sleep 1000000; true"]).env_clear().env("PATH", "/usr/bin:/bin");
    Sleeper::spawn(command.uid(uid).gid(uid))
}

fn child(shell: &Sleeper) -> Result<u32> {
    let sleeps = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "sleep\n");
    let mut child = None;
    until("the shell has a child", || {
        child = children(shell.pid()).first().copied().filter(sleeps);
        Ok(child.is_some())
    })?;
    Ok(child.unwrap())
}

fn scenario(innocents: &[Innocent], others: &[String]) -> String {
    let uses = innocents.iter().filter_map(|innocent| innocent.uses.as_ref()).chain(others);
    let all = uses.map(String::as_str).collect::<Vec<_>>().join(",\n    ");
    format!("version: 1\nhosts:\n- devices: [{{count: {DEVICES}, memory: 80gi}}]\n  processes: [{all}]\n")
}

/// Turns the daemon's time of day by so much, which libfaketime reads from a file; the times of files and processes and the
/// monotonic clocks stay.
pub(super) fn turn_clock(setup: &Setup, by: &str) -> Result<()> {
    let new = setup.folder().join("clock.new");
    fs::write(&new, by)?;
    Ok(fs::rename(new, setup.folder().join("clock"))?)
}

fn libfaketime() -> Result<PathBuf> {
    let folders = fs::read_dir("/usr/lib")?.flatten();
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    let found = libraries.find(|library| library.exists());
    found.context("libfaketimeMT.so.1 is missing: install the Debian package faketime")
}

/// Puts the clock and the state back, and removes what lies beside the state.
fn restore(setup: &Setup, document: &Document) -> Result<()> {
    turn_clock(setup, "+0")?;
    let folder = setup.genv_directory();
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
    let new = folder.join(".new");
    fs::write(&new, document.0.to_string())?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o666))?;
    // A folder that mischief put there.
    let _ = fs::remove_dir_all(folder.join(state::FILE));
    fs::rename(&new, folder.join(state::FILE))?;
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if !path.ends_with(state::FILE) {
            // A new state file that the enforcer has not renamed yet is gone a moment later.
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
    }
    Ok(())
}
