//! The server, through real sockets.

#![allow(
    clippy::unwrap_used,
    reason = "what a test needs and does not get fails the test"
)]

mod limits;
mod requests;
mod site;
mod stopping;
