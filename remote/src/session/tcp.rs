//! Name lookup and TCP connection.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::failures::{seconds, unreachable};
use crate::resolve::{AddressFamily, Target};
use crate::{FailureKind, HostFailure};

/// Connects to the first address that answers. The addresses share the time limit.
pub(super) async fn connect(target: &Target, limit: Duration) -> Result<TcpStream, HostFailure> {
    let deadline = Instant::now() + limit;
    let unresolved = |why: &str| {
        HostFailure::new(
            FailureKind::Unresolved,
            format!(
                "cannot find the address of {}: {why}. Correct the name, or set HostName for it in ~/.ssh/config",
                target.address
            ),
        )
    };
    let lookup = tokio::net::lookup_host((target.address.as_str(), target.port));
    let addresses = match timeout(limit, lookup).await {
        Err(_) => return Err(unresolved(&format!("no answer in {}", seconds(limit)))),
        Ok(Err(error)) => return Err(unresolved(&error.to_string())),
        Ok(Ok(addresses)) => addresses,
    };
    let addresses: Vec<_> = addresses
        .filter(|address| match target.family {
            AddressFamily::Any => true,
            AddressFamily::Inet => address.is_ipv4(),
            AddressFamily::Inet6 => address.is_ipv6(),
        })
        .collect();
    let mut failure = unresolved("it has no address");
    let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for address in addresses {
        let share = deadline.saturating_duration_since(Instant::now()) / left.max(1);
        left = left.saturating_sub(1);
        match timeout(share, TcpStream::connect(address)).await {
            Err(_) => failure = unreachable(&address.to_string(), &format!("no answer in {}", seconds(share))),
            Ok(Err(error)) => failure = unreachable(&address.to_string(), &error.to_string()),
            Ok(Ok(stream)) => {
                // Without this option the connection is only slower.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
        }
    }
    Err(failure)
}
