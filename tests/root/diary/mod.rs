//! A week of three users on one machine, in real terminals, and after each scene what every user sees.
//!
//! Ann works in bash, Ben in zsh, Cara in fish. The machine has two A100 (devices 0 and 1) and two H100 (2 and 3).

mod person;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, ends, is_alive};
use genv_tests::nvml_sim::library;
use genv_tests::patience::until;
use genv_tests::process::Orphan;
use genv_tests::root::{FIRST_UID, apart, own_mounts, require_root, users_from};
use genv_tests::shell::Shell;
use genv_tests::terminal::start_up_in;
use genv_tests::tools;
use rustix::mount::mount_bind;

use person::Person;

/// The uid of the first user. No other test has a process of these users: genv keeps a device for a user whose processes
/// it cannot read.
const FIRST: u32 = FIRST_UID + 100;

/// The rules of the first days, which only report.
const REPORTS: &str = "mode: dry-run\nrules:\n- {kind: non-env-processes}\n- {kind: env-devices}\n";

/// Environments go back at the end of their leases.
const LEASES: &str = "mode: enforce\nrules:\n- {kind: max-age, leases: true, action: detach, for: 1s, warn: [1s]}\n";

/// The rules of Friday.
const ENFORCED: &str = "mode: enforce\ndefaults: {undelivered: hold}\nrules:\n\
    - {kind: non-env-processes, action: terminate, for: 0s, warn: [2s]}\n\
    - {kind: env-devices, action: terminate, for: 0s, warn: []}\n\
    - {kind: env-memory, action: terminate, for: 0s, warn: [2s]}\n";

const USERS: [(&str, Shell); 3] = [("ann", Shell::Bash), ("ben", Shell::Zsh), ("cara", Shell::Fish)];

const ALL_FREE: &str = "0 free | 1 free | 2 free | 3 free";
const ALL_AWAY: &str = "ann away | ben away | cara away";

fn rules(text: &str) -> String {
    format!("version: 1\nbreaker: {{share_of_users: 1}}\n{text}")
}

fn scenario(uses: &[&str]) -> String {
    let a100 = "{name: NVIDIA A100-SXM4-40GB, memory: 40gi, count: 2}";
    let h100 = "{name: NVIDIA H100 80GB HBM3, memory: 80gi, count: 2}";
    format!("version: 1\nhosts:\n- devices: [{a100}, {h100}]\n  processes: [{}]\n", uses.join(", "))
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

struct Week {
    ann: Person,
    ben: Person,
    cara: Person,
    /// The processes that use devices, as the driver tells.
    trainings: Vec<(Orphan, String)>,
    enforcer: Enforcer,
}

impl Week {
    /// Furnishes the machine. The calling thread gets mounts of its own.
    fn new() -> Result<Self> {
        let setup = Setup::new(&scenario(&[]), &rules(REPORTS))?.interval("200ms").flag("--gpu.source=nvml");
        let at = |path: &str| setup.folder().join(path);
        for path in ["bin", "genv", "lib/genv-enforcer", "tools"] {
            fs::create_dir_all(at(path))?;
        }
        fs::set_permissions(setup.folder(), fs::Permissions::from_mode(0o755))?;
        fs::set_permissions(at("genv"), fs::Permissions::from_mode(0o777))?;
        let nvml = at("lib/libnvidia-ml.so.1");
        fs::copy(library(), &nvml)?;
        // Copies: other users may not read the folder of the checkout.
        for (tool, program) in [("zsh", "zsh-static"), ("fish", "fish")] {
            run(Command::new("cp").arg("-a").args([tools::folder(tool), at("tools")]))?;
            symlink(at("tools").join(tool).join("bin").join(program), at("bin").join(tool))?;
        }
        own_mounts();
        users_from(FIRST, setup.folder(), &USERS.map(|(name, _)| name), &[])?;
        // Users find the enforcer's folder at its usual path.
        mount_bind(at("lib"), "/var/lib")?;
        mount_bind(setup.state_directory(), "/var/lib/genv-enforcer")?;
        let [ann, ben, cara] = [0, 1, 2].map(|number| {
            let ((name, shell), uid) = (USERS[number], FIRST + number as u32);
            Person { name, uid, shell, terminal: None, waits: false, shown: String::new() }
        });
        for Person { name, uid, shell, .. } in [&ann, &ben, &cara] {
            let home = at("home").join(name);
            start_up_in(&home, *shell, "", "")?;
            fs::set_permissions(&home, fs::Permissions::from_mode(0o700))?;
            run(Command::new("chown").arg("-R").arg(format!("{uid}:{uid}")).arg(home))?;
        }
        let enforcer = setup.env("GENV_NVML_LIBRARY", &nvml.display().to_string()).start()?;
        Ok(Self { ann, ben, cara, trainings: Vec::new(), enforcer })
    }

    fn rules(&self, text: &str) -> Result<()> {
        self.enforcer.setup().rewrite_config(&rules(text))
    }

    fn all_log_in(&mut self) -> Result<()> {
        let mut people = [&mut self.ann, &mut self.ben, &mut self.cara].into_iter();
        people.try_for_each(|person| person.logs_in(self.enforcer.setup().folder()))
    }

    fn all_log_out(&mut self) -> Result<()> {
        let pids: Vec<u32> = self.trainings.drain(..).map(|(process, _)| process.0).collect();
        pids.into_iter().try_for_each(ends)?;
        [&mut self.ann, &mut self.ben, &mut self.cara].into_iter().try_for_each(Person::logs_out)
    }

    /// The driver tells from now on that a process uses so many GiB of a device.
    fn uses(&mut self, pid: u32, device: u32, gibibytes: u32) -> Result<()> {
        let uses = format!("{{pid: {pid}, devices: [{{index: {device}, memory: {gibibytes}gi, utilization: 0.9}}]}}");
        self.trainings.push((Orphan(pid), uses));
        self.drive()
    }

    /// The driver tells of the processes that live.
    fn drive(&mut self) -> Result<()> {
        self.trainings.retain(|(process, _)| is_alive(process.0));
        let uses: Vec<&str> = self.trainings.iter().map(|(_, uses)| uses.as_str()).collect();
        self.enforcer.setup().rewrite_scenario(&scenario(&uses))
    }

    /// The end of a scene: the devices, which all users see, and the shells.
    fn all_see(&mut self, devices: &str, shells: &str) -> Result<()> {
        self.drive()?;
        let mut seen = Vec::new();
        let all = until("every user sees this", || {
            seen.clear();
            for person in [&self.ann, &self.ben, &self.cara] {
                seen.push(person.devices(self.enforcer.setup().folder())?);
            }
            let states = [self.ann.state()?, self.ben.state()?, self.cara.state()?];
            seen.push(states.join(" | "));
            Ok(seen == [devices, devices, devices, shells])
        });
        all.with_context(|| format!("expected:\n{devices}\n{shells}\nseen:\n{}", seen.join("\n")))?;
        for person in [&mut self.ann, &mut self.ben, &mut self.cara] {
            person.shown.clear();
        }
        Ok(())
    }
}

/// Users take devices, look, and give devices back.
fn monday(week: &mut Week) -> Result<()> {
    week.all_log_in()?;
    week.ann.does("genv activate --gpus 1 --name first", "with device 0 (NVIDIA A100-SXM4-40GB, 40.0 GiB)")?;
    week.ben.does("genv who 0", "ann")?;
    let line = "genv activate --gpus 2 --gpu-type h100 --name big";
    week.ben.does(line, "with devices 2, 3 (NVIDIA H100 80GB HBM3, 80.0 GiB each)")?;
    week.cara.ends("genv activate --gpus 2", 4, "1 of 4 can be had, and 2 environments hold the others")?;
    week.all_see("0 ann first | 1 free | 2 ben big | 3 ben big", "ann (genv) 0 | ben (genv) 2,3 | cara -")?;

    // Ann attaches a second device, and her training keeps its own.
    let pid = week.ann.trains()?;
    week.uses(pid, 0, 2)?;
    week.ann.does("genv attach --count 2", "attached device 1 (NVIDIA A100-SXM4-40GB, 40.0 GiB): environment ")?;
    week.ben.does("genv detach --index 3", "detached device 3: environment")?;
    week.cara.does("genv activate --index 3 --name eval", "with device 3 (NVIDIA H100 80GB HBM3, 80.0 GiB)")?;
    let shells = "ann (genv) 0,1 | ben (genv) 2 | cara (genv) 3";
    week.all_see("0 ann first 2.0 | 1 ann first | 2 ben big | 3 cara eval", shells)?;
    week.all_log_out()?;
    week.all_see(ALL_FREE, ALL_AWAY)
}

/// The queue, and leases.
fn wednesday(week: &mut Week) -> Result<()> {
    week.all_log_in()?;
    week.ann.does("genv activate --gpus 4 --name all --for 8h", "")?;
    week.ben.begins("genv activate --wait --gpus 1 --name quick", "next in the queue, expected")?;
    week.cara.begins("genv activate --wait --gpus 2 --name two", "one before you")?;
    week.ann.does("genv queue", " cara ")?;
    let devices = "0 ann all until | 1 ann all until | 2 ann all until | 3 ann all until";
    week.all_see(devices, "ann (genv) 0,1,2,3 | ben waits | cara waits")?;

    // It is Ben's turn, and a second device is kept for Cara, who needs two.
    week.ann.does("genv detach --index 3", "detached device 3")?;
    week.ben.goes_on("it is your turn, after")?;
    week.cara.shows("next in the queue")?;
    week.ann.does("genv detach --index 2", "detached device 2")?;
    week.ben.ends("genv attach --count 2", 4, "wait")?;
    let shells = "ann (genv) 0,1 | ben (genv) 3 | cara waits";
    week.all_see("0 ann all until | 1 ann all until | 2 waited for | 3 ben quick", shells)?;

    week.ann.does("genv deactivate", "which has ended: devices 0, 1 were detached")?;
    week.cara.goes_on("it is your turn, after")?;
    week.ben.does("genv extend 1s", "has a lease until")?;
    week.ben.reads("", "ended at")?;
    let shells = "ann - | ben (genv) 3 | cara (genv) 0,1";
    week.all_see("0 cara two | 1 cara two | 2 free | 3 ben quick until", shells)?;

    // Leases count from now on.
    week.rules(LEASES)?;
    week.ben.shows("this is taken: device 3")?;
    week.ben.shows("This was taken: device 3")?;
    week.ben.reads("", "the enforcer detached device 3 by the rule max-age")?;
    week.all_see("0 cara two | 1 cara two | 2 free | 3 free", "ann - | ben (genv) -1 | cara (genv) 0,1")
}

/// The admin's rules are enforced.
fn friday(week: &mut Week) -> Result<()> {
    week.rules(REPORTS)?;
    week.ben.does("genv deactivate", "has ended")?;
    week.cara.does("genv deactivate", "has ended")?;
    let pid = week.ben.trains()?;
    week.uses(pid, 1, 2)?;
    week.all_see("0 free | 1 ben used, not held 2.0 +1 | 2 free | 3 free", "ann - | ben - | cara -")?;

    week.rules(ENFORCED)?;
    week.ben.reads("", "non-env-processes")?;
    week.ben.reads("genv why", "SIGTERM was sent at")?;
    ends(pid)?;
    week.drive()?;
    week.ann.does("genv activate --gpus 2 --name greedy", "with devices 0, 1")?;
    week.cara.does("genv activate --index 2 --gpu-memory 4g --name lean", "4g of 80.0 GiB")?;
    let pid = week.cara.trains()?;
    week.uses(pid, 2, 8)?;
    week.cara.reads("", "env-memory")?;
    week.cara.reads("genv why", "SIGTERM was sent at")?;
    ends(pid)?;
    let shells = "ann (genv) 0,1 | ben - | cara (genv) 2";
    week.all_see("0 ann greedy | 1 ann greedy | 2 cara lean | 3 free", shells)?;
    week.all_log_out()?;
    week.all_see(ALL_FREE, ALL_AWAY)?;

    let report = week.enforcer.setup().said(&["report"])?;
    for rule in ["max-age", "non-env-processes", "env-memory"] {
        ensure!(report.contains(rule), "{report}");
    }
    Ok(())
}

#[test]
fn three_users_share_a_machine_for_a_week() -> Result<()> {
    require_root();
    apart(|| {
        let mut week = Week::new()?;
        [monday, wednesday, friday].into_iter().try_for_each(|day| day(&mut week))
    })
}
