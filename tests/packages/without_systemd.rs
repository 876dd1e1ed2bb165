//! Where systemd does not run, on Debian 11 with its older glibc.

use std::process::Command;

use anyhow::{Result, ensure};
use genv_tests::{patience, tools};

use crate::{built, driver_is_missed};

/// Runs a script in a tree that `scripts/debian-tools` makes, where the packages are `/genv.deb`, `/genv.rpm` and
/// `/genv.tar.gz`; what was said. Nothing of it is left.
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
fn the_debian_package_works_on_debian_11_and_says_what_is_missing() -> Result<()> {
    let said = inside(
        "debian-11",
        "apt-get install --yes /genv.deb; for program in genv genv-exporter genv-enforcer; do $program --version; done",
    )?;
    ensure!(said.contains("systemd does not run here: genv works"), "{said}");
    driver_is_missed(&said)?;
    ensure!(!said.contains("systemctl enable"), "{said}");
    for program in ["genv", "genv-exporter", "genv-enforcer"] {
        ensure!(said.contains(&format!("\n{program} 0.")), "{said}");
    }
    let said = inside(
        "debian-11",
        "dpkg --install /genv.deb
        export GENV_DEVICES=2
        genv exec --gpus 1 -- sh -c 'echo devices: $CUDA_VISIBLE_DEVICES'
        dpkg --purge genv
        ls /etc/genv /usr/lib/genv /var/lib/genv-enforcer || true",
    )?;
    ensure!(said.contains("\ndevices: 0\n"), "{said}");
    ensure!(said.matches("No such file or directory").count() == 3, "{said}");
    Ok(())
}

#[test]
fn the_tarball_works_on_debian_11_and_says_what_is_missing() -> Result<()> {
    let said = inside(
        "debian-11",
        "useradd --create-home alice
        cat >/home/alice/script <<'SCRIPT'
        tar -xzf /genv.tar.gz
        genv-*/install.sh
        GENV_DEVICES=2 .local/bin/genv exec --gpus 1 -- sh -c 'echo devices: $CUDA_VISIBLE_DEVICES'
SCRIPT
        su - alice -c 'sh -e script'",
    )?;
    ensure!(said.contains("systemd does not run here: start genv-exporter by hand"), "{said}");
    driver_is_missed(&said)?;
    ensure!(said.contains("devices: 0\n"), "{said}");
    Ok(())
}

#[test]
fn the_rpm_works_without_systemd_and_says_so() -> Result<()> {
    let said = inside(
        "debian-12-systemd",
        "rpm --install --nodeps /genv.rpm
        GENV_DEVICES=2 genv exec --gpus 1 -- sh -c 'echo devices: $CUDA_VISIBLE_DEVICES'
        rpm --erase genv",
    )?;
    ensure!(said.contains("systemd does not run here: genv works"), "{said}");
    driver_is_missed(&said)?;
    ensure!(!said.contains("systemctl enable"), "{said}");
    ensure!(said.contains("devices: 0\n"), "{said}");
    Ok(())
}
