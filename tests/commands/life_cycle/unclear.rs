//! Jobs whose environment is not known, since they overwrote their variables and the process that started them has
//! ended; and jobs whose devices are not known, since one device is lost.

use std::fs;

use anyhow::{Result, ensure};
use genv_tests::enforcer::is_alive;
use genv_tests::patience::{ended, until};
use genv_tests::process::signal;
use genv_tests::shell::Account;
use rustix::process::Signal;

use crate::life_cycle::jobs::{driver, leave_behind_after, printed, shell_with_a_job, simulate};

const TITLED: &str = "exec perl -e '$0 = q(x) x 9000; open F, q(>), q(titled); close F; sleep 1000'";

const WAIT: &str = "until [ -e ~/titled ]; do sleep 0.01; done";

#[test]
fn deactivating_names_it_waits_for_it_and_does_not_end_it() -> Result<()> {
    for flag in ["", "--end", "--wait"] {
        let account = Account::new()?;
        fs::write(account.home().join("run"), format!("echo $$ > ~/job; {TITLED}\n"))?;
        let start = format!("(setsid sh ~/run > /dev/null 2>&1 < /dev/null &)\n{WAIT}\ncat ~/job");
        let (mut shell, complaints, job) = shell_with_a_job(&account, &start, &format!("genv deactivate {flag}"))?;
        driver(&account, &[job.0])?;
        drop(shell.stdin.take());
        let line = complaints.next_line()?;
        let named = format!("process {} (", job.0);
        ensure!(line.contains(&named) && line.contains("hides its environment"), "{line}");
        if flag == "--wait" {
            ensure!(line.contains("waiting"), "{line}");
            driver(&account, &[])?;
        }
        ensure!(ended(&mut shell)?.success() == (flag != "--end"), "{flag}");
        ensure!(is_alive(job.0), "{flag}");
        if flag == "--end" {
            // The environment goes on with the process, and ends with the process.
            ensure!(printed(&account, "GENV_LINGER=0s genv devices find --eid e1", 0)? == "0\n");
            printed(&account, "GENV_LINGER=0s genv exec --gpus 4 -- true", 4)?;
            signal(job.0, Signal::KILL)?;
        }
        until("the environment ended", || Ok(printed(&account, "genv envs --no-header", 0)?.is_empty()))?;
    }
    Ok(())
}

#[test]
fn an_environment_with_a_lost_device_goes_on_with_all_until_its_user_detaches_them() -> Result<()> {
    let account = Account::new()?;
    driver(&account, &[])?;
    let last = "genv attach --count 2; genv status";
    let agent = leave_behind_after(&account, "setsid JOB &", "exec sleep 1000", last)?;
    simulate(&account, "devices: [{faults: [{lost: true}]}, {count: 3}]")?;
    // The process may work on the lost device, and use the other device later.
    for _ in 0..2 {
        let found = printed(&account, "GENV_LINGER=0s genv devices find --eid e1", 0)?;
        ensure!(found == "0,1\n", "{found}");
        let snapshot = printed(&account, "GENV_LINGER=0s genv snapshot", 0)?;
        ensure!(snapshot.contains("\"eid\":\"e1\""), "{snapshot}");
    }
    ensure!(is_alive(agent.0));
    printed(&account, "genv devices detach --eid e1", 0)?;
    let others = "genv exec --gpus 3 -- printenv CUDA_VISIBLE_DEVICES";
    ensure!(printed(&account, others, 0)? == "1,2,3\n");
    Ok(())
}
