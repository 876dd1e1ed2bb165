//! Every block of commands of README.md, CONTRIBUTING.md and docs/ is run, each in its place, but those of the place
//! hardware. Here are the places that need nothing but Debian's archive; hosts, docker and machine are in the suites peer,
//! docker and packages.

mod lab;
mod places;
mod run;
