//! The container of a process, by `/proc/PID/cgroup`.

/// A container, by the name that its engine gave its cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Container {
    /// 64 hexadecimal digits, or the name of a container of LXC or systemd-nspawn.
    pub(super) id: String,
    /// The user in whose part of systemd's tree (`user.slice/user-UID.slice` at the root) the cgroup is: this user may
    /// create cgroups there. A slice further below is no evidence: every user may give an own cgroup such a name.
    pub(super) owner: Option<u32>,
}

/// The innermost container that the file names (cgroups(7): lines `ID:CONTROLLERS:PATH`).
///
/// Engines name the last part of their cgroup after the container:
/// - the id alone: Docker, Kubernetes and containerd with the cgroupfs driver;
/// - `ENGINE-ID.scope`: Docker, cri-containerd, CRI-O, Podman and nerdctl with the systemd driver;
/// - `SLICE:ENGINE:ID`: containerd whose driver differs from Kubernetes';
/// - `lxc.payload.NAME`, `lxc.payload/NAME` or `lxc/NAME`: LXC and LXD;
/// - `machine-NAME.scope/payload` or `systemd-nspawn@NAME.service/payload`: systemd-nspawn.
///
/// Sessions and services of users have none of these forms.
pub(super) fn container(content: &[u8]) -> Option<Container> {
    String::from_utf8_lossy(content).lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        innermost(fields.nth(2)?)
    })
}

fn innermost(path: &str) -> Option<Container> {
    let mut found = None;
    let mut above = "";
    for part in path.split('/') {
        if let Some(id) = container_id(above, part) {
            found = Some(id);
        }
        above = part;
    }
    found.map(|id| Container { id: id.to_owned(), owner: user_of_path(path) })
}

/// The user of the part of systemd's tree with this path.
fn user_of_path(path: &str) -> Option<u32> {
    // A path outside of the reader's cgroup namespace begins with these.
    let outside = |part: &&str| part.is_empty() || *part == "..";
    let mut parts = path.split('/').skip_while(outside);
    let is_users = parts.next() == Some("user.slice");
    parts.next().filter(|_| is_users).and_then(user_of_slice)
}

fn container_id<'a>(above: &'a str, part: &'a str) -> Option<&'a str> {
    if let Some(name) = part.strip_prefix("lxc.payload.") {
        return Some(name);
    }
    // systemd-nspawn itself is not in the cgroup of its container.
    if part == "payload" {
        let service = above.strip_prefix("systemd-nspawn@");
        let service = service.and_then(|it| it.strip_suffix(".service"));
        let scope = || above.strip_prefix("machine-")?.strip_suffix(".scope");
        return service.or_else(scope);
    }
    if matches!(above, "lxc" | "lxc.payload") && !part.is_empty() {
        return Some(part);
    }
    let id = match part.strip_suffix(".scope") {
        Some(scope) => {
            let (engine, id) = scope.rsplit_once('-')?;
            // The monitor of a Podman or CRI-O container has a scope of its own, outside the container.
            if engine.ends_with("conmon") {
                return None;
            }
            id
        }
        None => part.rsplit_once(':').map_or(part, |(_, id)| id),
    };
    let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(id)
}

fn user_of_slice(part: &str) -> Option<u32> {
    let user = part.strip_prefix("user-")?.strip_suffix(".slice")?;
    user.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0";
    const OUTER: &str = "1111111111111111111111111111111111111111111111111111111111111111";

    fn of(path: &str) -> Option<(String, Option<u32>)> {
        let content = path.replace("ID", ID).replace("OUTER", OUTER);
        container(content.as_bytes()).map(|container| (container.id, container.owner))
    }

    #[test]
    fn every_engine_is_recognised() {
        for path in [
            "0::/system.slice/docker-ID.scope",
            "0::/system.slice/docker-ID.scope/init",
            "12:pids:/docker/ID\n11:cpuset:/docker/ID\n1:name=systemd:/docker/ID\n0::/system.slice/containerd.service",
            "0::/../docker-ID.scope",
            "0::/default/ID",
            "0::/system.slice/nerdctl-ID.scope",
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1f2e.slice/cri-containerd-ID.scope",
            "9:memory:/system.slice/containerd.service/kubepods-burstable-pod1f2e.slice:cri-containerd:ID",
            "4:cpu,cpuacct:/kubepods/burstable/pod8a3e5b1c-0000-4000-8000-000000000000/ID",
            "0::/kubepods.slice/kubepods-pod1f2e.slice/crio-ID.scope",
            "0::/machine.slice/libpod-ID.scope/container",
            "5:devices:/machine.slice/libpod-ID.scope",
            "0::/docker/OUTER/kubelet/kubepods/pod1/ID",
            "3:cpuset:/ecs/4d6b/ID",
        ] {
            assert_eq!(of(path), Some((ID.to_owned(), None)), "{path}");
        }
        for path in [
            "0::/lxc.payload.train",
            "0::/lxc.payload.train/user.slice/user-1000.slice/session-1.scope",
            "0::/lxc.payload/train",
            "8:blkio:/lxc/train/init.scope",
            "0::/machine.slice/machine-train.scope/payload/init.scope",
            "0::/machine.slice/systemd-nspawn@train.service/payload",
        ] {
            assert_eq!(of(path), Some(("train".to_owned(), None)), "{path}");
        }
    }

    #[test]
    fn a_rootless_container_has_its_owner() {
        assert_eq!(
            of("0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container"),
            Some((ID.to_owned(), Some(1000)))
        );
    }

    #[test]
    fn a_cgroup_with_the_name_of_another_users_slice_belongs_to_its_creator() {
        for path in [
            "0::/user.slice/user-1001.slice/user@1001.service/user-1000.slice/docker-ID.scope",
            "0::/user.slice/user-1001.slice/user@1001.service/user.slice/user-1000.slice/lxc/ID",
            "0::/../../user.slice/user-1001.slice/user@1001.service/user-1000.slice/ID",
            "0::/user.slice/user-1001.slice/docker-OUTER.scope/user.slice/user-1000.slice/ID",
        ] {
            assert_eq!(of(path), Some((ID.to_owned(), Some(1001))), "{path}");
        }
        // Users of a container are not those of the machine.
        let nested = "0::/lxc.payload.train/user.slice/user-1000.slice/user@1000.service/ID";
        assert_eq!(of(nested), Some((ID.to_owned(), None)));
    }

    #[test]
    fn sessions_services_and_monitors_are_no_containers() {
        for path in [
            "",
            "garbage",
            "0::/",
            "0::",
            "0::/init.scope",
            "0::/user.slice/user-1000.slice/session-3.scope",
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/vte-spawn-8a3e5b1c-0000-4000-8000-000000000000.scope",
            "0::/system.slice/docker.service",
            "0::/system.slice/slurmstepd.scope/job_17/step_0/user/task_0",
            "0::/machine.slice/libpod-conmon-ID.scope",
            "0::/kubepods.slice/crio-conmon-ID.scope",
            "0::/lxc.monitor.train",
            "0::/machine.slice/machine-train.scope/supervisor",
            "0::/machine.slice/machine-qemu.scope/libvirt/emulator",
            "0::/system.slice/train.service/payload",
            "1:name=systemd:/docker/IDff",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }
}
