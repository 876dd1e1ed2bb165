//! `genv-enforcer carry-out`: what another machine asks of this one, and this one's own configuration.

use std::fs::{self, File};

use anyhow::{Context as _, Result, ensure};
use genv_enforcer::config::Action;
use genv_enforcer::plan::Target;
use genv_enforcer::reload::{Rules as InForce, Source, Written};
use genv_enforcer::remote_steps::{RemoteStep, Rules, StepRequest, VERSION};
use genv_tests::enforcer::{Setup, ends, is_alive, sleeper, target, terminate, victim};
use genv_tests::nvml_sim::used_by;

const RULES: &str = "version: 1\nrules:\n- {kind: non-env-processes, action: terminate, warn: []}\n";

/// A request to end a process for [`RULES`], which lie in the folder of the setup.
fn request(setup: &Setup, pid: u32) -> Result<StepRequest> {
    let target = target("gpu01", pid)?;
    let read = InForce::open(Source::File(setup.config()), Default::default(), 0.0)?;
    let hash = read.in_force().config.hash.clone();
    let written = Written::Yaml(RULES.to_owned());
    Ok(StepRequest {
        version: VERSION,
        asked_by: "monitor".to_owned(),
        hostname: "gpu01".to_owned(),
        now_seconds: 1_800_000_000.0,
        rules: Rules { source: "enforcer.yaml".to_owned(), written, hash, timezone: None },
        steps: vec![RemoteStep {
            step: terminate(&target),
            username: target.username.clone(),
            action: Action::Terminate,
            found: "found".to_owned(),
            allowed: "allowed".to_owned(),
            remedy: "remedy".to_owned(),
            targets: vec![Target::Process(target.into())],
        }],
    })
}

#[test]
fn the_list_never_of_the_host_protects_its_users() -> Result<()> {
    let user = sleeper(&[])?;
    let setup = Setup::new(&used_by(&[user.pid()]), RULES)?;
    let asked = setup.folder().join("request");
    fs::write(&asked, serde_json::to_vec(&request(&setup, user.pid())?)?)?;
    let own = setup.folder().join("own.yaml");
    let carried_out = |never: &str| -> Result<String> {
        fs::write(&own, format!("version: 1\n{never}rules: []\n"))?;
        let mut command = setup.command(&["carry-out", "--config"])?;
        let output = command.arg(&own).stdin(File::open(&asked)?).output()?;
        Ok(String::from_utf8([output.stdout, output.stderr].concat())?)
    };
    let said = carried_out(&format!("never: {{users: [\"uid:{}\"]}}\n", victim()))?;
    ensure!(said.contains("its user is listed under never") && is_alive(user.pid()), "{said}");
    // Without the list the same request ends it.
    let said = carried_out("")?;
    ends(user.pid()).context(said)
}
