//! Every command line of README.md, CONTRIBUTING.md and docs/ is run, each in its place. Here are the places that need
//! nothing but Debian's archive; hosts, docker and machine are in the suites peer, docker and packages.

mod lab;
mod places;
mod run;
mod source;
mod spans;
mod synopsis;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// For as long as something may serve on the ports that pages name.
fn alone() -> MutexGuard<'static, ()> {
    static PORTS: Mutex<()> = Mutex::new(());
    PORTS.lock().unwrap_or_else(PoisonError::into_inner)
}
