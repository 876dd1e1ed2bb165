//! Names that one holder on this machine has at a time: tests run at once, in one process or each in a process of its own.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::Result;

/// A name that is held until the value is dropped or this process ends, by whatever signal: the address of a socket that
/// has no file.
pub struct Reserved(#[expect(dead_code, reason = "the open socket holds the name")] UnixListener);

impl Reserved {
    pub fn attempt(name: &str) -> Result<Option<Self>> {
        let address = SocketAddr::from_abstract_name(format!("genv-tests-{name}"))?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Some(Self(listener))),
            Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
