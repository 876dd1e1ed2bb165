//! Prometheus exporter of GPU devices, genv environments, users and processes.
