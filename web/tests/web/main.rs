//! The server, through real sockets.

#![allow(clippy::unwrap_used, reason = "what a test needs and does not get fails the test")]

mod certificates;
mod config_file;
mod configuring;
mod limits;
mod requests;
mod sign_in;
mod stopping;
mod test_server;
mod tls;
