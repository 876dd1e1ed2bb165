//! Debian's Chromium without a window, driven by chromedriver (<https://www.w3.org/TR/webdriver2/>), and axe-core, which
//! looks for what keeps people from using a page.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::http::{self, free_port};
use crate::patience::{PATIENCE, until};
use crate::process::Running;
use crate::tools;

/// The scenario of a lab of so many hosts of 8 GPUs.
pub fn lab_of(hosts: usize) -> String {
    let host = |number: usize| {
        json!({
            "name": format!("gpu{number:04}"),
            "devices": [{"count": 8, "name": "NVIDIA A100-SXM4-80GB", "memory": "80gi"}],
            "environments": [{"eid": "1", "user": format!("user{}", number % USERS), "name": "train", "devices": [0, 1]}],
        })
    };
    let users: BTreeMap<String, usize> = (0..USERS).map(|number| (format!("user{number}"), 2000 + number)).collect();
    // JSON is YAML.
    json!({"version": 1, "users": users, "hosts": (0..hosts).map(host).collect::<Vec<_>>()}).to_string()
}

/// The users of such a lab.
const USERS: usize = 200;

/// The key codes of WebDriver.
pub const TAB: &str = "\u{e004}";
pub const ENTER: &str = "\u{e007}";
pub const SPACE: &str = " ";

/// A browser with one page. Each is new: it has no history and no cache.
#[derive(Debug)]
pub struct Browser {
    port: u16,
    session: String,
    _driver: Running,
}

impl Browser {
    /// A browser whose page has this size in CSS pixels.
    pub fn open(width: u32, height: u32) -> Result<Self> {
        Self::start(width, height, &json!({}))
    }

    /// A browser that runs no scripts of pages.
    pub fn without_scripts() -> Result<Self> {
        const BLOCKED: u32 = 2;
        Self::start(1366, 768, &json!({"profile.managed_default_content_settings.javascript": BLOCKED}))
    }

    fn start(width: u32, height: u32, preferences: &Value) -> Result<Self> {
        let port = free_port()?;
        let mut driver = Command::new("chromedriver");
        driver.arg(format!("--port={port}")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let driver = Running::spawn(&mut driver).context("chromedriver is of Debian's package chromium-driver")?;
        until("chromedriver listens", || Ok(http::connect(port).is_ok()))?;
        // As root, Chromium has no sandbox. In a container, /dev/shm may be too small.
        let arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments, "prefs": preferences},
            "goog:loggingPrefs": {"browser": "ALL"},
            "timeouts": {"script": PATIENCE.as_millis(), "pageLoad": PATIENCE.as_millis()},
        }}});
        let created = command(port, "POST", "/session", &capabilities)?;
        let session = created["sessionId"].as_str().context("a session without an id")?.to_owned();
        let browser = Self { port, session, _driver: driver };
        browser.devtools(
            "Emulation.setDeviceMetricsOverride",
            &json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}),
        )?;
        Ok(browser)
    }

    /// Opens a page, and waits for its load.
    pub fn go(&self, port: u16, path: &str) -> Result<()> {
        self.post("/url", &json!({"url": format!("http://127.0.0.1:{port}{path}")}))?;
        Ok(())
    }

    /// The page's path and query.
    pub fn path(&self) -> Result<String> {
        let path = self.run("return location.pathname + location.search")?;
        Ok(path.as_str().context("a page without a path")?.to_owned())
    }

    /// The number of elements that a CSS selector matches.
    pub fn count(&self, selector: &str) -> Result<usize> {
        let found = self.post("/elements", &json!({"using": "css selector", "value": selector}))?;
        Ok(found.as_array().context("elements that are no list")?.len())
    }

    /// What a script returns, which runs as the body of a function.
    pub fn run(&self, script: &str) -> Result<Value> {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Presses and releases a key.
    pub fn press(&self, key: &str) -> Result<()> {
        let actions = json!([{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]);
        self.post("/actions", &json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}))?;
        Ok(())
    }

    /// Shows the page as for a reader who prefers dark or light colours.
    pub fn prefer(&self, scheme: &str) -> Result<()> {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.devtools("Emulation.setEmulatedMedia", &json!({"features": features}))?;
        Ok(())
    }

    /// Fails if the page has reported an error since the last call: of its scripts, of a file that is missing or of what its
    /// policy forbids.
    pub fn ensure_no_errors(&self) -> Result<()> {
        let log = self.post("/se/log", &json!({"type": "browser"}))?;
        let lines = log.as_array().into_iter().flatten();
        let errors: Vec<&Value> = lines.filter(|line| line["level"] == "SEVERE").collect();
        ensure!(errors.is_empty(), "the page reports {errors:?}");
        Ok(())
    }

    /// Fails if axe-core finds anything on the page.
    pub fn ensure_accessible(&self) -> Result<()> {
        let axe = tools::folder("axe").join("axe_playwright_python/axe.min.js");
        let axe = fs::read_to_string(&axe).with_context(|| axe.display().to_string())?;
        let found = self.run(&format!("{axe}; return axe.run().then(it => it.violations)"))?;
        let violations = found.as_array().context("axe-core has no result")?.iter();
        let violations: Vec<String> = violations
            .map(|it| {
                let nodes = it["nodes"].as_array().into_iter().flatten();
                let nodes: Vec<&Value> = nodes.map(|node| &node["html"]).take(3).collect();
                format!("{}: {nodes:?}", it["help"])
            })
            .collect();
        ensure!(violations.is_empty(), "axe-core found on {}:\n{}", self.path()?, violations.join("\n"));
        Ok(())
    }

    fn devtools(&self, name: &str, parameters: &Value) -> Result<Value> {
        self.post("/goog/cdp/execute", &json!({"cmd": name, "params": parameters}))
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        command(self.port, "POST", &format!("/session/{}{path}", self.session), body)
    }
}

/// Chromium ends with its session.
impl Drop for Browser {
    fn drop(&mut self) {
        let _ = command(self.port, "DELETE", &format!("/session/{}", self.session), &Value::Null);
    }
}

fn command(port: u16, method: &str, path: &str, body: &Value) -> Result<Value> {
    let body = body.to_string();
    let answer = match method {
        "POST" => http::post(port, path, &[("Content-Type", "application/json")], body.as_bytes())?,
        _ => http::delete(port, path)?,
    };
    let mut value: Value = serde_json::from_slice(&answer.body).context("an answer of chromedriver")?;
    if answer.status != 200 {
        bail!("{path}: {}", value["value"]["message"]);
    }
    Ok(value["value"].take())
}
