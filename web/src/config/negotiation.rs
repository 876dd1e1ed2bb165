//! Versions, cipher suites and curves of TLS handshakes, from Go's names to rustls' own.
//!
//! Names that rustls does not support are left out with a note, as long as another allowed one remains.

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::{NamedGroup, SupportedCipherSuite, SupportedProtocolVersion, version};

use super::format::{Curve, TlsVersion};

/// Cipher suites of Go ([`tls.CipherSuites`](https://pkg.go.dev/crypto/tls#CipherSuites) and older) without support in
/// rustls.
const UNSERVED_CIPHER_SUITES: [&str; 8] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
];

/// Go's names of the TLS 1.3 suites. As in Go, `cipher_suites` does not turn them off.
const TLS13_CIPHER_SUITES: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// The versions from `min` to `max` that are served.
pub(super) fn versions(
    min: Option<TlsVersion>,
    max: Option<TlsVersion>,
    notes: &mut Vec<String>,
) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let (min, max) = (min.unwrap_or(TlsVersion::Tls12), max.unwrap_or(TlsVersion::Tls13));
    if max < TlsVersion::Tls12 {
        return Err("max_version allows only versions of TLS that are broken; set TLS12 or TLS13".to_owned());
    }
    if min > max {
        return Err("min_version is above max_version; no version of TLS is left".to_owned());
    }
    if min < TlsVersion::Tls12 {
        notes.push("min_version is raised to TLS12: older versions are broken and not served".to_owned());
    }
    let served = [(TlsVersion::Tls12, &version::TLS12), (TlsVersion::Tls13, &version::TLS13)];
    Ok(served.into_iter().filter(|(version, _)| (min..=max).contains(version)).map(|(_, version)| version).collect())
}

/// TLS 1.3's suites, and the named ones in their order.
pub(super) fn cipher_suites(names: &[String], notes: &mut Vec<String>) -> Result<Vec<SupportedCipherSuite>, String> {
    let is_tls13 = |suite: &SupportedCipherSuite| suite.tls13().is_some();
    let all = ring::ALL_CIPHER_SUITES.iter().copied();
    let mut suites: Vec<_> = all.clone().filter(is_tls13).collect();
    for name in names {
        // TLS 1.3 suites have other names in rustls, and are in `suites` already.
        if let Some(suite) = all.clone().find(|suite| suite.suite().as_str() == Some(name)) {
            if !suites.contains(&suite) {
                suites.push(suite);
            }
        } else if UNSERVED_CIPHER_SUITES.contains(&name.as_str()) {
            notes.push(format!("cipher suite {name} is not served"));
        } else if !TLS13_CIPHER_SUITES.contains(&name.as_str()) {
            return Err(format!(
                "cipher_suites has an unknown name, {name}; the names are listed at https://pkg.go.dev/crypto/tls#pkg-constants"
            ));
        }
    }
    Ok(suites)
}

/// Makes `provider` offer these curves, in this order.
pub(super) fn order_curves(
    provider: &mut CryptoProvider,
    curves: &[Curve],
    notes: &mut Vec<String>,
) -> Result<(), String> {
    let mut groups = Vec::new();
    for curve in curves {
        let name = match curve {
            Curve::CurveP256 => Some(NamedGroup::secp256r1),
            Curve::CurveP384 => Some(NamedGroup::secp384r1),
            Curve::X25519 => Some(NamedGroup::X25519),
            Curve::CurveP521 | Curve::X25519MLKEM768 => None,
        };
        match provider.kx_groups.iter().find(|group| Some(group.name()) == name) {
            Some(group) => groups.push(*group),
            None => notes.push(format!("curve {curve:?} is not served")),
        }
    }
    if groups.is_empty() {
        return Err("no curve of curve_preferences is served; add X25519, CurveP256 or CurveP384".to_owned());
    }
    provider.kx_groups = groups;
    Ok(())
}
