//! No byte of a value is read as anything but itself.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use anyhow::Result;
use genv_tests::shell::{Account, Shell};

/// Ways to run the command C.
const COMMANDS: [&str; 9] = ["$(C)", "`C`", "';C;'", "\";C;\"", "\nC\n", ";C", "&&C", "|C", "(C)"];

/// What shells read as something else in one place or another.
const HOSTILE: [&str; 14] =
    ["\\", "'", "\\'", "''", "\n", "$HOME", "${HOME}", "~", "*", "!!", "#", "%", "\x1b[31m", "\r"];

/// A value as `GENV_RESTORE` has it, which needs no quotes anywhere.
fn escaped(value: &[u8]) -> String {
    value.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "%{byte:02x}");
        text
    })
}

/// Lets each shell bring back values as those of a variable, all in one start of the shell.
fn round_trip(values: &[Vec<u8>], locales: &[&str]) -> Result<()> {
    for shell in Shell::ALL {
        for locale in locales {
            let account = Account::new()?;
            let mut lines = vec![shell.setup().to_owned()];
            lines.extend(values.iter().map(|value| {
                let enter = shell.set("GENV_ENVIRONMENT_ID", "ended");
                let restore = format!("CUDA_VISIBLE_DEVICES={}", escaped(value));
                format!("{enter}\n{}\ngenv shell --reattach", shell.set("GENV_RESTORE", &restore))
            }));
            let outcomes = account.lines(shell, &[("LC_ALL", *locale)], &lines)?;
            for (value, outcome) in values.iter().zip(&outcomes[1..]) {
                let found = outcome.variable("CUDA_VISIBLE_DEVICES").map(OsStr::as_bytes);
                let (value, found) = (value.escape_ascii().to_string(), found.map(|it| it.escape_ascii().to_string()));
                assert_eq!(found.as_deref(), Some(&*value), "{shell} with {locale}: {}", outcome.stderr);
                assert_eq!((outcome.code, &*outcome.stdout), (0, ""), "{shell}: {value}");
            }
            assert!(!account.home().join("executed").exists(), "{shell} executed a value");
        }
    }
    Ok(())
}

#[test]
fn values_come_out_of_every_shell_as_they_went_in() -> Result<()> {
    let commands = COMMANDS.map(|text| text.replace('C', "touch executed").into_bytes());
    let mut values: Vec<Vec<u8>> = HOSTILE.map(|text| text.as_bytes().to_vec()).into_iter().chain(commands).collect();
    values.extend([">executed", "{touch,executed}", "é\u{202e}"].map(|text| text.as_bytes().to_vec()));
    values.push((1..=255).collect());
    values.push(Vec::new());
    // Code points that fish uses for bytes that are not UTF-8, and for its own marks.
    values.extend(["\u{f600}", "\u{f6ff}", "\u{fdd0}", "\u{e000}", "\u{f8ff}"].map(|text| text.as_bytes().to_vec()));
    round_trip(&values, &["C", "C.UTF-8"])
}
