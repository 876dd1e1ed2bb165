//! Which users have read the status: `genv why` sends a datagram, and the kernel adds the sender's uid.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;

use genv_core::enforcement::READ_SOCKET;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use crate::directory::RuntimeDirectory;

/// The largest number of datagrams in one cycle; further ones wait, or are lost.
const MAX_DATAGRAMS: usize = 256;

/// A Unix time as text.
const MAX_BYTES: usize = 64;

/// Listens for users who read the status.
#[derive(Debug)]
pub(crate) struct Readers {
    socket: UnixDatagram,
    /// The Unix time of the status that each user read last, by uid.
    read: BTreeMap<u32, f64>,
}

impl Readers {
    /// Opens the socket in the enforcer's directory. All users may send to it.
    pub(crate) fn listen(directory: &RuntimeDirectory) -> io::Result<Self> {
        let path = directory.path().join(READ_SOCKET);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixDatagram::bind(&path)?;
        socket.set_nonblocking(true)?;
        set_socket_passcred(&socket, true)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        Ok(Self { socket, read: BTreeMap::new() })
    }

    /// Receives all datagrams without waiting, and removes all users except these.
    pub(crate) fn take(&mut self, uids: &BTreeSet<u32>) {
        for _ in 0..MAX_DATAGRAMS {
            match self.receive() {
                Ok(Some((uid, written_seconds))) if uids.contains(&uid) => {
                    let known = self.read.entry(uid).or_insert(written_seconds);
                    *known = known.max(written_seconds);
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        self.read.retain(|uid, _| uids.contains(uid));
    }

    /// Whether a user has read a status that was written at this time or later.
    pub(crate) fn has_read(&self, uid: u32, written_seconds: f64) -> bool {
        let read = self.read.get(&uid);
        read.is_some_and(|read| *read >= written_seconds)
    }

    /// Receives a datagram: its sender's uid and its time. Absent if the datagram is malformed.
    fn receive(&self) -> Result<Option<(u32, f64)>, Errno> {
        let mut content = [0; MAX_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut content)], &mut ancillary, RecvFlags::DONTWAIT)?;
        let sender = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.uid.as_raw()),
            _ => None,
        });
        let is_whole = !received.flags.contains(ReturnFlags::TRUNC);
        let content = content.get(..received.bytes).filter(|_| is_whole);
        let text = std::str::from_utf8(content.unwrap_or_default()).unwrap_or_default();
        let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite());
        Ok(sender.zip(seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_names_the_reader_and_malformed_datagrams_are_ignored() {
        let (folder, directory) = RuntimeDirectory::temporary();
        // What an earlier program left is replaced.
        drop(Readers::listen(&directory).unwrap());
        let mut readers = Readers::listen(&directory).unwrap();
        let own = rustix::process::getuid().as_raw();
        let sender = UnixDatagram::unbound().unwrap();
        let path = folder.path().join(READ_SOCKET);
        for text in ["", "x", "NaN", "99999999999999999999999999999999999999999999999999999999999999999.5e1"] {
            sender.send_to(text.as_bytes(), &path).unwrap();
        }
        readers.take(&[own].into());
        assert!(!readers.has_read(own, 0.0));
        sender.send_to(b"20.5", &path).unwrap();
        sender.send_to(b"10", &path).unwrap();
        readers.take(&[own].into());
        assert!(readers.has_read(own, 20.5) && !readers.has_read(own, 21.0));
        assert!(!readers.has_read(own + 1, 0.0));
        readers.take(&BTreeSet::new());
        assert!(!readers.has_read(own, 0.0), "the user was removed");
    }
}
