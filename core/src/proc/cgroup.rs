//! Which container a process runs in, by `/proc/PID/cgroup`.

/// A container, by the name that its engine gave its cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Container {
    /// 64 hexadecimal digits, or the name of an LXC container.
    pub(super) id: String,
    /// Who may make up cgroups where this one is: the user of the `user-UID.slice` above it.
    pub(super) owner: Option<u32>,
}

/// The innermost container that the file names (cgroups(7): lines `ID:CONTROLLERS:PATH`).
///
/// Engines name the last part of their cgroup after the container:
/// - the id alone: Docker, Kubernetes and containerd with the cgroupfs driver;
/// - `ENGINE-ID.scope`: Docker, cri-containerd, CRI-O, Podman and nerdctl with the systemd driver;
/// - `SLICE:ENGINE:ID`: containerd whose driver differs from Kubernetes';
/// - `lxc.payload.NAME`, `lxc.payload/NAME` or `lxc/NAME`: LXC and LXD.
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
    let mut owner = None;
    let mut above = "";
    for part in path.split('/') {
        if let Some(user) = user_of_slice(part) {
            owner = Some(user);
        } else if let Some(id) = container_id(above, part) {
            found = Some(Container {
                id: id.to_owned(),
                owner,
            });
        }
        above = part;
    }
    found
}

fn container_id<'a>(above: &str, part: &'a str) -> Option<&'a str> {
    if let Some(name) = part.strip_prefix("lxc.payload.") {
        return Some(name);
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
        ] {
            assert_eq!(of(path), Some(("train".to_owned(), None)), "{path}");
        }
    }

    #[test]
    fn a_rootless_container_tells_its_owner() {
        assert_eq!(
            of(
                "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container"
            ),
            Some((ID.to_owned(), Some(1000)))
        );
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
            "1:name=systemd:/docker/IDff",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }
}
