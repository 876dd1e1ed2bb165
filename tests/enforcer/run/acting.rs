use anyhow::{Result, ensure};
use genv_tests::enforcer::{Setup, ends, ends_outsiders, is_alive, sleeper};
use genv_tests::metrics::Scrape;
use genv_tests::nvml_sim::used_by;

use crate::run::outsider;

const RULE: &str = "non-env-processes";
const AT_ONCE: &str = "for: 0s, warn: []";

fn count(scrape: &Scrape, result: &str) -> f64 {
    let all = scrape.all("genv_enforcer_actions_total", &[("rule", RULE), ("action", "terminate"), ("result", result)]);
    all.iter().map(|(_, value)| value).sum()
}

#[test]
fn promise_04_a_fresh_install_only_reports() -> Result<()> {
    let process = sleeper(&[])?;
    let config = format!("version: 1\nrules:\n- {{kind: {RULE}, action: kill, {AT_ONCE}}}\n");
    let enforcer = Setup::new(&used_by(&[process.pid()]), &config)?.start()?;
    let scrape = enforcer.wait_for_metrics("an action would be taken", |scrape| count(scrape, "would") == 1.0)?;
    enforcer.wait_for_cycles(3)?;
    ensure!(is_alive(process.pid()));
    assert_eq!(scrape.value("genv_enforcer_mode", &[("mode", "dry-run")])?, 1.0);
    assert_eq!(scrape.value("genv_enforcer_mode", &[("mode", "enforce")])?, 0.0);
    assert_eq!(count(&enforcer.scrape()?, "would"), 1.0, "it is said once");
    assert_eq!(enforcer.status()?["mode"], "dry-run");
    for line in enforcer.audit()? {
        ensure!(line["result"] != "done", "{line}");
    }
    // Without rules nothing is guessed either.
    let stderr = enforcer.setup().ended(&["run", "--once"], 2)?;
    ensure!(stderr.contains("no rules are named"), "{stderr}");
    Ok(())
}

#[test]
fn what_was_only_said_counts_for_nothing_once_it_is_enforced() -> Result<()> {
    let when = "for: 0s, warn: [3s]";
    let (process, setup) = outsider("dry-run", when)?;
    let enforcer = setup.start()?;
    enforcer.wait_for_metrics("it would have been ended", |scrape| count(scrape, "would") == 1.0)?;
    enforcer.setup().rewrite_config(&ends_outsiders("enforce", when))?;
    let status = enforcer.wait_for_status("it is warned of anew", |status| {
        status["mode"] == "enforce" && status["violations"][0]["stage"] == "warned"
    })?;
    ensure!(is_alive(process.pid()));
    let end = status["violations"][0]["at_seconds"].as_f64();
    ensure!(end > status["updated_timestamp_seconds"].as_f64());
    ends(process.pid())
}

#[test]
fn one_cycle_acts_remembers_and_prints_what_it_found() -> Result<()> {
    let process = sleeper(&[])?;
    let setup = Setup::new(&used_by(&[process.pid()]), "version: 1\nrules: []\n")?;
    let run = |text: &str| -> Result<String> {
        setup.rewrite_config(text)?;
        setup.said(&["run", "--once", &setup.config_flag()])
    };
    let young = run(&ends_outsiders("enforce", "for: 1h, warn: []"))?;
    ensure!(young.contains("nothing follows if it is over by"), "{young}");
    ensure!(is_alive(process.pid()));
    let due = run(&ends_outsiders("enforce", AT_ONCE))?;
    ensure!(due.contains("it is ended"), "{due}");
    ends(process.pid())?;
    setup.rewrite_scenario(&used_by(&[]))?;
    let nothing = run(&ends_outsiders("enforce", AT_ONCE))?;
    ensure!(nothing.contains("Nobody breaks a rule"), "{nothing}");
    Ok(())
}

#[test]
fn genv_enforce_of_genv_1_4_3_ends_what_it_ended_there() -> Result<()> {
    let process = sleeper(&[])?;
    let setup = Setup::new(&used_by(&[process.pid()]), "")?;
    let enforce = |words: &[&str]| -> Result<String> {
        let mut command = setup.program("genv", &["enforce"])?;
        let output = genv_tests::patience::output(command.args(words))?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let said = enforce(&["--interval", "0"])?;
    ensure!(said.contains("Nobody breaks a rule"), "{said}");
    ensure!(is_alive(process.pid()), "it is off by default");
    enforce(&["--non-env-processes", "--interval", "0"])?;
    ends(process.pid())
}
