//! An error names only options that its command has, with the meaning of that command.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use genv_tests::patience::output;
use genv_tests::process::Sleeper;
use genv_tests::shell::{Account, Shell};
use genv_tests::state::{self, Environment};

use crate::life_cycle::running::genv;

/// Commands that fail, or say what else there is. Of four devices another environment holds three and a part of the
/// fourth; the lines are run in an environment, and outside of one.
const ERRING: [&str; 43] = [
    "genv activate --gpus 2",
    "genv activate --gpus 9",
    "genv activate --gpus 1 --gpu-memory 900g",
    "genv activate --gpus 4 --gpu-type h100",
    "genv activate --gpus 9 --gpu-type h100",
    "genv activate --gpu-type a100",
    "genv activate --gpu-memory-at-least 900g",
    "genv activate --index 0,1",
    "genv activate --index 99",
    "genv activate --index x",
    "genv activate --gpu-type ,",
    "genv activate --count 2",
    "genv activate --config",
    "genv activate --memory 4g",
    "genv activate --gpu 2",
    "genv activate --index 3 --gpus 1",
    "genv activate --refresh",
    "genv activate --detach",
    "genv activate --timestamp",
    "genv exec --gpus 2 -- true",
    "genv exec --gpus 3 --wait=1ms -- true",
    "genv exec --index 0 -- true",
    "genv exec --count 1 -- true",
    "genv exec --no-prompt -- true",
    "genv attach",
    "genv attach --gpus 2",
    "genv attach --gpus 2 --gpu-type h100",
    "genv attach --index 0,1",
    "genv attach --gpu-memory 4g",
    "genv attach --name x",
    "genv attach --no-attach",
    "genv attach --id 4",
    "genv attach --gpu-type v100",
    "genv detach --count 1",
    "genv detach --gpus 1",
    "genv devices attach --eid theirs --gpus 2",
    "genv devices attach --eid theirs --index 99",
    "genv devices attach --eid own --count 4",
    "genv free --index 1",
    "genv free --gpu-type a100",
    "genv config --gpus 1",
    "genv deactivate --id 4",
    "genv queue --wait",
];

/// The words of an error that are options.
fn options(stderr: &str) -> impl Iterator<Item = &str> {
    let words = stderr.split(|it: char| it.is_whitespace() || "'.,:;()=<[".contains(it));
    words.filter(|it| {
        let name = it.trim_start_matches('-');
        it.starts_with('-') && name.starts_with(|it: char| it.is_ascii_alphabetic())
    })
}

/// The options in a command's help.
fn known(account: &Account, command: &[&str]) -> Result<BTreeSet<String>> {
    let help = output(&mut genv(account, &[command, &["--help"]].concat())?)?;
    let help = String::from_utf8(help.stdout)?;
    Ok(options(&help).map(str::to_owned).collect())
}

/// The command of a line: its words up to the first option, and the options that the line has.
fn called_by(line: &str) -> (Vec<&str>, Vec<&str>) {
    let words = line.split_whitespace().skip(1);
    let command = words.take_while(|it| !it.starts_with('-')).collect();
    (command, options(line).collect())
}

#[test]
fn an_option_in_a_hint_is_one_of_the_command_that_the_hint_is_about() -> Result<()> {
    let account = Account::new()?;
    let member = Sleeper::start(&[])?;
    let uid = rustix::process::getuid().as_raw();
    let theirs = Environment::new("theirs", uid, member.pid(), &[0, 1, 2]);
    let own = Environment::new("own", uid, member.pid(), &[]);
    state::write(&account.state(), 4, &[theirs, own])?;
    for inside in [false, true] {
        let mut lines = vec![Shell::Bash.setup().to_owned()];
        if inside {
            lines.push("genv activate --no-attach --id mine".to_owned());
        }
        let before = lines.len();
        lines.extend(ERRING.map(str::to_owned));
        let outcomes = account.lines(Shell::Bash, &[], &lines)?;
        for (outcome, line) in outcomes[before..].iter().zip(ERRING) {
            let stderr = &outcome.stderr;
            ensure!(!stderr.is_empty(), "{line}: {outcome:?}");
            let (command, given) = called_by(line);
            check(&account, &command, &given, stderr).with_context(|| format!("{line}: {stderr}"))?;
        }
    }
    Ok(())
}

/// Each quoted command line in a message has options of that command; other options are of the command itself, or were
/// given.
fn check(account: &Account, called: &[&str], given: &[&str], message: &str) -> Result<()> {
    for (number, part) in message.split('\'').enumerate() {
        let is_quoted = number % 2 == 1;
        let (command, is_own) = match part.strip_prefix("genv ") {
            Some(_) if is_quoted => (called_by(part).0, false),
            _ => (called.to_vec(), true),
        };
        // Words behind the name of a command are its arguments.
        let depth = if command.first() == Some(&"devices") { 2 } else { 1 };
        let command = &command[..command.len().min(depth)];
        for option in options(part) {
            let is_given = is_own && given.contains(&option);
            ensure!(is_given || known(account, command)?.contains(option), "{command:?} has no {option}");
        }
    }
    Ok(())
}

#[test]
fn an_option_of_another_command_is_no_misspelling() -> Result<()> {
    let account = Account::new()?;
    for (words, stderr) in [
        (
            &["detach", "--gpus", "2"][..],
            "genv: unexpected argument '--gpus' found. '--help' lists commands and flags\n",
        ),
        (
            &["attach", "--gpu-memory", "4g"],
            "genv: unexpected argument '--gpu-memory' found. '--help' lists commands and flags\n",
        ),
        (&["attach", "--id", "4"], "genv: unexpected argument '--id' found. '--help' lists commands and flags\n"),
        (
            &["free", "--gpu-type", "a100"],
            "genv: unexpected argument '--gpu-type' found. '--help' lists commands and flags\n",
        ),
        (&["config", "--gpus", "1"], "genv: unexpected argument '--gpus' found. '--help' lists commands and flags\n"),
        (
            &["exec", "--count", "1", "--", "true"],
            "genv: unexpected argument '--count' found. '--help' lists commands and flags\n",
        ),
        (
            &["exec", "--gpu", "1", "--", "true"],
            "genv: unexpected argument '--gpu' found. a similar argument exists: '--gpus'\n",
        ),
        (&["exec", "-d", "--", "true"], "genv: unexpected argument '-d' found. '--help' lists commands and flags\n"),
        (&["activate", "--gpu", "2"], "genv: unexpected argument '--gpu' found. a similar argument exists: '--gpus'\n"),
    ] {
        let done = output(&mut genv(&account, words)?)?;
        ensure!(done.status.code() == Some(2), "{done:?}");
        ensure!(done.stderr == stderr.as_bytes(), "{done:?}");
    }
    Ok(())
}
