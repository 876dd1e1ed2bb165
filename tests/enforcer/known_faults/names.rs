//! What others have named is shown and never executed.

use anyhow::{Result, ensure};
use genv_tests::shell::{Account, Shell};
use serde_json::json;

use crate::known_faults::{all_done, edit, run, run_with, uid, with_environment};

const HOSTILE: [&str; 6] = [
    "$(touch executed)",
    "'; touch executed; '",
    "`touch executed`",
    "x\ntouch executed\n",
    "\u{1b}]0;owned\u{7}\u{1b}[2J\r",
    "\"; touch executed; (touch executed)",
];

#[test]
fn a_name_in_envs_json_is_not_executed() -> Result<()> {
    for shell in Shell::ALL {
        for name in HOSTILE {
            let (account, _member) = with_environment(uid())?;
            edit(&account, "envs.json", |envs| {
                envs["envs"][0]["config"]["name"] = json!(name);
            })?;
            let outcomes = run(
                &account,
                shell,
                &[
                    "genv activate --id e1",
                    "genv status",
                    "genv config",
                    "genv envs --no-header",
                    "genv devices --no-header",
                    "genv config --refresh",
                    "genv attach --refresh",
                    "genv deactivate",
                ],
            )?;
            all_done(&outcomes)?;
            let shown = outcomes[0].variable("GENV_ENVIRONMENT_NAME");
            ensure!(shown.is_some_and(|shown| shown == name), "{shell}: {name:?} became {shown:?}");
            for outcome in &outcomes {
                let text = format!("{}{}", outcome.stdout, outcome.stderr);
                ensure!(!text.contains(|it: char| it.is_control() && it != '\n'), "{shell}: {outcome:?}");
            }
            let lines = |number: usize| outcomes[number].stdout.lines().count();
            ensure!((lines(3), lines(4)) == (1, 4), "{shell}: {outcomes:?}");
            ensure!(!account.home().join("executed").exists(), "{shell}: {name}");
        }
    }
    Ok(())
}

#[test]
fn an_eid_in_envs_json_is_not_executed() -> Result<()> {
    for shell in Shell::ALL {
        for eid in HOSTILE {
            let (account, _member) = with_environment(uid())?;
            edit(&account, "envs.json", |envs| envs["envs"][0]["eid"] = json!(eid))?;
            edit(&account, "devices.json", |devices| {
                devices["devices"][0]["attachments"][0]["eid"] = json!(eid);
            })?;
            // As a shell that was started within it.
            let inherited = [("GENV_ENVIRONMENT_ID", eid)];
            let outcomes = run_with(
                &account,
                shell,
                &inherited,
                &["genv status", "genv envs", "genv devices", "genv deactivate"],
            )?;
            all_done(&outcomes)?;
            for outcome in &outcomes {
                let text = format!("{}{}", outcome.stdout, outcome.stderr);
                ensure!(!text.contains(|it: char| it.is_control() && it != '\n'), "{shell}: {outcome:?}");
            }
            ensure!(!account.home().join("executed").exists(), "{shell}: {eid}");
        }
    }
    Ok(())
}

#[test]
fn set_u_does_not_end_the_shell() -> Result<()> {
    for shell in [Shell::Bash, Shell::Zsh] {
        let account = Account::new()?;
        let script = format!(
            "set -eu -o pipefail\n{}\ngenv activate --gpus 1 --name x\ngenv config gpus 2\ngenv attach\n\
             genv config --clear\ngenv detach\ngenv deactivate\ngenv deactivate || echo $?",
            shell.setup()
        );
        let (code, printed, said) = account.script(shell.name(), &[], &script)?;
        ensure!((code, &*printed) == (0, "3\n"), "{shell}: {code} {printed} {said}");
    }
    Ok(())
}
