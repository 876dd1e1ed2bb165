//! The shipped compose files, and the commands of pages about Docker, on a real Docker engine. Prometheus and Alertmanager
//! are Debian's; in Grafana's place a stub answers.

mod demo;
mod documented;
mod files;
mod gpu;
mod lifecycle;
mod security;

use std::sync::OnceLock;

use anyhow::{Result, anyhow};
use genv_tests::docker::Stack;

/// The stack as shipped, with no variable set, up and healthy: for tests that change nothing in it. It ends with
/// the engine.
fn shipped() -> Result<&'static Stack> {
    static SHIPPED: OnceLock<Result<Stack, String>> = OnceLock::new();
    let start = || {
        let stack = Stack::shipped().map_err(|error| error.to_string())?;
        stack.up(&[]).map_err(|error| error.to_string())?;
        Ok(stack)
    };
    SHIPPED.get_or_init(start).as_ref().map_err(|error| anyhow!("{error}"))
}
