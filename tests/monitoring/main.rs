//! genv-exporter, the real Prometheus, the shipped rules and dashboards, and the pages of the documentation.

mod bad_input;
mod dashboards;
mod documented;
mod documents;
mod files;
mod grafana;
mod open_files;
mod prometheus;
mod publish;
mod questions;
mod web;
