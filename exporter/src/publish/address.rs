//! The addresses of services in flags.

use std::fmt;
use std::str::FromStr;

use genv_web::ListenAddress;

/// `[http://|https://]HOST:PORT[/PATH]`. With a scheme the port may be missing, and is then the scheme's own. The
/// host is written as for [`ListenAddress`], so that it needs no quoting in any of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceAddress {
    /// HTTP if none was given.
    pub(super) scheme: Scheme,
    /// `HOST:PORT`, as Prometheus names a target.
    pub(super) host_and_port: String,
    /// The prefix of every path of the service. Empty, or begins with a slash and does not end with one.
    pub(super) path: String,
}

/// The protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// Without TLS.
    Http,
    /// With TLS.
    Https,
}

/// A text is not a [`ServiceAddress`]. The message continues clap's "invalid value '…' for '…': ".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; write HOST:PORT, such as gpu01:9820 or [::1]:9820, or https://HOST:PORT for a service with TLS")]
pub(crate) struct AddressError {
    reason: String,
}

impl ServiceAddress {
    /// Parses the address of a service without a path.
    pub(crate) fn without_path(text: &str) -> Result<Self, AddressError> {
        let address: Self = text.parse()?;
        if address.path.is_empty() {
            return Ok(address);
        }
        Err(AddressError { reason: "the address must have no path".to_owned() })
    }
}

impl Scheme {
    const fn own_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl FromStr for ServiceAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = |reason: &str| Err(AddressError { reason: reason.to_owned() });
        let (scheme, rest) = match text.split_once("://") {
            None => (None, text),
            Some(("http", rest)) => (Some(Scheme::Http), rest),
            Some(("https", rest)) => (Some(Scheme::Https), rest),
            Some(_) => return refused("only http:// and https:// are supported"),
        };
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-._~".contains(c);
        if !path.chars().all(is_plain) {
            return refused("the path may have only letters, digits and -._~");
        }
        if host.contains('@') {
            return refused("the address must have no password");
        }
        if host.is_empty() || host.rfind(':') == Some(0) {
            return refused("the host is missing");
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, end)| !end.contains(']'));
        let host_and_port = match scheme {
            Some(scheme) if !has_port => format!("{host}:{}", scheme.own_port()),
            _ => host.to_owned(),
        };
        let host_and_port = match host_and_port.parse::<ListenAddress>() {
            Ok(address) => address.to_string(),
            Err(error) => return refused(error.reason()),
        };
        if host_and_port.ends_with(":0") {
            return refused("no service listens on port 0");
        }
        Ok(Self { scheme: scheme.unwrap_or(Scheme::Http), host_and_port, path: path.trim_end_matches('/').to_owned() })
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Http => "http",
            Self::Https => "https",
        })
    }
}

/// The URL, without a slash at its end.
impl fmt::Display for ServiceAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, host_and_port, path } = self;
        write!(formatter, "{scheme}://{host_and_port}{path}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_scheme_port_and_path() {
        for (text, url) in [
            ("gpu01:9820", "http://gpu01:9820"),
            ("127.0.0.1:9820", "http://127.0.0.1:9820"),
            ("https://[::1]:9820", "https://[::1]:9820"),
            ("https://[::1]", "https://[::1]:443"),
            ("http://gpu01", "http://gpu01:80"),
            ("https://lab.example.org/prometheus/", "https://lab.example.org:443/prometheus"),
        ] {
            let address: ServiceAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), url);
            assert_eq!(url.parse(), Ok(address));
        }
    }

    #[test]
    fn a_wrong_address_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "the host is missing"),
            (":9820", "the host is missing"),
            ("http://", "the host is missing"),
            ("gpu01", "the port is missing"),
            ("gpu01:0", "no service listens on port 0"),
            ("gpu01:00", "no service listens on port 0"),
            ("gpu01:http", "the port is not a number from 0 to 65535"),
            ("::1:9820", "an IPv6 address must stand in brackets"),
            ("ftp://gpu01", "only http:// and https:// are supported"),
            ("HTTP://gpu01", "only http:// and https:// are supported"),
            ("http://user:password@gpu01:9820", "the address must have no password"),
            ("gpu01:9820/${HOME}", "the path may have only letters, digits and -._~"),
            ("gpu\"01:9820", "the host is neither an address nor a valid name"),
        ] {
            let error = text.parse::<ServiceAddress>().unwrap_err();
            assert_eq!(error.reason, reason, "{text:?}");
        }
        assert!(ServiceAddress::without_path("gpu01:9820/metrics").is_err());
        assert!(ServiceAddress::without_path("http://gpu01:9820/").is_ok());
    }
}
