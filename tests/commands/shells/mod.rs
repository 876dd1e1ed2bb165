//! genv in real shells: what is set up, what a command changes, and that nothing of it stays.

mod announced;
mod completion;
mod direnv;
mod inherited;
mod init;
mod prompt;
mod quoting;
mod scenario;
mod scenarios;
mod terminal;
mod watched;
