//! A day of a lab in enforce mode, an hour in half a second, with processes that really end. In the evening the books
//! balance: what the log says was wrong is what was done, was refused, or ended by itself; the audit explains each deed, the
//! log has as many warnings before it as its rule gives, the metrics count the same, and each process had the end of its role.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use genv_core::hosts::machine_name;
use genv_tests::enforcer::{Enforcer, Setup, as_victim, is_alive, sleeper, victim};
use genv_tests::patience::until;
use genv_tests::process::{self, Sleeper};
use genv_tests::state::{self, Environment};
use jiff::{SignedDuration, Timestamp};
use rustix::process::{Signal, geteuid};
use serde_json::Value;

const HOURS: u32 = 24;
const TICKS_AN_HOUR: u32 = 5;
const TICK: Duration = Duration::from_millis(100);

/// The environment that behaves, but for its devices and those who wander from it.
const EID: &str = "e1";

const DEEDS: [&str; 3] = ["detach", "terminate", "kill"];

/// The rules that act, with the number of their warnings.
const ACTING: [(&str, usize); 3] = [("non-env-processes", 2), ("env-devices", 1), ("fair-share", 1)];

fn config(protected: &str, maintenance: &str) -> String {
    format!(
        "version: 1
mode: enforce
timezone: UTC
breaker: {{signals_per_minute: 10000, share_of_users: 1}}
never: {{executables: [{protected}]}}
maintenance: [{maintenance}]
rules:
- {{kind: non-env-processes, action: terminate, for: 300ms, warn: [700ms, 300ms], remember: 0s}}
- {{kind: env-devices, action: kill, for: 200ms, warn: [500ms], grace: 1s, remember: 0s}}
- {{name: fair-share, kind: max-devices-per-user, limit: 2, action: detach, for: 300ms, warn: [500ms], remember: 0s}}
- {{kind: max-processes-per-environment, limit: 1, for: 0s}}
"
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// In its environment, on a device of it.
    Good,
    /// Outside of any environment.
    Stray,
    /// Outside, and it goes by itself, perhaps before anybody ends it.
    Leaving,
    /// In its environment, on a device of nobody.
    Wandering,
    /// The same, and SIGTERM does not end it.
    Stubborn,
    /// Outside, and of a user of the system, a program that is never ended.
    Protected,
}

struct Actor {
    role: Role,
    process: Sleeper,
    born_tick: u32,
}

impl Actor {
    fn start(role: Role, protected: &str, born_tick: u32) -> Result<Self> {
        let inside = [("GENV_ENVIRONMENT_ID", EID)];
        let process = match role {
            Role::Good | Role::Wandering => sleeper(&inside)?,
            Role::Stray | Role::Leaving => sleeper(&[])?,
            Role::Protected => {
                let mut command = Command::new(protected);
                command.env_clear().env("PATH", "/bin");
                // A user of the system, whom every machine has.
                Sleeper::spawn(command.args(["-f", "/dev/null"]).uid(1).gid(1))?
            }
            Role::Stubborn => {
                let mut command = Command::new("sh");
                command.env_clear().env("PATH", "/bin").envs(inside);
                let script = "trap '' TERM; exec sleep 1000000";
                let process = Sleeper::spawn(as_victim(command.args(["-c", script])))?;
                let comm = format!("/proc/{}/comm", process.pid());
                until("it ignores SIGTERM", || Ok(std::fs::read_to_string(&comm)? == "sleep\n"))?;
                process
            }
        };
        Ok(Self { role, process, born_tick })
    }

    fn pid(&self) -> u32 {
        self.process.pid()
    }

    const fn device(&self) -> u32 {
        match self.role {
            Role::Good => 0,
            Role::Wandering | Role::Stubborn => 3,
            Role::Stray | Role::Leaving | Role::Protected => 4,
        }
    }
}

fn scenario(actors: &[Actor]) -> String {
    let alive = actors.iter().filter(|actor| is_alive(actor.pid()));
    let uses: Vec<String> = alive
        .map(|actor| {
            let (pid, device) = (actor.pid(), actor.device());
            format!("{{pid: {pid}, devices: [{{index: {device}, memory: 1gi}}]}}")
        })
        .collect();
    let uses = uses.join(", ");
    format!("version: 1\nhosts:\n- devices: [{{count: 6, memory: 80gi}}]\n  processes: [{uses}]\n")
}

fn attach(setup: &Setup, member: &Actor, devices: &[usize]) -> Result<()> {
    let environment = Environment::new(EID, victim(), member.pid(), devices);
    state::write(&setup.genv_directory(), 6, &[environment])
}

fn logged(enforcer: &Enforcer, event: &str) -> Result<Vec<(Timestamp, Value)>> {
    let mut events = Vec::new();
    for line in enforcer.log().lines() {
        let mut line: Value = serde_json::from_str(line).context("the log is no JSON")?;
        if line["fields"]["event"] == event {
            events.push((text(&line, "timestamp")?.parse()?, line["fields"].take()));
        }
    }
    Ok(events)
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key].as_str().with_context(|| format!("no {key} in {value}"))
}

/// What a line of the audit is about, as the log calls it.
fn subject(line: &Value) -> String {
    match (&line["pid"], line["rule"].as_str()) {
        (Value::Number(pid), _) => format!("process {pid}"),
        _ => format!("user {}", line["username"].as_str().unwrap_or_default()),
    }
}

/// Sees that the user was warned as often as the rule says, and that what was done was not done before the announced time.
fn was_announced(line: &Value, key: &(String, String), warnings: &[(Timestamp, Value)]) -> Result<()> {
    let at: Timestamp = text(line, "time")?.parse()?;
    let of_key = warnings
        .iter()
        .filter(|(warned, warning)| *warned <= at && warning["rule"] == *key.0 && warning["subject"] == *key.1);
    let given: Vec<&Value> = of_key.map(|(_, warning)| warning).collect();
    // A violation that came back was warned of anew.
    let first = given.iter().rposition(|warning| warning["number"] == 1);
    let round = &given[first.with_context(|| format!("nobody was warned of {line}"))?..];
    ensure!(ACTING.contains(&(&*key.0, round.len())), "{round:?} before {line}");
    for warning in round {
        let end = warning["end_timestamp_seconds"].as_f64().with_context(|| format!("no end: {warning}"))?;
        ensure!(end < at.as_duration().as_secs_f64() + 0.001, "before its time: {line}");
    }
    Ok(())
}

#[test]
fn the_books_of_a_day_balance_and_the_audit_explains_every_action() -> Result<()> {
    let protected = std::fs::canonicalize("/usr/bin/tail")?.display().to_string();
    let mut actors = vec![Actor::start(Role::Good, &protected, 0)?];
    let setup = Setup::new(&scenario(&actors), &config(&protected, ""))?.flag("--log.format=json");
    attach(&setup, &actors[0], &[0, 1])?;
    let enforcer = setup.start()?;

    let (mut left, mut audited) = (BTreeSet::new(), 0);
    for tick in 0..HOURS * TICKS_AN_HOUR {
        let hour = tick / TICKS_AN_HOUR;
        if tick % TICKS_AN_HOUR == 0 {
            let role = match hour % 4 {
                0 => Role::Stray,
                1 => Role::Leaving,
                2 => Role::Wandering,
                _ => Role::Stubborn,
            };
            actors.push(Actor::start(role, &protected, tick)?);
            match hour {
                // Only root can start one.
                5 | 18 if geteuid().is_root() => actors.push(Actor::start(Role::Protected, &protected, tick)?),
                // More than is allowed; long after it was taken, once more.
                2 => attach(enforcer.setup(), &actors[0], &[0, 1, 2])?,
                // For two hours the host is under maintenance, and nothing is done.
                8 => {
                    let tomorrow = Timestamp::now() + SignedDuration::from_hours(24);
                    let hosts = format!("{{hosts: [{:?}], from: 2020-01-01, until: \"{tomorrow}\"}}", machine_name());
                    enforcer.setup().rewrite_config(&config(&protected, &hosts))?;
                    enforcer.setup().rewrite_scenario(&scenario(&actors))?;
                    enforcer.wait_for_status("a violation waits for the maintenance", |status| {
                        status["violations"].to_string().contains("its host is under maintenance")
                    })?;
                    audited = enforcer.audit()?.len();
                }
                10 => {
                    let audit = enforcer.audit()?;
                    ensure!(audit.len() == audited, "during the maintenance: {:?}", &audit[audited..]);
                    enforcer.setup().rewrite_config(&config(&protected, ""))?;
                }
                15 => {
                    until("it was taken", || {
                        let audit = enforcer.audit()?;
                        Ok(audit.iter().any(|it| it["action"] == "detach" && it["result"] == "done"))
                    })?;
                    enforcer.wait_for_cycles(2)?;
                    attach(enforcer.setup(), &actors[0], &[0, 1, 2])?;
                }
                _ => {}
            }
        }
        let leaving = actors.iter().filter(|it| it.role == Role::Leaving);
        // Some before they are warned of, some after, some too late.
        for actor in leaving.filter(|it| tick - it.born_tick == 4 + (it.born_tick / 10) % 8) {
            if is_alive(actor.pid()) {
                left.insert(format!("process {}", actor.pid()));
                process::signal(actor.pid(), Signal::KILL)?;
            }
        }
        enforcer.setup().rewrite_scenario(&scenario(&actors))?;
        sleep(TICK);
    }
    // The evening: all processes that are to end have their time.
    let stays = |actor: &Actor| matches!(actor.role, Role::Good | Role::Protected);
    until("everybody who is to end has ended", || {
        enforcer.setup().rewrite_scenario(&scenario(&actors))?;
        Ok(actors.iter().all(|it| stays(it) || !is_alive(it.pid())))
    })
    .with_context(|| enforcer.log())?;
    enforcer.setup().rewrite_scenario(&scenario(&actors))?;
    let protected = actors.iter().filter(|it| it.role == Role::Protected).count();
    let status = enforcer.wait_for_status("only what is protected is left", |status| {
        let violations = status["violations"].as_array();
        // One that ended just now may be listed as due until the next look.
        violations.is_some_and(|all| all.len() == protected && all.iter().all(|it| it["stage"] == "held"))
    })?;
    enforcer.wait_for_cycles(2)?;

    let (audit, scrape) = (enforcer.audit()?, enforcer.scrape()?);
    for actor in &mut actors {
        let wanted: &[Signal] = match actor.role {
            Role::Good | Role::Protected => &[],
            Role::Stray | Role::Wandering => &[Signal::TERM],
            Role::Stubborn => &[Signal::KILL],
            Role::Leaving => &[Signal::TERM, Signal::KILL],
        };
        if wanted.is_empty() {
            ensure!(is_alive(actor.pid()), "{:?} has ended", actor.role);
        } else {
            let ended = actor.process.ended()?.signal().and_then(Signal::from_named_raw);
            ensure!(ended.is_some_and(|ended| wanted.contains(&ended)), "{:?} ended by {ended:?}", actor.role);
        }
    }
    for violation in status["violations"].as_array().context("no violations")? {
        assert_eq!(violation["stage"], "held", "{violation}");
    }

    // Each line of the audit is explained, and each act was written down before it was done.
    let violations = logged(&enforcer, "violation")?;
    let reported: Vec<(String, String)> = violations
        .iter()
        .map(|(_, it)| Ok((text(it, "rule")?.to_owned(), text(it, "subject")?.to_owned())))
        .collect::<Result<_>>()?;
    let warned = logged(&enforcer, "warning")?;
    let mut intended = BTreeMap::new();
    let mut done: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let mut refused = BTreeSet::new();
    for line in &audit {
        let key = (text(line, "rule")?.to_owned(), subject(line));
        ensure!(reported.contains(&key), "nobody reported this: {line}");
        ensure!(!text(line, "why")?.is_empty() && !text(line, "username")?.is_empty(), "{line}");
        was_announced(line, &key, &warned)?;
        let (id, action) = (text(line, "id")?, text(line, "action")?.to_owned());
        match text(line, "result")? {
            "intended" => ensure!(intended.insert(id, key).is_none(), "{line}"),
            "done" => {
                ensure!(intended.remove(id).as_ref() == Some(&key), "{line}");
                done.entry(key).or_default().push(action);
            }
            "refused" => {
                ensure!(!text(line, "reason")?.is_empty(), "{line}");
                intended.remove(id);
                refused.insert(key);
            }
            result => anyhow::bail!("{result}: {line}"),
        }
    }
    ensure!(intended.is_empty(), "without an end: {intended:?}");

    // Violations = actions + refusals + those that ended by themselves.
    for (rule, _) in ACTING {
        let of_rule = reported.iter().filter(|(name, _)| name == rule);
        let (mut acted, mut not, mut alone) = (0, 0, 0);
        for key in of_rule.clone() {
            match (done.contains_key(key), refused.contains(key)) {
                (true, _) => acted += 1,
                (false, true) => not += 1,
                (false, false) => {
                    ensure!(left.contains(&key.1), "nothing came of {key:?}: {}", enforcer.log());
                    alone += 1;
                }
            }
        }
        assert_eq!(of_rule.count(), acted + not + alone, "{rule}");
        ensure!(acted > 0, "{rule} has never acted: {}", enforcer.log());
        let deeds = done.iter().filter(|((name, _), _)| name == rule);
        let deeds: usize = deeds.map(|(_, actions)| actions.len()).sum();
        let counted = |actions: &[&str], result: &str| -> f64 {
            let of = |action: &&str| {
                let labels = [("rule", rule), ("action", *action), ("result", result)];
                let all = scrape.all("genv_enforcer_actions_total", &labels);
                all.iter().map(|(_, value)| value).sum::<f64>()
            };
            actions.iter().map(of).sum()
        };
        let of_rule = reported.iter().filter(|(name, _)| name == rule).count();
        assert_eq!(counted(&["report"], "done"), of_rule as f64, "{rule}");
        let told = |result: &str| -> (f64, f64) {
            let counted = scrape.all("genv_enforcer_warnings_total", &[("rule", rule), ("result", result)]);
            let logged = warned.iter().filter(|(_, it)| it["rule"] == rule && it["result"] == result);
            (counted.iter().map(|(_, value)| value).sum(), logged.count() as f64)
        };
        for (counted, logged) in ["done", "failed"].map(told) {
            assert_eq!(counted, logged, "{rule}");
        }
        assert_eq!(counted(&DEEDS, "done"), deeds as f64, "{rule}");
        let other = counted(&DEEDS, "failed") + counted(&DEEDS, "would");
        assert_eq!(other, 0.0, "{rule}");
        let refusals = refused.iter().filter(|(name, _)| name == rule).count();
        ensure!(counted(&DEEDS, "refused") >= refusals as f64, "{rule}");
    }

    // Each had the end that its rule says.
    for actor in &actors {
        let (rule, signals): (_, &[_]) = match actor.role {
            Role::Stray => ("non-env-processes", &["SIGTERM"]),
            Role::Wandering => ("env-devices", &["SIGTERM"]),
            Role::Stubborn => ("env-devices", &["SIGTERM", "SIGKILL"]),
            Role::Protected => ("non-env-processes", &[]),
            Role::Good | Role::Leaving => continue,
        };
        let key = (rule.to_owned(), format!("process {}", actor.pid()));
        ensure!(actor.role != Role::Protected || refused.contains(&key), "{key:?}");
        let sent = done.get(&key).map_or(&[][..], Vec::as_slice);
        ensure!(sent == signals, "{key:?}: {sent:?}");
    }
    let taken: Vec<_> = done.iter().filter(|(key, _)| key.0 == "fair-share").collect();
    assert_eq!(taken.len(), 1, "{taken:?}");
    assert_eq!(taken[0].1[..], ["detach", "detach"]);
    let of_fair_share = reported.iter().filter(|(rule, _)| rule == "fair-share");
    assert_eq!(of_fair_share.count(), 2);
    // What only reports has done nothing.
    ensure!(reported.iter().any(|(rule, _)| rule == "max-processes-per-environment"));
    ensure!(done.keys().all(|(rule, _)| ACTING.iter().any(|(acting, _)| rule == acting)));
    Ok(())
}
