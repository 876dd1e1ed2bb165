//! A user who does all that he can, against the daemon: no process of another user is ever signalled, no cycle is late,
//! nothing grows, and the rules hold again afterwards.
//!
//! A campaign takes a minute, or as many seconds as `GENV_CAMPAIGN_SECONDS` says. `GENV_CAMPAIGN_SEED` makes another of it;
//! `GENV_CAMPAIGN_ONLY` names the kinds of mischief, by commas.

mod lab;
mod mischief;

use std::env::var;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::is_alive;
use genv_tests::footprint::Footprint;
use genv_tests::patience::PATIENCE;
use genv_tests::process::resident_bytes;
use genv_tests::root::require_root;
use serde_json::Value;

use lab::{Lab, Random};
use mischief::{Adversary, Mischief};

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

/// The limit of the daemon's memory, also while it reads what one user wrote. With the most records that it reads it takes
/// 126 MiB.
const MOST_BYTES: u64 = 160 << 20;

/// The limit of the memory that it retains after the campaign.
const GROWTH_BYTES: u64 = 24 << 20;

/// So many descriptors and threads may be open for a moment.
const GROWTH_COUNT: usize = 8;

/// Between two looks. Time is counted in looks, less what the daemon computed or stood in line for a processor meanwhile:
/// a machine that is busy with other programs, and runs neither this one nor the daemon, makes no cycle late.
const LOOK: Duration = Duration::from_millis(20);

/// The worst samples of the daemon.
#[derive(Clone, Copy, Debug, Default)]
struct Worst {
    /// The longest wait for anything but a processor, without a new status.
    wait: Duration,
    /// The most time of a processor that was taken without a new status.
    computed: Duration,
    /// The number of new statuses.
    cycles: usize,
    resident_bytes: u64,
}

/// Looks at a daemon, on a thread of its own, until the daemon ends.
fn watch(pid: u32, status: PathBuf) -> Arc<Mutex<Worst>> {
    let shared = Arc::<Mutex<Worst>>::default();
    let worst = Arc::clone(&shared);
    thread::spawn(move || {
        let (mut last, mut wait, mut computed) = (None, Duration::ZERO, Duration::ZERO);
        let mut before = scheduled(pid);
        while is_alive(pid) {
            thread::sleep(LOOK);
            // Each cycle replaces the file.
            let updated = fs::metadata(&status).and_then(|file| file.modified()).ok();
            let now = scheduled(pid);
            let (ran, queued) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
            let mut worst = worst.lock().unwrap();
            if updated != last {
                (wait, computed) = (Duration::ZERO, Duration::ZERO);
                worst.cycles += 1;
            }
            (last, before) = (updated, now);
            wait += LOOK.saturating_sub(ran + queued);
            computed += ran;
            (worst.wait, worst.computed) = (worst.wait.max(wait), worst.computed.max(computed));
            worst.resident_bytes = worst.resident_bytes.max(resident_bytes(pid).unwrap_or_default());
        }
    });
    shared
}

/// How long the living threads of a process have run, and stood in line for a processor, by `/proc/PID/task/TID/schedstat`.
fn scheduled(pid: u32) -> (Duration, Duration) {
    let mut all = (Duration::ZERO, Duration::ZERO);
    for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        let mut fields = text.split_whitespace().map(|field| field.parse().unwrap_or_default());
        all.0 += Duration::from_nanos(fields.next().unwrap_or_default());
        all.1 += Duration::from_nanos(fields.next().unwrap_or_default());
    }
    all
}

/// A daemon under attack, and how much of its audit was looked at.
struct Campaign {
    lab: Lab,
    worst: Arc<Mutex<Worst>>,
    audited: usize,
    /// What the daemon held once each kind of mischief was there.
    settled: Option<Footprint>,
}

impl Campaign {
    fn start() -> Result<Self> {
        let lab = Lab::start()?;
        let status = lab.enforcer.setup().state_directory().join("status.json");
        let worst = watch(lab.enforcer.pid(), status);
        Ok(Self { lab, worst, audited: 0, settled: None })
    }

    /// A round of these.
    fn round(&mut self, kinds: &[Mischief], random: &mut Random) -> Result<()> {
        *self.worst.lock().unwrap() = Worst::default();
        let mut adversary = Adversary::new(&self.lab);
        let (began, mut until, mut choice) = (Instant::now(), Instant::now(), 0);
        while began.elapsed() < ROUND || self.worst.lock().unwrap().cycles < CYCLES {
            ensure!(began.elapsed() < PATIENCE, "the cycles do not go on: {:?}", self.worst);
            // What is done lasts for long enough to count, or changes all the time.
            let is_new = Instant::now() >= until;
            if is_new {
                choice = random.next();
                until = Instant::now() + *random.one_of(&[PAUSE, LASTING, LASTING]);
            }
            for (name, deed) in kinds {
                adversary.does(*deed, choice, is_new).context(*name)?;
            }
            thread::sleep(PAUSE);
        }
        drop(adversary);
        let worst = *self.worst.lock().unwrap();
        self.lab.restore()?;
        self.nobody_is_harmed()?;
        ensure!(worst.wait <= LATE && worst.computed <= LATE, "a cycle was late: {worst:?}");
        ensure!(worst.resident_bytes <= MOST_BYTES, "it took {} bytes", worst.resident_bytes);
        let judged = self.lab.judges();
        self.nobody_is_harmed()?;
        judged.with_context(|| self.lab.enforcer.setup().said(&["status"]).unwrap_or_else(|error| error.to_string()))
    }

    /// Sees that all innocents live, and that by the audit nothing was done to anybody but the adversary.
    fn nobody_is_harmed(&mut self) -> Result<()> {
        for innocent in &self.lab.innocents {
            ensure!(is_alive(innocent.pid), "{innocent:?} was ended");
        }
        let path = self.lab.enforcer.setup().state_directory().join("audit.jsonl");
        let mut text = fs::read_to_string(path).unwrap_or_default();
        // The last line may be half written.
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        for line in text.get(self.audited..).unwrap_or_default().lines() {
            let done: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            if !matches!(done["result"].as_str(), Some("intended" | "done" | "unknown")) {
                continue;
            }
            ensure!(self.lab.innocents.iter().all(|innocent| done["pid"] != innocent.pid), "{line}");
            // What was forced on somebody may be taken again.
            let of_honest = done["gpu"].as_u64().is_some_and(|gpu| self.lab.holds(&done["eid"], gpu));
            ensure!(done["action"] != "detach" || !of_honest, "{line}");
        }
        self.audited = text.len();
        Ok(())
    }

    /// Sees that the daemon holds no more than it did, when nobody disturbs it.
    fn has_not_grown(&mut self) -> Result<()> {
        let now = Footprint::of(self.lab.enforcer.pid())?;
        let settled = *self.settled.get_or_insert(now);
        ensure!(
            now.anonymous_bytes <= settled.anonymous_bytes + GROWTH_BYTES
                && now.descriptors <= settled.descriptors + GROWTH_COUNT
                && now.threads <= settled.threads + GROWTH_COUNT,
            "it grew from {settled:?} to {now:?}"
        );
        Ok(())
    }
}

fn number(variable: &str, otherwise: u64) -> Result<u64> {
    var(variable).map_or(Ok(otherwise), |text| text.parse().with_context(|| variable.to_owned()))
}

#[test]
fn a_user_who_does_all_that_he_can_harms_nobody_else_and_stops_nothing() -> Result<()> {
    require_root();
    let (seconds, seed) = (number("GENV_CAMPAIGN_SECONDS", 60)?, number("GENV_CAMPAIGN_SEED", 1)?);
    let only = var("GENV_CAMPAIGN_ONLY").unwrap_or_default();
    let mut kinds = mischief::all();
    kinds.retain(|(name, _)| only.is_empty() || only.split(',').any(|word| word == *name));
    let mut random = Random(seed);
    let mut campaign = Campaign::start()?;
    let (mut deck, mut played) = (Vec::new(), 0);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds) || played < kinds.len() {
        // Each kind once, until all were there, up to three together.
        if deck.is_empty() {
            deck.clone_from(&kinds);
            deck.sort_by_cached_key(|_| random.next());
        }
        let now = deck.split_off(deck.len().saturating_sub(1 + random.below(3)));
        played += now.len();
        let names: Vec<&str> = now.iter().map(|(name, _)| *name).collect();
        let what = format!("seed {seed}, {}", names.join(" and "));
        campaign.round(&now, &mut random).with_context(|| what.clone())?;
        if played > kinds.len() {
            campaign.has_not_grown().context(what)?;
        }
    }
    Ok(())
}
