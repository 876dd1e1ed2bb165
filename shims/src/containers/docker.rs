//! The flags of docker.

use super::client::ContainerProgram;
use super::flags::{Flags, SHARED_SWITCHES, SHARED_VALUES};
use super::gpus;

/// Flags with a value of `docker run` that podman has not.
const DOCKER_VALUES: &str = "\
    cpu-count cpu-percent domainname health-start-interval io-maxbandwidth io-maxiops isolation link link-local-ip \
    net-alias runtime storage-opt volume-driver";

pub(crate) const DOCKER: ContainerProgram = ContainerProgram {
    name: "docker",
    global: Flags {
        switches: &["debug tls tlsverify version help"],
        switch_letters: "Dv",
        values: &["config context host log-level tlscacert tlscert tlskey"],
        value_letters: "cHl",
    },
    container: Flags {
        switches: &[SHARED_SWITCHES, "use-api-socket"],
        switch_letters: "diPqt",
        values: &[SHARED_VALUES, DOCKER_VALUES],
        value_letters: "acehlmpuvw",
    },
    restrict_gpus: gpus::restrict,
};
