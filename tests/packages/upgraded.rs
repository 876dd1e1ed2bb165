//! An upgrade of each package from an earlier version, and its end where it was interrupted.

use anyhow::{Result, ensure};
use genv_tests::machine::Machine;

use crate::{CONFIG, DAEMONS, DEB, RPM, boot, install, root_is, rpm, said, start_daemons, start_member, states};

/// An administrator's configuration, which stays theirs.
const OWN: &str = "version: 1\ninterval: 100ms\nrules: [{kind: max-age, limit: 7d}]\n";

/// What an earlier version had otherwise, where its files are unpacked: another configuration by default, and a file more.
const EARLIER: &str = "sed -i '1i # As an earlier version had it.' etc/genv/enforcer.yaml
    touch usr/share/genv/earlier";

const FILE_OF_EARLIER: &str = "usr/share/genv/earlier";

const EARLIER_RPM: &str = "/packages/x86_64/genv-0.0.9-1.x86_64.rpm";

#[derive(Clone, Copy)]
enum Package {
    Deb,
    /// By the rpm that Debian has.
    Rpm,
}

impl Package {
    fn install_earlier(self, machine: &Machine) -> Result<()> {
        match self {
            Self::Deb => {
                let script = format!(
                    "dpkg-deb --raw-extract {DEB} /packages/earlier
                    cd /packages/earlier
                    sed -i 's/^Version: .*/Version: 0.0.9-1/' DEBIAN/control
                    {EARLIER}
                    dpkg-deb --build -Znone . /packages/earlier.deb"
                );
                machine.run(&["bash", "-ec", &script])?;
                install(machine, "/packages/earlier.deb")?;
            }
            Self::Rpm => {
                make_earlier_rpm(machine)?;
                rpm(machine, &["--upgrade", EARLIER_RPM])?;
            }
        }
        ensure!(machine.path(FILE_OF_EARLIER).exists(), "it has no file more");
        Ok(())
    }

    /// Installs it over an earlier version, and keeps the administrator's configuration; the output.
    fn install(self, machine: &Machine) -> Result<String> {
        match self {
            Self::Deb => install(machine, DEB),
            Self::Rpm => rpm(machine, &["--upgrade", RPM]),
        }
    }

    /// Interrupts an installation, and finishes it as docs/install.md describes; the output of that.
    fn finish_interrupted(self, machine: &Machine) -> Result<String> {
        match self {
            Self::Deb => {
                // Kills dpkg, and the script of the package that dpkg runs. Before the real program on PATH.
                let program = "/usr/sbin/systemd-sysusers";
                let kill = "#!/bin/bash\nkill -KILL \"$(awk '{ print $4 }' /proc/$PPID/stat)\" $PPID\n";
                machine.write(program, kill)?;
                machine.run(&["chmod", "755", program])?;
                let killed = machine.output(&["dpkg", "--force-confold", "--install", DEB])?;
                machine.run(&["rm", program])?;
                let status = dpkg_status(machine)?;
                ensure!(status.starts_with("install ok half-configured "), "{status}: {killed:?}");
                works(machine)?;
                said(machine, &["dpkg", "--force-confold", "--configure", "-a"])
            }
            Self::Rpm => {
                // As an rpm leaves it that is killed before it removes the earlier version.
                rpm(machine, &["--install", "--force", EARLIER_RPM])?;
                let both = machine.run(&["rpm", "--query", "genv"])?;
                ensure!(both.lines().count() == 2, "{both}");
                works(machine)?;
                rpm(machine, &["--upgrade", "--force", RPM])
            }
        }
    }

    fn new_configuration(self) -> &'static str {
        match self {
            Self::Deb => "etc/genv/enforcer.yaml.dpkg-dist",
            Self::Rpm => "etc/genv/enforcer.yaml.rpmnew",
        }
    }

    /// Whether it is installed, wholly, and nothing is left of an earlier version.
    fn is_whole(self, machine: &Machine) -> Result<()> {
        let (found, wanted) = match self {
            Self::Deb => {
                let version = machine.run(&["dpkg-deb", "--field", DEB, "Version"])?;
                (dpkg_status(machine)?, format!("install ok installed {}", version.trim_end()))
            }
            Self::Rpm => {
                (machine.run(&["rpm", "--query", "genv"])?, machine.run(&["rpm", "--query", "--package", RPM])?)
            }
        };
        ensure!(found == wanted, "{found}");
        ensure!(!machine.path(FILE_OF_EARLIER).exists(), "the earlier version's file is there");
        Ok(())
    }
}

fn make_earlier_rpm(machine: &Machine) -> Result<()> {
    let script = format!(
        "mkdir /packages/earlier
        cd /packages/earlier
        rpm2archive -n - <{RPM} | tar -x
        {EARLIER}
        script() {{ rpm --query --package --queryformat \"%%$1\\n%{{$2}}\\n\" {RPM}; }}
        cat >/packages/earlier.spec <<SPEC
Name: genv
Version: 0.0.9
Release: 1
Summary: An earlier version
License: the same
AutoReqProv: no
%define __os_install_post %{{nil}}
%define _binary_payload w0.gzdio
%description
%install
cp -a /packages/earlier/. %{{buildroot}}
%files
%config(noreplace) /etc
/usr
$(script post POSTIN; script preun PREUN; script postun POSTUN)
SPEC
        rpmbuild -bb --quiet --define '_rpmdir /packages' /packages/earlier.spec"
    );
    machine.run(&["bash", "-ec", &script]).map(drop)
}

/// The state of the package and its version by dpkg, such as `install ok installed 0.1.0-1`.
fn dpkg_status(machine: &Machine) -> Result<String> {
    machine.run(&["dpkg-query", "--show", "--showformat=${Status} ${Version}", "genv"])
}

fn works(machine: &Machine) -> Result<()> {
    let environments = machine.run(&["genv", "envs"])?;
    ensure!(environments.contains("training"), "{environments}");
    Ok(())
}

/// The main processes of the exporter and the enforcer, both of which must be active and enabled.
fn pids(machine: &Machine) -> Result<[u32; 2]> {
    for daemon in DAEMONS {
        let found = states(machine, daemon)?;
        ensure!(found == ["enabled", "active"], "{daemon}: {found:?}");
    }
    Ok([machine.main_pid(DAEMONS[0])?, machine.main_pid(DAEMONS[1])?])
}

fn keeps_what_is_there(package: Package) -> Result<()> {
    let machine = boot()?;
    package.install_earlier(&machine)?;
    machine.write(CONFIG, OWN)?;
    start_daemons(&machine)?;
    let member = start_member(&machine)?;
    let earlier = pids(&machine)?;

    let said = package.install(&machine)?;
    ensure!(!said.contains("cannot use"), "{said}");
    package.is_whole(&machine)?;
    root_is(|words| machine.run(words), "genv", "/usr/lib/genv")?;
    ensure!(machine.read(CONFIG)? == OWN, "{}", machine.read(CONFIG)?);
    let beside = machine.read(package.new_configuration())?;
    ensure!(beside == machine.read("usr/share/genv/enforcer.yaml")?, "{beside}");
    let upgraded = pids(&machine)?;
    ensure!(upgraded[0] != earlier[0] && upgraded[1] != earlier[1], "one goes on as it was: {upgraded:?}");
    machine.wait_for_status("genv-enforcer", |status| status.starts_with("dry-run: 1 rules"))?;
    works(&machine)?;

    // Again, with a configuration that this version cannot use.
    let unusable = "version: 0\nrules: []\n";
    machine.write(CONFIG, unusable)?;
    let said = package.finish_interrupted(&machine)?;
    for line in [
        "enforcer.yaml:1:10: version 0 is not known: this program reads version 1",
        "this version cannot use /etc/genv/enforcer.yaml; a genv-enforcer that runs goes on as it was",
    ] {
        ensure!(said.contains(line), "{line}: {said}");
    }
    package.is_whole(&machine)?;
    ensure!(machine.read(CONFIG)? == unusable, "{}", machine.read(CONFIG)?);
    let again = pids(&machine)?;
    ensure!(again[0] != upgraded[0], "the exporter goes on as it was");
    ensure!(again[1] == upgraded[1], "the enforcer was started again");

    // The remedy of the message.
    machine.write(CONFIG, OWN)?;
    machine.run(&["systemctl", "restart", "genv-enforcer"])?;
    machine.wait_for_status("genv-enforcer", |status| status.starts_with("dry-run: 1 rules"))?;
    ensure!(machine.is_alive(member), "its process has ended");
    Ok(())
}

#[test]
fn by_apt_it_keeps_configuration_environments_and_what_runs_also_where_it_was_interrupted() -> Result<()> {
    keeps_what_is_there(Package::Deb)
}

#[test]
fn by_rpm_it_keeps_configuration_environments_and_what_runs_also_where_it_was_interrupted() -> Result<()> {
    keeps_what_is_there(Package::Rpm)
}
