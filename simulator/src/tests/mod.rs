//! What scenarios mean, and how damaged ones are refused.

mod behaviour;
mod properties;
mod refusals;

use std::time::{Duration, SystemTime};

use super::*;

/// The example of docs/scenario.md.
fn documented_example() -> &'static str {
    let (_, rest) = include_str!("../../../docs/scenario.md").split_once("```yaml\n").unwrap();
    rest.split_once("```").unwrap().0
}

fn engine(text: &str) -> Engine {
    Engine::from_text("lab.yaml", text).unwrap_or_else(|error| panic!("{error}"))
}

/// A moment of scenario time.
fn at(seconds: f64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600) + Duration::from_secs_f64(seconds)
}

fn refused(hosts: &str) -> String {
    let text = format!("version: 1\nusers: {{alice: 2001}}\nhosts:\n{hosts}\n");
    Engine::from_text("lab.yaml", &text).unwrap_err().to_string()
}
