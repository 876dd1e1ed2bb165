//! The flags of podman, and its values of `--gpus`.

use super::client::{ContainerProgram, RestrictedValue};
use super::flags::{Flags, SHARED_SWITCHES, SHARED_VALUES};
use super::gpus::{quoted, split};
use super::names::{AttachedDevices, restricted_list};
use crate::outcome::{Refusal, USAGE};

/// Flags of podman itself with a value.
const GLOBAL_VALUES: &str = "\
    cgroup-manager config conmon connection events-backend hooks-dir host identity imagestore log-level module \
    namespace network-cmd-path network-config-dir out root runroot runtime runtime-flag ssh storage-driver \
    storage-opt tls-ca tls-cert tls-key tmpdir url volumepath";

/// Switches of `podman run` that docker has not.
const PODMAN_SWITCHES: &str =
    "env-host http-proxy no-hostname no-hosts passwd read-only-tmpfs replace rmi rootfs tls-verify unsetenv-all";

/// Flags with a value of `podman run` that docker has not.
const PODMAN_VALUES: &str = "\
    arch authfile cert-dir cgroup-conf cgroups chrootdirs conmon-pidfile creds decryption-key env-merge gidmap \
    group-entry health-log-destination health-max-log-count health-max-log-size health-on-failure health-startup-cmd \
    health-startup-interval health-startup-retries health-startup-success health-startup-timeout healthcheck-command \
    healthcheck-interval healthcheck-retries healthcheck-start-period healthcheck-timeout hosts-file hostuser \
    image-volume init-ctr init-path os override-arch override-os override-variant passwd-entry personality pidfile \
    pod pod-id-file preserve-fd preserve-fds rdt-class requires retry retry-delay sdnotify seccomp-policy secret \
    shm-size-systemd signature-policy subgidname subuidname systemd timeout tz uidmap umask unsetenv variant";

/// `podman`, with the flags in the help of 4.3 and 5.4 and its undocumented ones.
pub(crate) const PODMAN: ContainerProgram = ContainerProgram {
    name: "podman",
    global: Flags {
        switches: &["help noout remote syslog trace transient-store version"],
        switch_letters: "rv",
        values: &[GLOBAL_VALUES],
        value_letters: "cH",
    },
    container: Flags {
        switches: &[SHARED_SWITCHES, PODMAN_SWITCHES],
        switch_letters: "diPqt",
        values: &[SHARED_VALUES, PODMAN_VALUES],
        value_letters: "acehlmpuvw",
    },
    restrict_gpus: restrict_list,
};

/// Restricts podman's `--gpus`, a list of CDI names without their prefix.
fn restrict_list(request: &str, attached: &AttachedDevices<'_>) -> Result<Option<RestrictedValue>, Refusal> {
    let ids = split(request).filter(|ids| ids.iter().all(|id| !id.contains('=')));
    let ids = ids.ok_or_else(|| {
        let message =
            format!("cannot read --gpus {request:?}: it is not what podman takes: write all, or indices such as 0,1");
        Refusal::new(USAGE, message)
    })?;
    let ids = ids.iter().map(String::as_str);
    let (devices, dropped) = attached.named(ids, || attached.cdi_names());
    let devices = devices.iter().map(|id| quoted(id)).collect();
    restricted_list("--gpus", request, devices, dropped, attached)
}

#[cfg(test)]
mod tests {
    use super::super::names::tests::ATTACHED;
    use super::*;
    use crate::outcome::NOT_ENOUGH_DEVICES;

    #[test]
    fn podmans_gpus_are_names_of_devices() {
        for (typed, value, dropped) in [("all", "1,3:0,3:1,4", &[][..]), ("1", "1", &[]), ("0,4", "4", &["0"])] {
            let found = restrict_list(typed, &ATTACHED).unwrap().unwrap();
            assert_eq!(found.value, value, "{typed}");
            assert_eq!(found.dropped, dropped, "{typed}");
        }
        for (typed, code) in [("2", NOT_ENOUGH_DEVICES), ("", NOT_ENOUGH_DEVICES), ("device=1", USAGE), ("\"1", USAGE)]
        {
            let refusal = restrict_list(typed, &ATTACHED).unwrap_err();
            assert_eq!(refusal.code, code, "{typed}");
        }
    }
}
