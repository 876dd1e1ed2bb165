//! The kinds of mischief: what a user can do to genv's files and with processes, and what can happen to a machine.

mod files;
mod machine;
mod processes;
mod records;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::Result;
use genv_tests::enforcer::{is_alive, sleeper_of};
use genv_tests::process::Sleeper;
use genv_tests::root::apart;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::Value;

use super::lab::{Files, Lab, MALLORY, uses};
use super::random::Random;

/// One way to do mischief, which is gone all the time of a round.
pub(super) type Mischief = (&'static str, fn(&mut Adversary<'_>) -> Result<()>);

pub(super) const ALL: &[Mischief] = &[
    ("malformed_records", files::malformed_records),
    ("torn_files", files::torn_files),
    ("removed_files", files::removed_files),
    ("odd_files", files::odd_files),
    ("odd_locks", files::odd_locks),
    ("planted_confirmations", files::planted_confirmations),
    ("forged_queue", files::forged_queue),
    ("changed_users", records::changed_users),
    ("claimed_ancestors", records::claimed_ancestors),
    ("claimed_members", records::claimed_members),
    ("members_gone", records::members_gone),
    ("forged_starts", records::forged_starts),
    ("little_memory", records::little_memory),
    ("old_records", records::old_records),
    ("times_of_elsewhere", records::times_of_elsewhere),
    ("devices_taken", records::devices_taken),
    ("devices_forced_on", records::devices_forced_on),
    ("devices_added", records::devices_added),
    ("members_added", records::members_added),
    ("records_of_outsiders", records::records_of_outsiders),
    ("removed_records", records::removed_records),
    ("records_of_others", records::records_of_others),
    ("same_ids", records::same_ids),
    ("many_records", files::many_records),
    ("held_lock", processes::held_lock),
    ("respawns", processes::respawns),
    ("claims_of_others", processes::claims_of_others),
    ("cleared_environs", processes::cleared_environs),
    ("many_processes", processes::many_processes),
    ("hanging_driver", machine::hanging_driver),
    ("lost_driver", machine::lost_driver),
    ("clocks", machine::clocks),
];

/// A user who does mischief.
#[derive(Debug)]
pub(super) struct Adversary<'a> {
    pub(super) lab: &'a Lab,
    random: Random,
    /// Whether this is the first time with these random numbers.
    is_new: bool,
    /// The adversary's processes, with the devices that they use.
    processes: Vec<(Sleeper, String)>,
    lock: Option<Sleeper>,
}

impl<'a> Adversary<'a> {
    pub(super) fn new(lab: &'a Lab) -> Self {
        Self { lab, random: Random(0), is_new: true, processes: Vec::new(), lock: None }
    }

    /// Takes further choices from these random numbers.
    pub(super) fn choose(&mut self, choice: u64, is_new: bool) {
        (self.random, self.is_new) = (Random(choice), is_new);
    }

    /// Starts a process of the adversary on a device; the driver lists it.
    pub(super) fn start(&mut self, environ: &[(&str, &str)], device: usize) -> Result<u32> {
        let process = sleeper_of(MALLORY, environ)?;
        let pid = process.pid();
        self.processes.push((process, uses(pid, &[device], "1gi", 0.5)));
        self.show("")?;
        Ok(pid)
    }

    /// Has the driver list the adversary's processes too.
    fn show(&mut self, faults: &str) -> Result<()> {
        self.processes.retain(|(process, _)| is_alive(process.pid()));
        let uses: Vec<_> = self.processes.iter().map(|(_, uses)| uses.clone()).collect();
        self.lab.show(&uses, faults)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.lab.state().join(name)
    }

    /// Writes what the honest files say, changed by this.
    fn change(&mut self, change: impl FnOnce(&mut Files, &mut Random)) -> Result<()> {
        let mut files = self.lab.honest.clone();
        change(&mut files, &mut self.random);
        let (environments, devices) = (files.environments.to_string(), files.devices.to_string());
        self.write("envs.json", environments.as_bytes())?;
        self.write("devices.json", devices.as_bytes())
    }

    /// As [`Self::change`], to one environment of another user.
    fn change_one(&mut self, change: impl FnOnce(&mut Value, &mut Random)) -> Result<()> {
        self.change(|files, random| {
            let environments = files.environments();
            let one = random.below(environments.len());
            change(&mut environments[one], random);
        })
    }

    /// Replaces a file.
    fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let (new, path) = (self.path(".mallory"), self.path(name));
        as_mallory(|| {
            // A folder that an earlier mischief put there.
            let _ = fs::remove_dir(&path);
            fs::write(&new, content)?;
            fs::set_permissions(&new, fs::Permissions::from_mode(0o666))?;
            Ok(fs::rename(new, path)?)
        })
    }

    /// One of the files.
    fn file(&mut self) -> PathBuf {
        let name = self.random.one_of(&["envs.json", "devices.json"]);
        self.path(name)
    }
}

/// Runs as [`MALLORY`].
fn as_mallory<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    apart(|| {
        let (uid, gid) = (Uid::from_raw(MALLORY), Gid::from_raw(MALLORY));
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        run()
    })
}
