//! Debian 11, with its older glibc, and without systemd.

use std::process::Command;

use anyhow::{Result, ensure};
use genv_tests::{patience, tools};

use crate::built;

/// Runs a script there, where the package is `/genv.deb`; what was said. Nothing of it is left.
fn in_debian_11(script: &str) -> Result<String> {
    let prepare = "set -e
        mount -t tmpfs tmpfs /mnt
        mkdir /mnt/upper /mnt/changes /mnt/whole
        mount -t overlay -o \"lowerdir=$1,upperdir=/mnt/upper,workdir=/mnt/changes\" overlay /mnt/whole
        mount -t proc proc /mnt/whole/proc
        mount --bind /dev /mnt/whole/dev
        cp \"$2\" /mnt/whole/genv.deb
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive chroot /mnt/whole sh -ec \"$3\"";
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "bash",
            "-c",
            prepare,
            "bash",
        ])
        .arg(tools::folder("debian-11").join("root"))
        .arg(built("deb")?)
        .arg(script);
    let output = patience::output(&mut command)?;
    let said = String::from_utf8([output.stdout, output.stderr].concat())?;
    ensure!(output.status.success(), "{said}");
    Ok(said)
}

#[test]
fn it_runs_there_and_says_what_is_missing() -> Result<()> {
    let said = in_debian_11(
        "apt-get install --yes /genv.deb; for program in genv genv-exporter genv-enforcer; do $program --version; done",
    )?;
    ensure!(
        said.contains("systemd does not run here: genv works"),
        "{said}"
    );
    ensure!(!said.contains("systemctl enable"), "{said}");
    for program in ["genv", "genv-exporter", "genv-enforcer"] {
        ensure!(said.contains(&format!("\n{program} 0.")), "{said}");
    }
    let said = in_debian_11(
        "dpkg --install /genv.deb
        export GENV_DEVICES=2
        genv exec --gpus 1 -- sh -c 'echo devices: $CUDA_VISIBLE_DEVICES'
        dpkg --purge genv
        ls /etc/genv /usr/lib/genv /var/lib/genv-enforcer || true",
    )?;
    ensure!(said.contains("\ndevices: 0\n"), "{said}");
    ensure!(
        said.matches("No such file or directory").count() == 3,
        "{said}"
    );
    Ok(())
}
