//! Files that show a change of the state without a read of their content.

use std::path::{Path, PathBuf};

use rustix::fs::statfs;

use super::host::STATE_FILE;
use super::leases;

/// Network file systems, by the numbers of statfs(2) and linux/magic.h: NFS, CIFS, SMB2, Lustre, CephFS, AFS, 9p, Coda,
/// and FUSE, which sshfs and others use.
const NETWORK: [u32; 9] =
    [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x0bd0_0bd0, 0x00c3_6400, 0x5346_414f, 0x0102_1997, 0x7375_7245, 0x6573_5546];

/// The files of a state directory that are replaced when the state or the caller's leases change.
pub fn watched_files(directory: &Path) -> Vec<PathBuf> {
    let leases = leases::own_name();
    [STATE_FILE, &leases].map(|name| directory.join(name)).into()
}

/// Whether other machines share a folder, so that reading the metadata of its files may take long.
pub fn is_on_network(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|found| {
        // The type of the field differs between architectures; the kernel's numbers have 32 bits.
        let kind = u32::try_from(found.f_type & 0xffff_ffff);
        kind.is_ok_and(|kind| NETWORK.contains(&kind))
    })
}
