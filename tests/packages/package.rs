//! The two packages that have services: installed, over an earlier version too, and asked for.

use anyhow::{Result, ensure};
use genv_tests::machine::Machine;

use crate::{DEB, RPM, changed, dpkg_status, install};

/// An administrator's configuration, which stays theirs.
pub(crate) const OWN: &str = "version: 1\ninterval: 100ms\nrules: [{kind: max-age, limit: 7d}]\n";

/// What an earlier version had otherwise, where its files are unpacked: another configuration by default, and a file more.
const EARLIER: &str = "sed -i '1i # As an earlier version had it.' etc/genv/enforcer.yaml
    touch usr/share/genv/earlier";

/// What only an earlier version has.
const FILE_OF_EARLIER: &str = "usr/share/genv/earlier";

#[derive(Clone, Copy)]
pub(crate) enum Package {
    Deb,
    /// By the rpm that Debian has.
    Rpm,
}

impl Package {
    /// Makes an earlier version, and installs it.
    pub(crate) fn install_earlier(self, machine: &Machine) -> Result<()> {
        match self {
            Self::Deb => {
                let script = format!("sed -i 's/^Version: .*/Version: 0.0.9-1/' DEBIAN/control\n{EARLIER}");
                install(machine, changed(machine, &script)?)?;
            }
            Self::Rpm => {
                rpm(machine, &["--upgrade", earlier_rpm(machine)?])?;
            }
        }
        ensure!(machine.path(FILE_OF_EARLIER).exists(), "it has no file more");
        Ok(())
    }

    /// Installs it, over an earlier version too, as an administrator does who wants their configuration kept; what was said.
    pub(crate) fn install(self, machine: &Machine) -> Result<String> {
        match self {
            Self::Deb => install(machine, DEB),
            Self::Rpm => rpm(machine, &["--upgrade", RPM]),
        }
    }

    /// The configuration that it brings is put beside the administrator's as this.
    pub(crate) fn new_configuration(self) -> &'static str {
        match self {
            Self::Deb => "etc/genv/enforcer.yaml.dpkg-dist",
            Self::Rpm => "etc/genv/enforcer.yaml.rpmnew",
        }
    }

    /// Whether it is installed, wholly, and nothing is left of an earlier version.
    pub(crate) fn is_whole(self, machine: &Machine) -> Result<()> {
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

/// Runs rpm, to which nothing that a package needs is there, as it knows nothing of Debian's; what was said.
pub(crate) fn rpm(machine: &Machine, words: &[&str]) -> Result<String> {
    let script = "rpm --nodeps \"$@\" 2>&1";
    machine.run(&[&["bash", "-c", script, "bash"], words].concat())
}

/// Makes an earlier version of the RPM, with the same scripts; its path there.
fn earlier_rpm(machine: &Machine) -> Result<&'static str> {
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
    machine.run(&["bash", "-ec", &script])?;
    Ok("/packages/x86_64/genv-0.0.9-1.x86_64.rpm")
}
