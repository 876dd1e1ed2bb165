use anyhow::{Result, ensure};
use genv_tests::enforcer::{Setup, ends, enforcing, is_alive, sleeper, victim};
use genv_tests::state::{self, Environment};

const RULES: &str = "
- {kind: idle, over: 1s, action: detach, warn: []}
- {kind: env-devices, action: kill, for: 300ms, warn: [], grace: 1s}
- {kind: non-env-processes, action: kill, for: 300ms, warn: [], grace: 1s}
";

#[test]
fn a_training_outlives_the_detach_of_its_idle_device_and_its_context_is_shown() -> Result<()> {
    let claim = [("GENV_ENVIRONMENT_ID", "e1")];
    let (member, training, idle) = (sleeper(&claim)?, sleeper(&claim)?, sleeper(&claim)?);
    let scenario = format!(
        "version: 1
hosts:
- devices: [{{count: 2}}]
  processes:
  - {{pid: {}, devices: [{{index: 0, memory: 8gi, utilization: 0.98}}, {{index: 1, memory: 500mi, utilization: 0}}]}}
  - {{pid: {}, devices: [{{index: 1, memory: 500mi, utilization: 0}}]}}
",
        training.pid(),
        idle.pid()
    );
    let setup = Setup::new(&scenario, &enforcing(RULES))?;
    let environment = Environment::new("e1", victim(), member.pid(), &[0, 1]);
    state::write(&setup.genv_directory(), 2, &[environment])?;
    let enforcer = setup.start()?;
    ends(idle.pid())?;
    let shown = |status: &serde_json::Value| {
        let context = &status["left_behind"][0];
        context["pid"] == training.pid() && context["gpu"] == 1 && context["works_on"] == 0
    };
    enforcer.wait_for_status("the context is left behind", shown)?;
    // The enforcer knows of it after a restart too.
    let (_, setup) = enforcer.terminate()?;
    let enforcer = setup.start()?;
    enforcer.wait_for_cycles(10)?;
    let status = enforcer.wait_for_status("it is known again", shown)?;
    assert_eq!(status["violations"], serde_json::json!([]), "{status:#}");
    ensure!(is_alive(training.pid()));
    let text = enforcer.setup().said(&["status"])?;
    ensure!(text.contains("left its context on device 1") && text.contains("it works on device 0"), "{text}");
    // Without the right to read the enforcer's memory, the answer comes from the published status.
    let published = tempfile::tempdir()?;
    let status = enforcer.setup().state_directory().join("status.json");
    std::fs::copy(status, published.path().join("status.json"))?;
    let directory = format!("--state-directory={}", published.path().display());
    let text = enforcer.setup().said(&["explain", &training.pid().to_string(), &directory])?;
    ensure!(text.contains("left behind by a detach") && text.contains("\nSafe: no rule ends it"), "{text}");
    Ok(())
}
