//! The addresses of `--web.listen-address`.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use tokio::net::{TcpListener, TcpSocket, lookup_host};

/// `HOST:PORT`, as in every Prometheus exporter. The host is an IPv4 address, an IPv6 address in brackets, a host name
/// (for its first IPv4 address, else its first address), or empty, for all addresses of IPv4 and IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    host: ListenHost,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ListenHost {
    All,
    Address(IpAddr),
    Name(String),
}

/// A text is not a [`ListenAddress`]. The message continues clap's "invalid value '…' for '…': ".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; write HOST:PORT, such as 127.0.0.1:9820, [::1]:9820, or :9820 for all interfaces")]
pub struct ListenAddressError {
    reason: &'static str,
}

impl ListenAddressError {
    /// The mistake, without the advice.
    pub const fn reason(&self) -> &'static str {
        self.reason
    }
}

/// A [`ListenAddress`] cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {why}. {}", next_step(why))]
pub struct ListenError {
    address: ListenAddress,
    why: io::Error,
}

/// The sockets of the service manager cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on the sockets of the service manager: {why}. Start this program by its .socket unit, or leave out --web.systemd-socket"
)]
pub struct InheritedSocketError {
    why: String,
}

/// The sockets that the service manager has opened: sd_listen_fds(3).
pub(crate) fn inherited() -> Result<Vec<TcpListener>, InheritedSocketError> {
    let error = |why: String| InheritedSocketError { why };
    let mut sockets = listenfd::ListenFd::from_env();
    let mut listeners = Vec::new();
    for number in 0..sockets.len() {
        let socket = sockets.take_tcp_listener(number);
        let socket = socket.map_err(|why| error(why.to_string()))?;
        let socket = socket.ok_or_else(|| error("one of them cannot be taken twice".to_owned()))?;
        let listener = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket));
        listeners.push(listener.map_err(|why| error(why.to_string()))?);
    }
    if listeners.is_empty() {
        return Err(error("it has passed no socket (LISTEN_FDS)".to_owned()));
    }
    Ok(listeners)
}

fn next_step(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "Another program holds this port ('ss -ltnp' shows it): stop it, or choose another \
             port with --web.listen-address."
        }
        io::ErrorKind::PermissionDenied => {
            "Ports below 1024 need CAP_NET_BIND_SERVICE: choose a higher one with --web.listen-address."
        }
        _ => "Give an address of this machine with --web.listen-address.",
    }
}

impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = |reason| Err(ListenAddressError { reason });
        if text.contains("://") {
            return refused("URLs and other kinds of sockets are not supported");
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return refused("the port is missing");
        };
        let host = match host.strip_prefix('[').map(|host| host.strip_suffix(']')) {
            Some(Some(address)) => match address.parse::<Ipv6Addr>() {
                Ok(address) => ListenHost::Address(address.into()),
                Err(_) => return refused("the text in brackets is not an IPv6 address"),
            },
            Some(None) => return refused("a bracket is not closed, or no port follows it"),
            None if host.contains(':') => {
                return refused("an IPv6 address must stand in brackets");
            }
            None if host.is_empty() => ListenHost::All,
            None => match host.parse::<Ipv4Addr>() {
                Ok(address) => ListenHost::Address(address.into()),
                Err(_) if is_host_name(host) => ListenHost::Name(host.to_owned()),
                Err(_) => return refused("the host is neither an address nor a valid name"),
            },
        };
        let digits_only = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        match port.parse() {
            Ok(port) if digits_only => Ok(Self { host, port }),
            _ => refused("the port is not a number from 0 to 65535"),
        }
    }
}

/// As in RFC 1123, with the underscores that some sites use. A name whose last label is all digits would be
/// a mistyped IPv4 address.
fn is_host_name(text: &str) -> bool {
    let labels = text.strip_suffix('.').unwrap_or(text).split('.');
    let label_is_valid = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let mut last = "";
    text.len() <= 253
        && labels.inspect(|label| last = label).all(label_is_valid)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            ListenHost::All => write!(formatter, ":{}", self.port),
            ListenHost::Address(address) => SocketAddr::new(*address, self.port).fmt(formatter),
            ListenHost::Name(name) => write!(formatter, "{name}:{}", self.port),
        }
    }
}

impl ListenAddress {
    /// Listens. Port 0 lets the kernel choose one.
    pub(crate) async fn listen(&self) -> Result<TcpListener, ListenError> {
        self.try_listen().await.map_err(|why| ListenError { address: self.clone(), why })
    }

    async fn try_listen(&self) -> io::Result<TcpListener> {
        let address = match &self.host {
            ListenHost::Address(address) => *address,
            ListenHost::All => {
                return match listen(Ipv6Addr::UNSPECIFIED.into(), self.port) {
                    // A kernel without IPv6 has no such socket, or no such address.
                    Err(error)
                        if error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
                            || error.kind() == io::ErrorKind::AddrNotAvailable =>
                    {
                        listen(Ipv4Addr::UNSPECIFIED.into(), self.port)
                    }
                    result => result,
                };
            }
            ListenHost::Name(name) => {
                let addresses: Vec<_> = lookup_host((name.as_str(), self.port)).await?.collect();
                let found = addresses.iter().find(|address| address.is_ipv4());
                found
                    .or(addresses.first())
                    .map(SocketAddr::ip)
                    .ok_or_else(|| io::Error::other("this name has no address"))?
            }
        };
        listen(address, self.port)
    }
}

fn listen(address: IpAddr, port: u16) -> io::Result<TcpListener> {
    /// The kernel's default maximum (net.core.somaxconn).
    const BACKLOG: u32 = 4096;
    let socket = match address {
        IpAddr::V4(_) => TcpSocket::new_v4()?,
        IpAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if address.is_ipv6() && address.is_unspecified() {
        // Independent of net.ipv6.bindv6only.
        rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    }
    // A restart must not wait for the last connections' TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::new(address, port))?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_exporters_read_them() {
        for (text, shown) in [
            ("127.0.0.1:9820", "127.0.0.1:9820"),
            (":9820", ":9820"),
            ("[::1]:9820", "[::1]:9820"),
            ("[::]:9820", "[::]:9820"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("localhost:9820", "localhost:9820"),
            ("gpu-01.lab_2.example.org.:65535", "gpu-01.lab_2.example.org.:65535"),
            (":09820", ":9820"),
        ] {
            let address: ListenAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(shown.parse::<ListenAddress>().unwrap(), address);
        }
    }

    #[test]
    fn a_wrong_address_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "the port is missing"),
            ("9820", "the port is missing"),
            ("localhost", "the port is missing"),
            ("localhost:", "the port is not a number from 0 to 65535"),
            (":65536", "the port is not a number from 0 to 65535"),
            (":+80", "the port is not a number from 0 to 65535"),
            (":http", "the port is not a number from 0 to 65535"),
            ("::1:9820", "an IPv6 address must stand in brackets"),
            ("[::1]", "a bracket is not closed, or no port follows it"),
            ("[::1:9820", "a bracket is not closed, or no port follows it"),
            ("[gpu]:9820", "the text in brackets is not an IPv6 address"),
            ("127.0.0.256:1", "the host is neither an address nor a valid name"),
            ("10.1:9820", "the host is neither an address nor a valid name"),
            ("my host:9820", "the host is neither an address nor a valid name"),
            ("a..b:9820", "the host is neither an address nor a valid name"),
            ("http://localhost:9820", "URLs and other kinds of sockets are not supported"),
            ("vsock://:9820", "URLs and other kinds of sockets are not supported"),
        ] {
            let error = text.parse::<ListenAddress>().unwrap_err();
            assert_eq!(error.reason, reason, "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_refused_or_survives_display_and_parsing(text in r"[\[\]:.a-z0-9%-]{0,24}|\PC{0,24}") {
            if let Ok(address) = text.parse::<ListenAddress>() {
                proptest::prop_assert_eq!(address.to_string().parse(), Ok(address));
            }
        }
    }
}
