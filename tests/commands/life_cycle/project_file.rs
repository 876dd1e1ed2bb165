//! `genv.toml` and `[tool.genv]` of `pyproject.toml`: which of them counts, what it configures, and how mistakes are told.

use std::fs;
use std::os::unix::fs::chown;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use genv_tests::enforcer::process_of_another;
use genv_tests::shell::{Account, Shell};
use serde_json::Value;

use crate::life_cycle::choice::Mixed;
use crate::life_cycle::running::run;
use crate::life_cycle::story::told;

fn write(account: &Account, files: &[(&str, &str)]) -> Result<()> {
    for (name, content) in files {
        let path = account.home().join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, content)?;
    }
    Ok(())
}

#[test]
fn a_file_chooses_devices_and_options_win() -> Result<()> {
    let mixed = Mixed::new()?;
    let file = "gpus = 2\ngpu-type = ['h100', 'a100']\ngpu-memory-at-least = '30g'\ngpu-memory = '4g'\nfor = '8h'\n";
    write(&mixed.account, &[("genv.toml", file)])?;
    for (flags, expected) in [
        (&[][..], "2,4"),
        (&["--gpus", "1"], "2"),
        (&["--gpu-type", "t4", "--gpu-memory-at-least", "1g"], "0,1"),
        (&["--index", "0"], "0"),
        (&["--no-load", "--gpus", "2"], "0,1"),
    ] {
        let (devices, stderr) = mixed.exec(flags)?;
        ensure!(devices == expected, "{flags:?}: {devices}");
        ensure!(stderr.is_empty(), "{flags:?}: {stderr}");
    }
    // Each key is of its own: the T4 has less than the file asks for.
    let stderr = mixed.refused(&["exec", "--gpu-type", "t4", "--", "true"])?;
    let of = "cannot attach 2 devices of type 't4' of 30g or more with 4g of memory: this machine has none";
    ensure!(stderr.contains(of), "{stderr}");
    // A type alone is about one device.
    write(&mixed.account, &[("genv.toml", "gpu-type = 'h100'")])?;
    ensure!(mixed.exec(&[])?.0 == "5");
    Ok(())
}

#[test]
fn a_lease_is_of_the_file_unless_the_option_says_another() -> Result<()> {
    let account = Account::new()?;
    write(&account, &[("genv.toml", "for = '8h'")])?;
    for (flags, hours) in [(&[][..], Some(8.0)), (&["--for", "2h"], Some(2.0)), (&["--no-load"], None)] {
        let words = [&["exec"], flags, &["--", "genv", "status", "--json"]].concat();
        let (_, status, _) = run(&account, &words)?;
        let status: Value = serde_json::from_str(&status)?;
        let end = status["lease_end_timestamp_seconds"].as_f64();
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let left = end.map(|end| ((end - now) / 3600.0).round());
        ensure!(left == hours, "{flags:?}: {status}");
    }
    Ok(())
}

#[test]
fn who_joins_takes_nothing_of_a_file_and_saving_says_what_counts_then() -> Result<()> {
    let account = Account::new()?;
    let file = "name = 'of a file'\ngpus = 1\ngpu-type = 'h100'\nfor = '8h'\n";
    write(
        &account,
        &[
            ("theirs/genv.toml", "gpus = 2\ngpu-type = 'a100'\nfor = '1h'"),
            ("mine/genv.toml", file),
            ("project/pyproject.toml", "[tool.genv]\ngpu-memory = '4g'\n"),
        ],
    )?;
    let told = told(
        &account,
        &[
            "cd mine",
            "genv activate --id e",
            "genv config; echo $CUDA_VISIBLE_DEVICES",
            "(cd ../theirs; genv exec --eid e -- sh -c 'echo $GENV_GPUS:$CUDA_VISIBLE_DEVICES')",
            "genv config gpus 2",
            "genv config --load",
            "genv config gpus 2",
            "genv config --save",
            "grep . .genv/* genv.toml",
            "genv home",
            "genv config --save --quiet",
            "genv config --load",
            "cd ../project",
            "genv config --load",
            "genv config --quiet --save; genv home",
            "genv deactivate",
        ],
    )?;
    insta::assert_snapshot!(told);
    Ok(())
}

#[test]
fn a_source_of_another_user_is_skipped_with_a_note() -> Result<()> {
    let (other, _, _process) = process_of_another()?;
    if other == 0 {
        // Only root can give files away.
        return Ok(());
    }
    let account = Account::new()?;
    let source = account.home().join("project/genv.toml");
    write(&account, &[("project/genv.toml", "gpus = 1"), ("genv.toml", "name = 'of mine'")])?;
    chown(&source, Some(other), None)?;
    let start = format!("export GENV_DEVICES=2; {}; cd project;", Shell::Bash.setup());
    let script = format!(
        "{start} genv home; genv activate; echo $GENV_ENVIRONMENT_NAME:$CUDA_VISIBLE_DEVICES; genv config gpus 2; \
         genv config --save; genv deactivate; genv exec --no-load -- true; cat ../.genv/gpus; rm -r ../.genv",
    );
    let (_, stdout, stderr) = account.script("bash", &[], &script)?;
    let own = account.home().join("genv.toml");
    ensure!(stdout == format!("{}\nof mine:-1\ngpus: 2\nname: of mine\n2", own.display()), "{stdout}{stderr}");
    let notes: Vec<&str> = stderr.lines().filter(|line| line.contains("belongs to")).collect();
    let named = format!("genv: {} belongs to ", source.display());
    ensure!(notes.len() == 3 && notes.iter().all(|it| it.starts_with(&named)), "{stderr}");
    let suppressed = ", and does not count. '--no-load' suppresses this note";
    ensure!(notes[0].ends_with(", and does not count") && notes[1].ends_with(suppressed), "{stderr}");
    // A folder beside the user's own file is not written to.
    fs::remove_file(source)?;
    write(&account, &[("project/.genv/gpus", "1"), ("project/genv.toml", "")])?;
    chown(account.home().join("project/.genv"), Some(other), None)?;
    let script = format!("{start} genv activate; genv config gpus 2; genv config --save; echo $?; cat .genv/gpus");
    let (_, stdout, stderr) = account.script("bash", &[], &script)?;
    ensure!(stdout == "1\n1", "{stdout}{stderr}");
    ensure!(stderr.contains("cannot save to ") && stderr.contains("it belongs to the user "), "{stderr}");
    Ok(())
}
