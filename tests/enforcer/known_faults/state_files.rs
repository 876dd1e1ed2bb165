//! State files that are damaged, that are links, or that tell of others' environments.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use genv_tests::enforcer::sleeper_of;
use genv_tests::patience::{DRIVER_PATIENCE, output, until};
use genv_tests::process::{Orphan, Running, Sleeper, shared_folder};
use genv_tests::root::FIRST_UID;
use genv_tests::shell::{Account, Shell};
use genv_tests::state::{self, Environment};
use serde_json::json;

use crate::known_faults::{EVERY_COMMAND, all_done, edit, read, run, uid, with_environment};

#[test]
fn a_memory_amount_that_is_none_ends_no_command() -> Result<()> {
    for amount in [json!("abc"), json!(""), json!([]), json!(-1), json!("9".repeat(400))] {
        let (account, _member) = with_environment(uid())?;
        edit(&account, "envs.json", |envs| {
            envs["envs"][0]["config"]["gpu_memory"] = amount.clone();
        })?;
        edit(&account, "devices.json", |devices| {
            devices["devices"][0]["attachments"][0]["gpu_memory"] = amount.clone();
            devices["devices"][1]["total_memory"] = amount.clone();
        })?;
        let outcomes = run(&account, Shell::Bash, &EVERY_COMMAND)?;
        all_done(&outcomes).with_context(|| amount.to_string())?;
        // Whoever has a device by an amount that nobody understands has the device.
        let visible = outcomes[4].variable("CUDA_VISIBLE_DEVICES");
        ensure!(visible.is_some_and(|it| it != "0"), "{amount}: {visible:?}");
    }
    Ok(())
}

#[test]
fn a_file_that_was_half_saved_stops_no_command() -> Result<()> {
    for name in ["envs.json", "devices.json"] {
        for cut in [0, 1, 40] {
            let (account, _member) = with_environment(uid())?;
            let path = account.state().join(name);
            let whole = fs::read(&path)?;
            fs::write(&path, &whole[..cut])?;
            let outcomes = run(&account, Shell::Bash, &EVERY_COMMAND)?;
            all_done(&outcomes).with_context(|| format!("{name} of {cut} bytes"))?;
            let told = outcomes.iter().filter(|it| it.stderr.contains(".corrupt-"));
            ensure!(cut == 0 || told.count() == 1, "{name} of {cut} bytes: {outcomes:?}");
            // What it was is kept, and the other file's content too.
            let mut kept = Vec::new();
            for entry in fs::read_dir(account.state())? {
                let entry = entry?;
                let file = entry.file_name().to_string_lossy().into_owned();
                if file.starts_with(&format!("{name}.corrupt-")) {
                    kept.push(fs::read(entry.path())?);
                }
            }
            ensure!(cut == 0 || kept == [whole[..cut].to_vec()], "{name} of {cut} bytes: {kept:?}");
        }
    }
    Ok(())
}

/// What only reads.
const READING_COMMANDS: [&str; 6] =
    ["genv envs", "genv devices", "genv envs query --query eid", "genv usage snapshot", "genv free", "genv who 0"];

/// What is in the state directory: each name, and what a file holds.
fn contents(account: &Account) -> Result<BTreeMap<OsString, Option<Vec<u8>>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(account.state())? {
        let entry = entry?;
        let is_file = entry.file_type()?.is_file();
        let content = is_file.then(|| fs::read(entry.path())).transpose()?;
        found.insert(entry.file_name(), content);
    }
    Ok(found)
}

#[test]
fn a_damaged_file_ends_no_environment_that_is_whole_in_it_and_is_not_changed_by_reading() -> Result<()> {
    for name in ["envs.json", "devices.json"] {
        let account = Account::new()?;
        let members = [Sleeper::start(&[])?, Sleeper::start(&[])?];
        let environments = [
            Environment::new("e1", uid(), members[0].pid(), &[0]),
            Environment::new("e2", uid(), members[1].pid(), &[3]),
        ];
        state::write(&account.state(), 4, &environments)?;
        fs::write(account.state().join("genv.lock"), "")?;
        // Cut off in the record of the second, or of its device.
        let path = account.state().join(name);
        let whole = fs::read_to_string(&path)?;
        let cut = whole.rfind("\"e2\"").context("no e2")?;
        fs::write(&path, &whole[..cut])?;
        let before = contents(&account)?;
        for outcome in run(&account, Shell::Bash, &READING_COMMANDS)? {
            ensure!(outcome.code == 0, "{outcome:?}");
            ensure!(outcome.stderr.contains(&format!("{name} is damaged: ")), "{outcome:?}");
            let lists = ["genv envs", "genv devices"].contains(&outcome.line.as_str());
            ensure!(!lists || outcome.stdout.contains("e1"), "{outcome:?}");
        }
        ensure!(contents(&account)? == before, "{name} was changed by what only reads");
        let outcomes = run(&account, Shell::Bash, &["genv activate --gpus 1", "genv devices"])?;
        all_done(&outcomes)?;
        let visible = outcomes[0].variable("CUDA_VISIBLE_DEVICES");
        ensure!(visible.is_some_and(|it| it != "0"), "{visible:?}");
        ensure!(outcomes[1].stdout.contains("e1"), "{outcomes:?}");
        ensure!(read(&account, "envs.json")?["envs"][0]["eid"] == "e1");
        ensure!(read(&account, "devices.json")?["devices"][0]["attachments"][0]["eid"] == "e1");
    }
    Ok(())
}

/// How a file is lost.
type Lose = fn(&Path) -> Result<()>;

#[test]
fn nobody_gets_the_devices_of_an_environment_that_was_lost_with_its_file() -> Result<()> {
    let lose: [(&str, Lose); 4] = [
        ("link", |path| {
            fs::remove_file(path)?;
            Ok(symlink("/dev/null", path)?)
        }),
        ("folder", |path| {
            fs::remove_file(path)?;
            Ok(fs::create_dir(path)?)
        }),
        ("nothing", |path| Ok(fs::remove_file(path)?)),
        ("garbage", |path| Ok(fs::write(path, "garbage")?)),
    ];
    for (how, lose) in lose {
        let account = Account::new()?;
        let mut job = account.command("bash")?;
        // Without a claim of its own its environment cannot be restored from it.
        let line = "exec genv exec --eid e1 --gpus 2 -- env -i sleep 1000";
        job.args(["-c", line]);
        job.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let job = Running::spawn(&mut job)?;
        let mut command = 0;
        // genv writes the files one after the other. Finally it leaves the environment to its command.
        until("the job alone has its devices", || {
            let read = |name: &str| fs::read_to_string(account.state().join(name)).unwrap_or_default();
            let child = genv_tests::process::children(job.id()).pop();
            command = child.unwrap_or_default();
            let member = format!("\"pid\": {command},");
            Ok(read("genv-members.json").contains(&member)
                && read("envs.json").contains(&command.to_string())
                && read("devices.json").contains("\"e1\"")
                && read(&format!("genv-confirmed-{}.json", uid())).contains("\"left\""))
        })?;
        let _command = Orphan(command);
        lose(&account.state().join("envs.json"))?;
        let before = contents(&account)?;
        run(&account, Shell::Bash, &READING_COMMANDS)?;
        ensure!(contents(&account)? == before, "{how}");
        let get = "genv exec --eid e2 --gpus 2 -- printenv CUDA_VISIBLE_DEVICES";
        let outcomes = run(&account, Shell::Bash, &[get, "genv exec --gpus 3 -- true", get])?;
        ensure!(outcomes[0].stdout == "2,3\n", "{how}: {outcomes:?}");
        ensure!(outcomes[1].code == 4, "{how}: {outcomes:?}");
        ensure!(outcomes[2].stdout == "2,3\n", "{how}: {outcomes:?}");
    }
    Ok(())
}

#[test]
fn no_file_is_truncated_through_a_symlinked_lock() -> Result<()> {
    const CONTENT: &str = "of somebody else";
    for name in ["genv.lock", "envs.json", "devices.json", "genv-members.json", "devices/1.lock"] {
        let (account, _member) = with_environment(uid())?;
        let victim = account.home().join("victim");
        fs::write(&victim, CONTENT)?;
        let link = account.state().join(name);
        fs::create_dir_all(link.parent().context("a folder")?)?;
        if link.exists() {
            fs::rename(&link, account.home().join("before"))?;
        }
        symlink(&victim, &link)?;
        for outcome in run(&account, Shell::Bash, &EVERY_COMMAND)? {
            ensure!([0, 1, 3, 4].contains(&outcome.code) && !outcome.stderr.contains("panic"), "{name}: {outcome:?}");
        }
        ensure!(fs::read_to_string(&victim)? == CONTENT, "{name}");
        // Without it everything works again.
        if fs::symlink_metadata(&link).is_ok_and(|it| it.is_symlink()) {
            fs::remove_file(&link)?;
        }
        all_done(&run(&account, Shell::Bash, &EVERY_COMMAND)?).context(name)?;
        ensure!(fs::read_to_string(&victim)? == CONTENT, "{name}");
    }
    Ok(())
}

#[test]
fn nobody_detaches_another_users_environment() -> Result<()> {
    let (account, _member) = with_environment(FIRST_UID)?;
    let before = [read(&account, "envs.json")?, read(&account, "devices.json")?];
    let commands = [
        "GENV_ENVIRONMENT_ID=e1 genv detach",
        "GENV_ENVIRONMENT_ID=e1 genv detach --index 0",
        "GENV_ENVIRONMENT_ID=e1 genv attach --count 0",
        "GENV_ENVIRONMENT_ID=e1 genv config gpus 0",
        "genv activate --id e1",
    ];
    for refused in run(&account, Shell::Bash, &commands)? {
        ensure!(refused.code == 1 && refused.stderr.starts_with("genv: "), "{refused:?}");
    }
    ensure!([read(&account, "envs.json")?, read(&account, "devices.json")?] == before);
    Ok(())
}

#[test]
fn nobody_changes_another_users_environment_from_outside() -> Result<()> {
    const OWNER: u32 = FIRST_UID;
    let everybodys = || fs::Permissions::from_mode(0o777);
    // Root may, so somebody else runs it then, from where everybody may.
    let folder = shared_folder()?;
    let genv = folder.path().join("genv");
    let state = folder.path().join("state");
    let (own, theirs) = (Sleeper::start(&[])?, sleeper_of(OWNER, &[])?);
    let member = |owner: u32| {
        if owner == uid() { own.pid() } else { theirs.pid() }
    };
    let write = |owner| {
        let environment = Environment::new("e1", owner, member(owner), &[0]);
        state::write(&state, 4, &[environment])?;
        Ok::<_, anyhow::Error>(fs::set_permissions(&state, everybodys())?)
    };
    let files = || -> Result<[String; 2]> {
        let read = |name| fs::read_to_string(state.join(name));
        Ok([read("envs.json")?, read("devices.json")?])
    };
    let run = |line: &str, owner: u32, user: Option<u32>| -> Result<Output> {
        let line = line.replace("PID", &member(owner).to_string());
        let mut command = Command::new(&genv);
        command.args(line.split(' ')).current_dir("/");
        command.env("GENV_TMPDIR", &state).env("GENV_DEVICES", "4").envs([DRIVER_PATIENCE]);
        if let Some(user) = user.filter(|_| uid() == 0) {
            command.uid(user).gid(user);
        }
        output(&mut command)
    };
    write(OWNER)?;
    let before = files()?;
    for line in [
        "devices detach --eid e1",
        "devices detach --eid e1 --index 0",
        "devices attach --eid e1 --count 0",
        "devices attach --eid e1 --index 1 -o",
        "devices --reset",
        "envs --reset",
        "envs config --eid e1 gpus --count 0",
        "envs deactivate --pid PID",
        "envs activate --eid e1 --uid 54322 --pid PID",
        "envs activate --eid e2 --uid 54321 --pid PID",
    ] {
        let refused = run(line, OWNER, Some(OWNER + 1))?;
        let said = String::from_utf8(refused.stderr)?;
        ensure!(refused.status.code() == Some(1), "{line}: {said}");
        ensure!(said.contains("the user 54321: only this user and root may do so"), "{said}");
        ensure!(said.lines().count() == 1, "{said}");
        ensure!(files()? == before, "{line}");
    }
    // Its user may, and root.
    for (owner, user) in [(uid(), None), (if uid() == 0 { OWNER } else { uid() }, Some(OWNER))] {
        write(owner)?;
        for line in [
            "devices attach --eid e1 --count 2",
            "devices detach --eid e1",
            "envs config --eid e1 gpus --count 0",
            "devices --reset",
            "envs deactivate --pid PID",
        ] {
            let done = run(line, owner, user)?;
            ensure!(done.status.success(), "{line}: {done:?}");
        }
    }
    if uid() == 0 {
        write(OWNER)?;
        ensure!(run("devices detach --eid e1", OWNER, None)?.stdout == b"\n");
    }
    Ok(())
}
