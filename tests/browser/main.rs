//! The pages of exporter and enforcer as a browser shows them.

use anyhow::{Context as _, Result, ensure};
use genv_tests::browser::{Browser, ENTER, SPACE, TAB, lab_of};
use genv_tests::enforcer::{self, Enforcer};
use genv_tests::exporter::{Exporter, Setup};
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience::until;
use serde_json::json;

/// A text that runs a script if a page takes it for HTML.
const HOSTILE: &str = "<img src=x onerror=window.hurt=1>'\\\"&";

fn lab(scenario: &str) -> Result<(Simulation, Exporter)> {
    let simulation = Simulation::new(scenario);
    let exporter = Setup::with_scenario(&simulation)?.start()?;
    Ok((simulation, exporter))
}

/// Two hosts, whose names of users, environments and commands are hostile.
fn hostile_lab() -> String {
    let name = json!(HOSTILE);
    let host = |hostname: &str| {
        json!({
            "name": hostname,
            "devices": [{"count": 4, "name": "NVIDIA A100-SXM4-80GB", "memory": "80gi", "utilization": 0.5}],
            "environments": [{"eid": "11", "user": name, "name": name, "devices": [0]}],
            "processes": [{"pid": 4711, "user": name, "comm": name, "claim": "none", "parent": 1,
                "devices": [{"index": 1, "memory": "1gi"}]}],
        })
    };
    // JSON is YAML.
    json!({"version": 1, "users": {HOSTILE: 2001}, "hosts": [host("gpu01"), host("gpu02")]}).to_string()
}

/// An enforcer that has found a violation on each of these hosts, and acts in an hour.
fn hostile_enforcer() -> Result<Enforcer> {
    let rules = "- {kind: non-env-processes, action: terminate, for: 1h, warn: []}\n";
    enforcer::Setup::new(&hostile_lab(), &enforcer::enforcing(rules))?.start()
}

#[test]
fn the_page_follows_the_publications_and_says_when_none_come() -> Result<()> {
    let mut exporter = Setup::new()?.flag("--gpu.source=simulated").start()?;
    let browser = Browser::open(1366, 768)?;
    browser.go(exporter.port(), "/")?;
    browser.run("window.first = document.querySelector('main').innerText")?;
    until("the page changes without a load", || {
        let changed = "return window.first !== undefined && document.querySelector('main').innerText !== window.first";
        Ok(browser.run(changed)? == true)
    })?;
    browser.ensure_no_errors()?;
    exporter.terminate()?;
    until("the page says that nothing comes", || {
        Ok(browser.run("return document.body.innerText.includes('no answer')")? == true)
    })
}

#[test]
fn names_of_users_are_shown_and_do_nothing_and_every_page_can_be_used_by_everybody() -> Result<()> {
    let (_simulation, exporter) = lab(&hostile_lab())?;
    let enforcer = hostile_enforcer()?;
    let user = "/?user=%3Cimg%20src%3Dx%20onerror%3Dwindow.hurt%3D1%3E%27%5C%22%26";
    let browser = Browser::open(360, 740)?;
    for (port, path) in [
        (exporter.port(), "/"),
        (exporter.port(), "/?host=gpu01"),
        (exporter.port(), user),
        (exporter.port(), "/runbooks"),
        (enforcer.port(), "/"),
    ] {
        for scheme in ["light", "dark"] {
            browser.prefer(scheme)?;
            browser.go(port, path)?;
            browser.ensure_accessible().with_context(|| format!("{path} in {scheme} colours"))?;
        }
        if path != "/runbooks" {
            // On a busy machine a publication may lack the processes.
            let shown = "return document.body.innerText.includes('onerror=')";
            until("the page shows the name", || Ok(browser.run(shown)? == true)).with_context(|| path.to_owned())?;
        }
        ensure!(browser.run("return window.hurt === undefined")? == true, "{path} runs a name");
        let fits = "return document.scrollingElement.scrollWidth <= innerWidth";
        ensure!(browser.run(fits)? == true, "{path} is wider than a telephone");
        browser.ensure_no_errors()?;
    }
    Ok(())
}

#[test]
fn the_keyboard_alone_leads_to_a_host_and_back() -> Result<()> {
    let (_simulation, exporter) = lab(&hostile_lab())?;
    let browser = Browser::open(1366, 768)?;
    browser.go(exporter.port(), "/")?;
    for (link, path) in [("./?host=gpu02", "/?host=gpu02"), ("./", "/")] {
        until("the key Tab comes to the link", || {
            browser.press(TAB)?;
            let active = browser.run("return document.activeElement.getAttribute('href')")?;
            Ok(active.as_str() == Some(link))
        })?;
        browser.press(ENTER)?;
        until("the key Enter opens the link", || Ok(browser.path()? == path))?;
    }
    browser.ensure_no_errors()
}

#[test]
fn the_keyboard_alone_opens_the_reasons_of_a_violation_and_they_stay_open() -> Result<()> {
    let enforcer = hostile_enforcer()?;
    let browser = Browser::open(1366, 768)?;
    until("the page shows the violations", || {
        browser.go(enforcer.port(), "/")?;
        Ok(browser.count("tbody summary")? == 2)
    })?;
    until("the key Tab has come to each link and each violation", || {
        browser.press(TAB)?;
        let reached = "(window.reached ??= new Set()).add(document.activeElement); \
             return [...document.querySelectorAll('a, summary')].every(it => reached.has(it))";
        Ok(browser.run(reached)? == true)
    })?;
    until("the key Tab comes to a violation", || {
        browser.press(TAB)?;
        Ok(browser.run("return document.activeElement.matches('tbody summary')")? == true)
    })?;
    for (key, open) in [(ENTER, 1), (SPACE, 0), (SPACE, 1)] {
        browser.press(key)?;
        until("the key opens or closes the reasons", || Ok(browser.count("tbody details[open]")? == open))?;
    }
    let sequence = "return document.body.dataset.sequence";
    let stays = "return document.activeElement.matches('tbody details[open] > summary')";
    // What stands before the table comes and goes.
    for earlier in ["", "table.before(document.createElement('p'))", "table.previousSibling.remove()"] {
        let before = browser.run(&format!("const table = document.querySelector('.wide'); {earlier}; {sequence}"))?;
        until("the page shows a later cycle", || Ok(browser.run(sequence)? != before))?;
        ensure!(browser.run(stays)? == true, "a new cycle closes the reasons, or takes the focus away: {earlier}");
    }
    browser.ensure_no_errors()
}

#[test]
fn without_scripts_the_pages_have_all_gpus_users_and_violations() -> Result<()> {
    let (_simulation, exporter) = lab(&hostile_lab())?;
    let enforcer = hostile_enforcer()?;
    let browser = Browser::without_scripts()?;
    for (port, selector, expected) in [
        (exporter.port(), "ul.gpus > li", 8),
        (exporter.port(), "section.people tbody tr", 1),
        (enforcer.port(), "tbody details", 2),
    ] {
        until("the page has all of them", || {
            browser.go(port, "/")?;
            Ok(browser.count(selector)? == expected)
        })
        .with_context(|| selector)?;
        // A browser with scripts takes it for text.
        ensure!(browser.count("noscript meta")? == 1, "the browser runs scripts");
    }
    browser.ensure_no_errors()
}

#[test]
fn a_lab_of_a_thousand_hosts_has_a_page_that_follows_and_is_accessible() -> Result<()> {
    let simulation = Simulation::new(&lab_of(1000));
    let exporter = Setup::with_scenario(&simulation)?.flag("--interval=1s").start()?;
    let size = exporter.get("/")?.body.len();
    ensure!(size <= 5_000_000, "the page has {size} bytes");
    let browser = Browser::open(1366, 768)?;
    browser.go(exporter.port(), "/")?;
    browser.run("window.sequence = document.body.dataset.sequence")?;
    until("the page changes without a load", || {
        let changed = "return window.sequence !== undefined && window.sequence !== document.body.dataset.sequence";
        Ok(browser.run(changed)? == true)
    })?;
    ensure!(browser.count("ul.hosts > li")? == 1000);
    browser.ensure_no_errors()?;
    // All lines are alike, and axe-core takes many seconds for a thousand. Without an exporter they do not come back.
    drop(exporter);
    browser.run("document.querySelectorAll('ul.hosts > li:nth-child(n + 50)').forEach(it => it.remove())")?;
    browser.ensure_accessible()
}
