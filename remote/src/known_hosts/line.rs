//! Lines of a file `known_hosts`.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use russh::keys::PublicKey;
use sha1::Sha1;

/// A line that is about the host.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) path: PathBuf,
    /// From 1.
    pub(super) number: usize,
    pub(super) marker: Marker,
    pub(super) key: PublicKey,
    /// Whether it is about the host at port 22, and not at the port in question.
    pub(super) at_other_port: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    None,
    Revoked,
    CertificateAuthority,
}

/// The lines of a file that are about a host of this name, which is in lower case.
pub(super) fn lines_about(path: &Path, text: &str, name: &str) -> Vec<Line> {
    let numbered = text.lines().enumerate();
    numbered
        .filter_map(|(index, line)| {
            let (marker, key) = line_about(line, name)?;
            Some(Line { path: path.to_owned(), number: index + 1, marker, key, at_other_port: false })
        })
        .collect()
}

/// What a line says of a host of this name, if it is about it.
pub(super) fn line_about(line: &str, name: &str) -> Option<(Marker, PublicKey)> {
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
    if !names(patterns, name) {
        return None;
    }
    let (kind, key) = (fields.next()?, fields.next()?);
    let key = PublicKey::from_openssh(&format!("{kind} {key}")).ok()?;
    Some((marker, key))
}

/// Whether the first field of a line names a host.
pub(super) fn names(patterns: &str, name: &str) -> bool {
    if let Some(hashed) = patterns.strip_prefix("|1|") {
        return hash_is_of(hashed, name);
    }
    let mut named = false;
    for pattern in patterns.split(',') {
        let pattern = pattern.to_lowercase();
        if let Some(pattern) = pattern.strip_prefix('!') {
            if matches(pattern, name) {
                return false;
            }
        } else {
            named |= matches(&pattern, name);
        }
    }
    named
}

/// Whether `SALT|HASH`, as HashKnownHosts writes, is of this name.
fn hash_is_of(hashed: &str, name: &str) -> bool {
    let decode = |text| STANDARD.decode(text).ok();
    let parts = hashed.split_once('|');
    let Some((Some(salt), Some(hash))) = parts.map(|(salt, hash)| (decode(salt), decode(hash))) else {
        return false;
    };
    Hmac::<Sha1>::new_from_slice(&salt).is_ok_and(|hmac| hmac.chain_update(name).verify_slice(&hash).is_ok())
}

/// Whether a pattern with `*` and `?` is of this name.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // Where the last star was, and how much of the name it stands for.
    let mut star: Option<(usize, usize)> = None;
    while let Some(byte) = name.get(n) {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(expected) if *expected == b'?' || expected == byte => {
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
