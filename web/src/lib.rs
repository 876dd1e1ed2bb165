//! The HTTP side that genv's daemons share: server, exporter-toolkit web configuration, health.
