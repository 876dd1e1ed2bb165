//! genv-exporter over 12 hosts, of which some are in trouble. Each has a real sshd of its own, but for two: at one's port
//! nobody listens, at the other's somebody who does not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use genv_tests::exporter::Exporter;
use genv_tests::metrics::Scrape;
use genv_tests::process::anonymous_bytes;

mod fleet;
mod growth;

use fleet::{CLOSES, CONNECT_TIMEOUT, DOWN, Fleet, GENV_1, HOSTS, NO_GENV, TALKS, replace};

/// Snapshots that each host that is well has to deliver meanwhile.
const SNAPSHOTS: usize = 10;

/// How long that may take, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(180);

/// Scrapes until something holds.
fn wait(exporter: &Exporter, what: &str, mut holds: impl FnMut(&Scrape) -> bool) -> Result<Scrape> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let scrape = exporter.scrape()?;
        if holds(&scrape) {
            return Ok(scrape);
        }
        ensure!(
            Instant::now() < deadline,
            "waited in vain for {what}: {:?}; log: {}",
            scrape.all("genv_host_up", &[]),
            exporter.log()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn is_up(scrape: &Scrape, host: &str) -> bool {
    scrape.value("genv_host_up", &[("hostname", host)]).ok() == Some(1.0)
}

fn ssh_works(scrape: &Scrape, host: &str) -> Option<f64> {
    let labels = [("hostname", host), ("collector", "ssh")];
    scrape.value("genv_collector_success", &labels).ok()
}

/// Checks that each of these hosts is up, and that its latest snapshot came a shorter time ago than connecting to another,
/// which hangs, may take: whose data wait for that host are late by all of it.
fn are_on_time(hosts: &[String], scrape: &Scrape) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    for host in hosts {
        ensure!(is_up(scrape, host), "{host} is down");
        let came = scrape.value("genv_snapshot_timestamp_seconds", &[("hostname", host)])?;
        let age = now - came;
        ensure!(age < CONNECT_TIMEOUT.as_secs_f64(), "{host}'s snapshot came {age} s ago");
    }
    Ok(())
}

/// Lines of the log about a host that say this.
fn lines(log: &str, host: &str, said: &str) -> usize {
    let hostname = format!("hostname={host}");
    let is_of =
        |line: &&str| line.split_whitespace().any(|word| word.replace('"', "") == hostname) && line.contains(said);
    log.lines().filter(is_of).count()
}

#[test]
fn hosts_in_trouble_are_named_and_disturb_nobody_until_they_are_well_again() -> Result<()> {
    let fleet = Fleet::start()?;
    let exporter = fleet.exporter(Duration::from_secs(1))?;
    let names = fleet.names();
    ensure!(names.len() == HOSTS);
    let well = fleet.well();
    wait(&exporter, "the hosts that are well", |scrape| well.iter().all(|host| is_up(scrape, host)))?;

    // When each host took its snapshots, by its own clock.
    let mut taken = BTreeMap::<String, BTreeSet<u64>>::new();
    let mut closed = false;
    let scrape = wait(&exporter, "each trouble to be known, and snapshots of each that is well", |scrape| {
        let on_time = are_on_time(&well, scrape);
        assert!(on_time.is_ok(), "{on_time:?}: {}", exporter.log());
        closed |= !is_up(scrape, CLOSES);
        for (labels, at) in scrape.all("genv_collector_timestamp_seconds", &[("collector", "gpu")]) {
            let of_host = taken.entry(labels["hostname"].clone()).or_default();
            of_host.insert((at * 1000.0) as u64);
        }
        let delivered = well.iter().all(|host| taken.get(host).is_some_and(|taken| taken.len() > SNAPSHOTS));
        let log = exporter.log();
        // Until the first connection was given up, a host is down without a line.
        let is_known = |host, said| ssh_works(scrape, host) == Some(0.0) && lines(&log, host, said) > 0;
        let are_up = [GENV_1, NO_GENV, TALKS].iter().all(|host| is_up(scrape, host));
        let is_skewed = lines(&log, TALKS, "clock differs") > 0;
        closed
            && delivered
            && are_up
            && is_skewed
            && DOWN.iter().all(|(host, said)| !is_up(scrape, host) && is_known(host, said))
    })?;
    let log = exporter.log();
    for (host, said) in DOWN {
        let times = lines(&log, host, said);
        ensure!(times == 1, "{host}: '{said}' {times} times in {log}");
    }
    ensure!(lines(&log, CLOSES, "a collector fails") >= 1, "{log}");
    let installed = |host| scrape.value("genv_host_installed", &[("hostname", host)]);
    ensure!(installed(NO_GENV)? == 0.0);
    ensure!(installed(GENV_1)? == 1.0 && installed(TALKS)? == 1.0);
    let skewed = lines(&log, TALKS, "clock differs");
    ensure!(skewed == 1, "the skew is said {skewed} times: {log}");

    // 100 MB without a line's end were not kept.
    let bytes = anonymous_bytes(exporter.pid())?;
    ensure!(bytes < 100 << 20, "{bytes} bytes");

    fleet.heal()?;
    wait(&exporter, "all hosts to be well again", |scrape| names.iter().all(|host| is_up(scrape, host)))?;
    let log = exporter.log();
    for (host, _) in DOWN {
        let said = lines(&log, host, "works again");
        ensure!(said == 1, "{host} is well again {said} times: {log}");
    }

    let refused = || exporter.log().matches("hosts_refused").count();
    ensure!(refused() == 0);
    replace(&fleet.host_file(), "gpu[01-\n\u{1b}[31m ---\n")?;
    wait(&exporter, "the nonsense to be refused", |_| refused() > 0)?;
    wait(&exporter, "the hosts of before", |scrape| names.iter().all(|host| is_up(scrape, host)))?;
    let log = exporter.log();
    let line = log.lines().find(|line| line.contains("hosts_refused")).unwrap_or_default();
    ensure!(refused() == 1 && line.contains("hosts:1") && !line.contains('\u{1b}'), "{log}");
    Ok(())
}
