//! Passes the revision of the sources and the version of the compiler to the program.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=GENV_REVISION");
    // A package is built from an archive without git: GENV_REVISION has the revision.
    let revision = std::env::var("GENV_REVISION").ok().or_else(|| {
        // HEAD's log changes with every commit and checkout.
        if let Some(log) = output("git", &["rev-parse", "--git-path", "logs/HEAD"])
            && Path::new(&log).exists()
        {
            println!("cargo::rerun-if-changed={log}");
        }
        output("git", &["rev-parse", "--short=12", "HEAD"])
    });
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let rust_version =
        output(&rustc, &["--version"]).and_then(|line| line.split_whitespace().nth(1).map(str::to_owned));
    for (name, value) in [("GENV_REVISION", revision), ("GENV_RUST_VERSION", rust_version)] {
        println!("cargo::rustc-env={name}={}", value.as_deref().unwrap_or("unknown"));
    }
    println!("cargo::rerun-if-changed=build.rs");
}

/// The output of a program, if it succeeds and prints something.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
