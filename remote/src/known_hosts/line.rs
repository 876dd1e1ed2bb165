//! Lines of the files `known_hosts`.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use russh::keys::PublicKey;
use sha1::Sha1;

/// A line whose patterns match the host.
#[derive(Clone, Debug)]
pub(super) struct KnownHostsLine {
    pub(super) path: PathBuf,
    /// The line number, from 1.
    pub(super) number: usize,
    pub(super) marker: Marker,
    pub(super) key: PublicKey,
    /// Whether the line is for the host's port 22 instead of the port of the connection.
    pub(super) at_other_port: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    None,
    Revoked,
    CertificateAuthority,
}

/// The lines of a file that match a host. `name` is in lower case.
pub(super) fn matching_lines(path: &Path, text: &str, name: &str) -> Vec<KnownHostsLine> {
    let numbered = text.lines().enumerate();
    numbered
        .filter_map(|(index, line)| {
            let (marker, key) = matching_line(line, name)?;
            Some(KnownHostsLine { path: path.to_owned(), number: index + 1, marker, key, at_other_port: false })
        })
        .collect()
}

/// The marker and the key of a line that matches a host.
pub(super) fn matching_line(line: &str, name: &str) -> Option<(Marker, PublicKey)> {
    let line = line.trim_start();
    if line.starts_with('#') {
        return None;
    }
    let mut fields = line.split_ascii_whitespace();
    let first = fields.next()?;
    let (marker, patterns) = match first {
        "@revoked" => (Marker::Revoked, fields.next()?),
        "@cert-authority" => (Marker::CertificateAuthority, fields.next()?),
        marker if marker.starts_with('@') => return None,
        patterns => (Marker::None, patterns),
    };
    if !patterns_match(patterns, name) {
        return None;
    }
    let (kind, key) = (fields.next()?, fields.next()?);
    let key = PublicKey::from_openssh(&format!("{kind} {key}")).ok()?;
    Some((marker, key))
}

/// Whether a list of patterns with commas between, of known_hosts or of a line `Host` of ssh_config, matches a host. `name` is
/// in lower case.
pub(crate) fn patterns_match(patterns: &str, name: &str) -> bool {
    if let Some(hashed) = patterns.strip_prefix("|1|") {
        return is_hash_of(hashed, name);
    }
    let mut named = false;
    for pattern in patterns.split(',') {
        if let Some(pattern) = pattern.strip_prefix('!') {
            if pattern_matches(pattern, name) {
                return false;
            }
        } else {
            named |= pattern_matches(pattern, name);
        }
    }
    named
}

/// Whether `SALT|HASH`, as the option HashKnownHosts writes it, is the hash of this name.
fn is_hash_of(hashed: &str, name: &str) -> bool {
    let decode = |text| STANDARD.decode(text).ok();
    let parts = hashed.split_once('|');
    let Some((Some(salt), Some(hash))) = parts.map(|(salt, hash)| (decode(salt), decode(hash))) else {
        return false;
    };
    Hmac::<Sha1>::new_from_slice(&salt).is_ok_and(|hmac| hmac.chain_update(name).verify_slice(&hash).is_ok())
}

/// Whether a pattern with `*` and `?` matches a name in lower case. As with OpenSSH, the case of ASCII letters is ignored.
pub(super) fn pattern_matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // The position of the last star, and the end of the part of the name that it matches.
    let mut star: Option<(usize, usize)> = None;
    while let Some(byte) = name.get(n) {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(expected) if *expected == b'?' || expected.to_ascii_lowercase() == *byte => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    n = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|byte| *byte == b'*')
}
