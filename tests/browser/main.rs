//! The pages of exporter and enforcer as a browser shows them.

use anyhow::{Context as _, Result, ensure};
use genv_tests::browser::{Browser, ENTER, TAB};
use genv_tests::enforcer;
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
    let rules = "- {kind: non-env-processes, action: terminate, for: 1h, warn: []}\n";
    let enforcer = enforcer::Setup::new(&hostile_lab(), &enforcer::enforcing(rules))?.start()?;
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
