//! Every block of commands of README.md, CONTRIBUTING.md and docs/ is run, each in its place, but those of the place
//! hardware. Here are the places that need nothing but Debian's archive; hosts, docker and machine are in the suites peer,
//! docker and packages. Of the commands within sentences, those of our own programs must be known to them, with their
//! flags, and are run where no word stands for another; those of other programs are run, or have a reason not to be; so
//! have those of the examples in help texts. `docker compose` must know its commands and flags; scripts, units for
//! `systemctl`, packages and tests for `cargo` are looked for by their names.

mod examples;
mod lab;
mod places;
mod run;
mod sentences;
mod source;
mod spans;

use anyhow::Result;
use genv_tests::reserved::Reserved;

/// For as long as something may serve on the ports that pages name.
fn alone() -> Result<Reserved> {
    Reserved::wait("ports-of-pages")
}
