//! A user who does all that he can, against the daemon: no process of another user is ever signalled, no cycle is late,
//! nothing grows, and the rules hold again afterwards.
//!
//! A campaign takes a minute, or as many seconds as `GENV_CAMPAIGN_SECONDS` says. `GENV_CAMPAIGN_SEED` makes another of it;
//! `GENV_CAMPAIGN_ONLY` names the kinds of mischief, by commas.

mod clock;
mod lab;
mod mischief;
mod random;
mod watch;

use std::env::var;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::is_alive;
use genv_tests::footprint::Footprint;
use genv_tests::patience::{PATIENCE, until};
use genv_tests::root::require_root;
use serde_json::Value;

use lab::Lab;
use mischief::{ALL, Adversary, Mischief};
use random::Random;
use watch::{Watch, Worst};

/// Between two cycles.
const INTERVAL: &str = "1s";

/// A cycle that waits for three intervals, or takes a processor for as long, is late.
const LATE: Duration = Duration::from_secs(3);

/// How long mischief goes on at least, until the files are put back.
const ROUND: Duration = Duration::from_secs(4);

/// How many cycles end at least while mischief goes on.
const CYCLES: usize = 3;

/// Between two deeds of one kind.
const PAUSE: Duration = Duration::from_millis(100);

/// How long most deeds last.
const LASTING: Duration = Duration::from_millis(2600);

/// What the daemon may take at most, also while it reads what one user wrote.
const MOST_BYTES: u64 = 128 << 20;

/// What it may keep of it when all is over.
const GROWTH_BYTES: u64 = 24 << 20;

/// So many may be open for a moment.
const GROWTH_DESCRIPTORS: usize = 8;

/// A daemon under attack, and how much of its audit was looked at.
struct Campaign {
    lab: Lab,
    watch: Watch,
    audited: usize,
    /// What it held after its first rounds.
    settled: Option<Footprint>,
}

impl Campaign {
    fn start() -> Result<Self> {
        let lab = Lab::start()?;
        let status = lab.enforcer.setup().state_directory().join("status.json");
        let watch = Watch::start(lab.enforcer.pid(), status);
        Ok(Self { lab, watch, audited: 0, settled: None })
    }

    /// What went wrong in a round of these.
    fn round(&mut self, kinds: &[Mischief], random: &mut Random) -> Result<Vec<String>> {
        self.watch.take();
        let mut adversary = Adversary::new(&self.lab);
        let (began, mut until) = (Instant::now(), Instant::now());
        let mut choice = 0;
        while began.elapsed() < ROUND || self.watch.cycles() < CYCLES {
            if began.elapsed() > PATIENCE {
                break;
            }
            // What is done lasts for long enough to count, or changes all the time.
            let is_new = Instant::now() >= until;
            if is_new {
                choice = random.next();
                until = Instant::now() + *random.one_of(&[PAUSE, LASTING, LASTING]);
            }
            for (name, deed) in kinds {
                adversary.choose(choice, is_new);
                deed(&mut adversary).context(*name)?;
            }
            std::thread::sleep(PAUSE);
        }
        drop(adversary);
        let under_attack = self.watch.take();
        self.lab.restore()?;
        self.lab.show(&[], "")?;
        let mut wrong = self.lab.ended();
        wrong.extend(self.harms()?);
        wrong.extend(excess(under_attack));
        if let Err(error) = self.recovers() {
            let status = self.lab.enforcer.setup().said(&["status"]).unwrap_or_else(|error| error.to_string());
            let status = status.lines().take(40).collect::<Vec<_>>().join("\n");
            wrong.push(format!("it does not recover: {error:#}\n{status}"));
        }
        wrong.extend(self.harms()?);
        wrong.extend(self.lab.ended());
        wrong.sort();
        wrong.dedup();
        Ok(wrong)
    }

    /// What the audit says was done to anybody but the adversary.
    fn harms(&mut self) -> Result<Vec<String>> {
        let path = self.lab.enforcer.setup().state_directory().join("audit.jsonl");
        let mut text = fs::read_to_string(path).unwrap_or_default();
        // The last line may be half written.
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        let mut harms = Vec::new();
        for line in text.get(self.audited..).unwrap_or_default().lines() {
            let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            if !matches!(line["result"].as_str(), Some("intended" | "done" | "unknown")) {
                continue;
            }
            let of_innocent = line["pid"].as_u64().is_some_and(|pid| self.lab.is_innocents(pid));
            // What was forced on somebody may be taken again.
            let of_honest = line["eid"].as_str().zip(line["gpu"].as_u64());
            let of_honest = of_honest.is_some_and(|(eid, gpu)| self.lab.holds(eid, gpu));
            if of_innocent || line["action"] == "detach" && of_honest {
                harms.push(format!(
                    "{} by {}: pid {} eid {} gpu {}: {}",
                    line["action"], line["rule"], line["pid"], line["eid"], line["gpu"], line["why"]
                ));
            }
        }
        self.audited = text.len();
        Ok(harms)
    }

    /// Sees that a process which breaks a rule is ended, now that nobody disturbs.
    fn recovers(&self) -> Result<()> {
        let guilty = self.lab.guilty()?;
        until("a process that breaks a rule is ended", || Ok(!is_alive(guilty.pid())))
    }

    /// What the daemon holds more than it did, when nobody disturbs it, once each kind of mischief was there.
    fn growth(&mut self, has_settled: bool) -> Result<Option<String>> {
        if !has_settled {
            return Ok(None);
        }
        let now = Footprint::of(self.lab.enforcer.pid())?;
        let settled = *self.settled.get_or_insert(now);
        let grew = now.anonymous_bytes > settled.anonymous_bytes + GROWTH_BYTES
            || now.descriptors > settled.descriptors + GROWTH_DESCRIPTORS
            || now.threads > settled.threads + GROWTH_DESCRIPTORS;
        Ok(grew.then(|| format!("it grew from {settled:?} to {now:?}")))
    }
}

fn excess(worst: Worst) -> Vec<String> {
    let mut excess = Vec::new();
    if worst.cycles < CYCLES {
        excess.push(format!("only {} cycles ended", worst.cycles));
    }
    if worst.wait > LATE {
        excess.push(format!("a cycle was late: it waited for {:?}", worst.wait));
    }
    if worst.computed > LATE {
        excess.push(format!("a cycle was late: it computed for {:?}", worst.computed));
    }
    if worst.resident_bytes > MOST_BYTES {
        excess.push(format!("it took {} bytes", worst.resident_bytes));
    }
    excess
}

fn number(variable: &str, otherwise: u64) -> Result<u64> {
    var(variable).map_or(Ok(otherwise), |text| text.parse().with_context(|| variable.to_owned()))
}

#[test]
fn a_user_who_does_all_that_he_can_harms_nobody_else_and_stops_nothing() -> Result<()> {
    require_root();
    let seconds = number("GENV_CAMPAIGN_SECONDS", 60)?;
    let seed = number("GENV_CAMPAIGN_SEED", 1)?;
    println!("GENV_CAMPAIGN_SEED={seed}");
    let only = var("GENV_CAMPAIGN_ONLY").unwrap_or_default();
    let mut kinds: Vec<Mischief> = ALL.to_vec();
    kinds.retain(|(name, _)| only.is_empty() || only.split(',').any(|it| it == *name));
    let mut random = Random(seed);
    let mut campaign = Campaign::start()?;
    let (mut deck, mut rounds, mut played, mut wrong) = (Vec::new(), 0, 0, Vec::new());
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds) || played < kinds.len() {
        // Each kind once, until all were there, up to three together.
        if deck.is_empty() {
            deck.clone_from(&kinds);
            random.shuffle(&mut deck);
        }
        let now = deck.split_off(deck.len().saturating_sub(1 + random.below(3)));
        rounds += 1;
        played += now.len();
        let names: Vec<&str> = now.iter().map(|(name, _)| *name).collect();
        let mut found = campaign.round(&now, &mut random).with_context(|| format!("seed {seed}, {names:?}"))?;
        found.extend(campaign.growth(played > kinds.len())?);
        if !found.is_empty() {
            let found = format!("round {rounds}, {}: {}", names.join(" and "), found.join("\n    "));
            println!("{found}");
            wrong.push(found);
            // Everybody comes again.
            campaign = Campaign::start()?;
        }
    }
    println!("{rounds} rounds");
    ensure!(wrong.is_empty(), "seed {seed}: {} of {rounds} rounds:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}
