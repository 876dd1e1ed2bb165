//! Requests that `genv-enforcer carry-out` refuses.

use std::fs;
use std::io::Write as _;
use std::process::{Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_enforcer::config::Action;
use genv_enforcer::plan::{Outcome, ProcessTarget, StepKind, Target};
use genv_enforcer::reload::{Rules as InForce, Source, Written};
use genv_enforcer::remote_steps::{RemoteStep, Rules, StepReport, StepRequest, VERSION};
use genv_tests::enforcer::{Setup, ends, is_alive, sleeper, target, terminate};
use genv_tests::nvml_sim::used_by;
use genv_tests::process::Sleeper;
use serde_json::{Value, json};

const RULES: &str = "version: 1\nrules:\n- {kind: non-env-processes, action: terminate, warn: []}\n";

/// A host, with the name `gpu01` in requests, with one process that uses a device and one that uses none.
struct Host {
    setup: Setup,
    user: Sleeper,
    idle: Sleeper,
}

impl Host {
    fn new() -> Result<Self> {
        let (user, idle) = (sleeper(&[])?, sleeper(&[])?);
        Ok(Self { setup: Setup::new(&used_by(&[user.pid()]), RULES)?, user, idle })
    }

    /// A request to end a process.
    fn request(&self, pid: u32) -> Result<StepRequest> {
        let target = target("gpu01", pid)?;
        Ok(StepRequest {
            version: VERSION,
            asked_by: "monitor".to_owned(),
            hostname: "gpu01".to_owned(),
            now_seconds: 1_800_000_000.0,
            rules: self.rules(RULES)?,
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

    fn rules(&self, text: &str) -> Result<Rules> {
        let path = self.setup.folder().join("elsewhere.yaml");
        fs::write(&path, RULES)?;
        let read = InForce::open(Source::File(path), Default::default(), 0.0)?;
        let hash = match text == RULES {
            true => read.in_force().config.hash.clone(),
            false => String::new(),
        };
        Ok(Rules { source: "enforcer.yaml".to_owned(), written: Written::Yaml(text.to_owned()), hash, timezone: None })
    }

    fn output(&self, request: &Value) -> Result<Output> {
        let mut command = self.setup.command(&["carry-out"])?;
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.stderr(Stdio::piped()).spawn()?;
        let mut stdin = child.stdin.take().context("no stdin")?;
        stdin.write_all(&serde_json::to_vec(request)?)?;
        drop(stdin);
        Ok(child.wait_with_output()?)
    }

    fn execute(&self, request: &StepRequest) -> Result<Outcome> {
        let output = self.output(&serde_json::to_value(request)?)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{stderr}");
        let mut report: StepReport = serde_json::from_slice(&output.stdout)?;
        report.outcomes.pop().context("no outcome")
    }

    /// Both processes are running, and the last line of the audit log is a refusal for this reason.
    fn refuses(&self, request: &StepRequest, why: &str) -> Result<()> {
        let outcome = self.execute(request)?;
        let Outcome::Refused { reason, .. } = &outcome else {
            anyhow::bail!("{outcome:?} is no refusal because {why}");
        };
        ensure!(reason.contains(why), "{reason}");
        ensure!(is_alive(self.user.pid()) && is_alive(self.idle.pid()));
        let audit = fs::read_to_string(self.setup.state_directory().join("audit.jsonl"))?;
        let last: Value = serde_json::from_str(audit.lines().last().context("no line")?)?;
        ensure!(last["result"] == "refused" && last["reason"] == **reason && last["asked_by"] == "monitor", "{last}");
        Ok(())
    }
}

/// Changes the target, and the subject with it.
fn with_target(request: &StepRequest, change: impl FnOnce(&mut ProcessTarget)) -> StepRequest {
    let mut request = request.clone();
    if let StepKind::Terminate(target) = &request.steps[0].step.kind {
        let mut target = (**target).clone();
        change(&mut target);
        request.steps[0].step = terminate(&target);
    }
    request
}

#[test]
#[ignore = "needs root"]
fn a_wrong_or_outdated_step_is_refused_and_a_correct_step_is_executed() -> Result<()> {
    let host = Host::new()?;
    let right = host.request(host.user.pid())?;
    let not_shown = "own plan does not show that the rule is broken";

    host.refuses(&host.request(host.idle.pid())?, not_shown)?;
    let replaced = with_target(&right, |target| target.start_time_ticks += 1);
    host.refuses(&replaced, not_shown)?;
    let other_user = with_target(&right, |target| target.uid += 1);
    host.refuses(&other_user, "it runs as another user now")?;
    let in_environment = with_target(&right, |target| target.eid = Some("1".to_owned()));
    host.refuses(&in_environment, "not in the same environment")?;
    let elsewhere = with_target(&right, |target| target.hostname = "gpu02".to_owned());
    host.refuses(&elsewhere, not_shown)?;

    let mut other_target = host.request(host.idle.pid())?;
    other_target.steps[0].step.key = right.steps[0].step.key.clone();
    host.refuses(&other_target, "own plan would not choose this target")?;
    let mut kill = right.clone();
    if let StepKind::Terminate(target) = kill.steps[0].step.kind.clone() {
        kill.steps[0].step.kind = StepKind::Kill(target);
    }
    host.refuses(&kill, "its rule does not kill")?;
    let mut no_rule = right.clone();
    no_rule.steps[0].step.key.rule = "made-up".to_owned();
    host.refuses(&no_rule, "not among the rules in the request")?;

    let mut rules = right.clone();
    rules.rules = host.rules("version: 1\nrules:\n- {kind: idle, new_key: 1}\n")?;
    host.refuses(&rules, "enforcer.yaml:3:16")?;
    rules.rules = host.rules("version: 1\nrules: []\n")?;
    host.refuses(&rules, "not the hash in the request")?;

    host.setup.said(&["pause", "--for", "1h"])?;
    host.refuses(&right, "it is paused on that host")?;
    host.setup.said(&["pause", "--for", "0"])?;

    assert_eq!(host.execute(&right)?, Outcome::Done);
    ends(host.user.pid())?;
    ensure!(is_alive(host.idle.pid()));
    Ok(())
}

#[test]
#[ignore = "needs root"]
fn the_list_never_of_the_host_protects_its_users() -> Result<()> {
    let host = Host::new()?;
    let right = host.request(host.user.pid())?;
    let own = host.setup.folder().join("own.yaml");
    let uid = genv_tests::enforcer::victim();
    fs::write(&own, format!("version: 1\nnever: {{users: [\"uid:{uid}\"]}}\nrules: []\n"))?;
    let mut command = host.setup.command(&["carry-out", "--config"])?;
    let request = host.setup.folder().join("request");
    fs::write(&request, serde_json::to_vec(&right)?)?;
    let output = command.arg(&own).stdin(fs::File::open(&request)?).output()?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    ensure!(stdout.contains("its user is listed under never"), "{stdout}");
    ensure!(is_alive(host.user.pid()));
    Ok(())
}

#[test]
#[ignore = "needs root"]
fn a_request_of_another_version_or_with_an_unknown_field_is_an_error() -> Result<()> {
    let host = Host::new()?;
    let right = serde_json::to_value(host.request(host.user.pid())?)?;
    let mut newer = right.clone();
    newer["version"] = json!(VERSION + 1);
    let mut unknown = right.clone();
    unknown["spare"] = json!(["everybody"]);
    for (request, why) in [
        (newer, "and this program reads 1"),
        (unknown, "unknown field `spare`"),
        (json!([{"pid": host.user.pid()}]), "invalid type"),
    ] {
        let output = host.output(&request)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(2), "{stderr}");
        ensure!(stderr.contains(why), "{stderr}");
    }
    ensure!(is_alive(host.user.pid()));
    Ok(())
}
