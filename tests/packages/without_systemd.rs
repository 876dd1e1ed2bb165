//! Where systemd does not run, on Debian 11 with its older glibc.

use std::process::Command;

use anyhow::{Result, ensure};
use genv_tests::{patience, tools};

use crate::{built, driver_is_missed};

/// Runs a script in a tree that `scripts/debian-tools` makes, where the packages are `/genv.deb`, `/genv.rpm` and
/// `/genv.tar.gz`; its output. The tree stays as it is.
fn inside(tree: &str, script: &str) -> Result<String> {
    let prepare = "set -e
        mount -t tmpfs tmpfs /mnt
        mkdir /mnt/upper /mnt/changes /mnt/whole
        mount -t overlay -o \"lowerdir=$1,upperdir=/mnt/upper,workdir=/mnt/changes\" overlay /mnt/whole
        mount -t proc proc /mnt/whole/proc
        mount --bind /dev /mnt/whole/dev
        cp \"$3\" /mnt/whole/genv.deb
        cp \"$4\" /mnt/whole/genv.rpm
        cp \"$5\" /mnt/whole/genv.tar.gz
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive chroot /mnt/whole sh -ec \"$2\"";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--kill-child"])
        .args(["bash", "-c", prepare, "bash"])
        .arg(tools::folder(tree).join("root"))
        .arg(script)
        .args([built("deb")?, built("rpm")?, built("tar.gz")?]);
    let output = patience::output(&mut command)?;
    let said = String::from_utf8([output.stdout, output.stderr].concat())?;
    ensure!(output.status.success(), "{said}");
    Ok(said)
}

#[test]
fn each_package_works_without_systemd_and_says_what_is_missing() -> Result<()> {
    let used = "GENV_DEVICES=2 genv exec --gpus 1 -- sh -c 'echo devices: $CUDA_VISIBLE_DEVICES'";
    for (tree, script, line) in [
        (
            "debian-11",
            format!(
                "dpkg --install /genv.deb; genv-exporter --version; genv-enforcer --version; {used}; dpkg --purge genv"
            ),
            "genv works",
        ),
        ("debian-12-systemd", format!("rpm --install --nodeps /genv.rpm; {used}; rpm --erase genv"), "genv works"),
        (
            "debian-11",
            format!(
                "useradd --create-home alice
                cat >/home/alice/script <<'SCRIPT'
                tar -xzf /genv.tar.gz
                genv-*/install.sh
                PATH=$HOME/.local/bin:$PATH
                {used}
SCRIPT
                su - alice -c 'sh -e script'"
            ),
            "start genv-exporter by hand",
        ),
    ] {
        let said = inside(tree, &script)?;
        driver_is_missed(&said)?;
        let missing = format!("systemd does not run here: {line}");
        for line in [missing.as_str(), "devices: 0\n"] {
            ensure!(said.contains(line), "{line}: {said}");
        }
        ensure!(!said.contains("systemctl enable"), "{said}");
    }
    Ok(())
}
