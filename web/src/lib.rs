//! What genv's daemons share: the HTTP side, metric families, flags and the log.
//!
//! A daemon opens its [`WebConfig`] (if it has one), binds a [`Server`] to its [`ListenAddress`]es and
//! serves a [`Handler`]: a quick, synchronous function from [`Request`] to [`Response`]. Everything that
//! may be slow or hostile, TLS, sign-in, clients that dawdle or flood, is dealt with here, so that a
//! handler only picks bytes that are ready.
//!
//! What users meet is what Prometheus' exporters have taught them: the flags and the configuration file of
//! its [exporter-toolkit](https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md).

pub mod allocator;
mod basic_auth;
pub mod build;
mod config;
mod connection;
mod connections;
pub mod flags;
mod health_log;
pub mod instruments;
mod landing_page;
mod listen;
pub mod log;
pub mod man;
pub mod metrics;
mod notify;
mod page;
mod rate_limit;
mod request;
mod response;
mod server;

pub use config::{WebConfig, WebConfigError};
pub use health_log::{HealthLog, SSH};
pub use hyper::header;
pub use hyper::{Method, StatusCode};
pub use landing_page::{LandingPage, Link};
pub use listen::{InheritedSocketError, ListenAddress, ListenAddressError, ListenError};
pub use notify::{NotifyState, notify, watchdog};
pub use page::Page;
pub use request::{Encoding, Request};
pub use response::Response;
pub use server::{Handler, Limits, Server};
