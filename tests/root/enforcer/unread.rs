//! A process with unreadable variables: a page of its memory waits for a file system of its user, for longer than any test
//! waits.

use anyhow::{Result, ensure};
use genv_tests::enforcer::{Setup, ends, ends_outsiders, sleeper, sleeper_of, victim};
use genv_tests::hanging::Hanging;
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::output;
use genv_tests::root::{FIRST_UID, apart, own_mounts, require_root};
use genv_tests::state::{self, Environment};

use crate::ANYTHING;

/// A test with mounts of its own.
fn apart_with(test: fn(Setup) -> Result<()>) -> Result<()> {
    require_root();
    apart(|| {
        own_mounts();
        test(Setup::new(&used_by(&[]), &ends_outsiders("enforce", "for: 0s, warn: []"))?)
    })
}

#[test]
fn on_a_device_or_in_a_record_it_hides_no_process_of_another() -> Result<()> {
    apart_with(|setup| {
        let [first, second] = [2, 3].map(|number| sleeper_of(FIRST_UID + number, &ANYTHING));
        let (first, second) = (first?, second?);
        let enforcer = setup.start()?;
        let hanging = Hanging::start(&[])?;
        enforcer.setup().rewrite_scenario(&used_by(&[hanging.pid(), first.pid()]))?;
        ends(first.pid())?;
        // The one that has ended would count, too.
        enforcer.setup().rewrite_scenario(&used_by(&[hanging.pid()]))?;
        enforcer.wait_for_status("it is unknown", |status| {
            status["unknown_processes"].as_object().is_some_and(|hosts| hosts.values().any(|number| *number == 1))
        })?;
        let record = Environment::new("e", victim(), hanging.pid(), &[0]);
        state::write(&enforcer.setup().genv_directory(), 2, &[record])?;
        enforcer.setup().rewrite_scenario(&used_by(&[second.pid()]))?;
        ends(second.pid())
    })
}

#[test]
fn no_command_of_root_waits_for_it_and_its_environment_goes_on() -> Result<()> {
    apart_with(|setup| {
        let ended = sleeper(&[])?;
        let record = Environment::new("e", victim(), ended.pid(), &[0]);
        drop(ended);
        state::write(&setup.genv_directory(), 2, &[record])?;
        let mut hanging = Hanging::start(&[("GENV_ENVIRONMENT_ID", "e")])?;
        for words in [&["envs"][..], &["exec", "--gpus=1", "--", "true"]] {
            let done = output(&mut setup.program("genv", words)?)?;
            ensure!(done.status.success(), "{words:?}: {done:?}");
        }
        let envs = || -> Result<String> {
            let done = output(&mut setup.program("genv", &["envs"])?)?;
            Ok(String::from_utf8(done.stdout)?)
        };
        let shown = envs()?;
        ensure!(shown.contains("e "), "{shown}");
        hanging.release();
        Ok(())
    })
}
