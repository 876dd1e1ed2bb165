//! What a handshake may agree on: versions, cipher suites and curves, from Go's names to rustls' own.
//!
//! What rustls does not have is left out with a note, as long as something remains that the file allows.

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::{NamedGroup, SupportedCipherSuite, SupportedProtocolVersion, version};

use super::file::{Curve, Version};

/// Go's [`tls.CipherSuites`](https://pkg.go.dev/crypto/tls#CipherSuites), today's and older ones, that are not in rustls.
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

/// Go's names of the TLS 1.3 suites. As in Go, a list does not turn them off.
const TLS13_CIPHER_SUITES: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// The versions from `min` to `max` that are served.
pub(super) fn versions(
    min: Option<Version>,
    max: Option<Version>,
    notes: &mut Vec<String>,
) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let (min, max) = (min.unwrap_or(Version::Tls12), max.unwrap_or(Version::Tls13));
    if max < Version::Tls12 {
        return Err("max_version allows only versions of TLS that are broken; set TLS12 or TLS13".to_owned());
    }
    if min > max {
        return Err("min_version is above max_version; no version of TLS is left".to_owned());
    }
    if min < Version::Tls12 {
        notes.push("min_version is raised to TLS12: what came before is broken and not served".to_owned());
    }
    let served = [(Version::Tls12, &version::TLS12), (Version::Tls13, &version::TLS13)];
    Ok(served.into_iter().filter(|(version, _)| (min..=max).contains(version)).map(|(_, version)| version).collect())
}

/// TLS 1.3's suites, and the named ones in their order.
pub(super) fn cipher_suites(names: &[String], notes: &mut Vec<String>) -> Result<Vec<SupportedCipherSuite>, String> {
    let is_tls13 = |suite: &SupportedCipherSuite| suite.tls13().is_some();
    let all = ring::ALL_CIPHER_SUITES.iter().copied();
    let mut suites: Vec<_> = all.clone().filter(is_tls13).collect();
    for name in names {
        // TLS 1.3 suites have other names in rustls, and are in the list already.
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

/// Has `provider` offer these curves, in this order.
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
