//! Prints what an NVML library answers, one call a line of JSON: how the recordings in `tests/fixtures/nvml` were made.
//!
//! Usage: `nvml-answers [LIBRARY]`, by default the installed driver's.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use genv_tests::nvml_answers::ask_everything;

fn main() -> Result<()> {
    let library = std::env::args_os().nth(1);
    let library = library.map_or_else(|| PathBuf::from("libnvidia-ml.so.1"), PathBuf::from);
    let mut out = std::io::stdout().lock();
    for answer in ask_everything(&library)? {
        serde_json::to_writer(&mut out, &answer)?;
        writeln!(out)?;
    }
    Ok(())
}
