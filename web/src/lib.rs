//! Shared parts of genv's daemons: the HTTP server, metric families, flags and the log.
//!
//! A daemon opens its [`WebConfig`] (if it has one), binds a [`Server`] to its [`ListenAddress`]es and
//! serves a [`Handler`]: a quick, synchronous function from [`Request`] to [`Response`]. The server handles everything
//! that may be slow or hostile (TLS, sign-in, slow and too many clients), so that a handler only picks prepared bytes.
//!
//! Flags and configuration file are those of Prometheus'
//! [exporter-toolkit](https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md), which users
//! know from other exporters.

pub mod allocator;
mod basic_auth;
pub mod build;
mod config;
mod connection;
mod connections;
pub mod flags;
mod health_log;
pub mod instruments;
mod listen;
pub mod log;
pub mod man;
pub mod metrics;
mod notify;
mod page;
mod rate_limit;
pub mod reader_restarts;
mod request;
mod response;
mod server;
mod withheld_log;

pub use config::{WebConfig, WebConfigError};
pub use health_log::{HealthLog, SSH};
pub use hyper::header;
pub use hyper::{Method, StatusCode};
pub use listen::{InheritedSocketError, ListenAddress, ListenAddressError, ListenError};
pub use notify::{NotifyState, notify, watchdog};
pub use page::{Foot, Live, Page, asset};
pub use request::{Encoding, Request};
pub use response::Response;
pub use server::{Handler, Limits, Server};
