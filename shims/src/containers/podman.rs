//! The flags of podman, and its values of `--gpus`.

use super::client::{ContainerProgram, RestrictedValue};
use super::flags::Flags;
use super::gpus::{quoted, split};
use super::names::{AttachedDevices, restricted_list};
use crate::outcome::{Refusal, USAGE};

/// `podman`, with the flags in the help of 4.3 and 5.4 and its undocumented ones.
pub(crate) const PODMAN: ContainerProgram = ContainerProgram {
    name: "podman",
    global: Flags {
        switches: &["help", "noout", "remote", "syslog", "trace", "transient-store", "version"],
        switch_letters: "rv",
        values: &[
            "cgroup-manager",
            "config",
            "conmon",
            "connection",
            "events-backend",
            "hooks-dir",
            "host",
            "identity",
            "imagestore",
            "log-level",
            "module",
            "namespace",
            "network-cmd-path",
            "network-config-dir",
            "out",
            "root",
            "runroot",
            "runtime",
            "runtime-flag",
            "ssh",
            "storage-driver",
            "storage-opt",
            "tls-ca",
            "tls-cert",
            "tls-key",
            "tmpdir",
            "url",
            "volumepath",
        ],
        value_letters: "cH",
    },
    container: Flags {
        switches: &[
            "detach",
            "disable-content-trust",
            "env-host",
            "help",
            "http-proxy",
            "init",
            "interactive",
            "no-healthcheck",
            "no-hostname",
            "no-hosts",
            "oom-kill-disable",
            "passwd",
            "privileged",
            "publish-all",
            "quiet",
            "read-only",
            "read-only-tmpfs",
            "replace",
            "rm",
            "rmi",
            "rootfs",
            "sig-proxy",
            "tls-verify",
            "tty",
            "unsetenv-all",
        ],
        switch_letters: "diPqt",
        values: &[
            "add-host",
            "annotation",
            "arch",
            "attach",
            "authfile",
            "blkio-weight",
            "blkio-weight-device",
            "cap-add",
            "cap-drop",
            "cert-dir",
            "cgroup-conf",
            "cgroup-parent",
            "cgroupns",
            "cgroups",
            "chrootdirs",
            "cidfile",
            "conmon-pidfile",
            "cpu-period",
            "cpu-quota",
            "cpu-rt-period",
            "cpu-rt-runtime",
            "cpu-shares",
            "cpus",
            "cpuset-cpus",
            "cpuset-mems",
            "creds",
            "decryption-key",
            "detach-keys",
            "device",
            "device-cgroup-rule",
            "device-read-bps",
            "device-read-iops",
            "device-write-bps",
            "device-write-iops",
            "dns",
            "dns-opt",
            "dns-option",
            "dns-search",
            "entrypoint",
            "env",
            "env-file",
            "env-merge",
            "expose",
            "gidmap",
            "gpus",
            "group-add",
            "group-entry",
            "health-cmd",
            "health-interval",
            "health-log-destination",
            "health-max-log-count",
            "health-max-log-size",
            "health-on-failure",
            "health-retries",
            "health-start-period",
            "health-startup-cmd",
            "health-startup-interval",
            "health-startup-retries",
            "health-startup-success",
            "health-startup-timeout",
            "health-timeout",
            "healthcheck-command",
            "healthcheck-interval",
            "healthcheck-retries",
            "healthcheck-start-period",
            "healthcheck-timeout",
            "hostname",
            "hosts-file",
            "hostuser",
            "image-volume",
            "init-ctr",
            "init-path",
            "ip",
            "ip6",
            "ipc",
            "kernel-memory",
            "label",
            "label-file",
            "log-driver",
            "log-opt",
            "mac-address",
            "memory",
            "memory-reservation",
            "memory-swap",
            "memory-swappiness",
            "mount",
            "name",
            "net",
            "network",
            "network-alias",
            "oom-score-adj",
            "os",
            "override-arch",
            "override-os",
            "override-variant",
            "passwd-entry",
            "personality",
            "pid",
            "pidfile",
            "pids-limit",
            "platform",
            "pod",
            "pod-id-file",
            "preserve-fd",
            "preserve-fds",
            "publish",
            "pull",
            "rdt-class",
            "requires",
            "restart",
            "retry",
            "retry-delay",
            "sdnotify",
            "seccomp-policy",
            "secret",
            "security-opt",
            "shm-size",
            "shm-size-systemd",
            "signature-policy",
            "stop-signal",
            "stop-timeout",
            "subgidname",
            "subuidname",
            "sysctl",
            "systemd",
            "timeout",
            "tmpfs",
            "tz",
            "uidmap",
            "ulimit",
            "umask",
            "unsetenv",
            "user",
            "userns",
            "uts",
            "variant",
            "volume",
            "volumes-from",
            "workdir",
        ],
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
