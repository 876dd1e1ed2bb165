//! Files of keys.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use russh::keys::{Algorithm, PrivateKey, PublicKey, decode_secret_key};

use crate::script::quoted;

/// The largest size of a file of a key.
const LONGEST_KEY_BYTES: u64 = 1 << 20;

/// The keys of a file.
pub(super) struct Identity {
    pub(super) path: PathBuf,
    pub(super) public: Option<PublicKey>,
    pub(super) secret: Result<Arc<PrivateKey>, UnusableKey>,
}

/// Why a key in a file cannot be used.
pub(super) enum UnusableKey {
    Missing,
    Encrypted,
    Hardware,
    Other(String),
}

impl Identity {
    /// Reads a file that IdentityFile names.
    pub(super) fn read(path: PathBuf) -> Self {
        let (public, secret) = read_keys(&path);
        // As OpenSSH, if the file does not show the public key.
        let public = public.or_else(|| {
            let mut beside = path.clone().into_os_string();
            beside.push(".pub");
            let text = read_bounded(Path::new(&beside)).ok()?;
            PublicKey::from_openssh(text.lines().next()?).ok()
        });
        Self { path, public, secret }
    }
}

fn read_bounded(path: &Path) -> io::Result<String> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > LONGEST_KEY_BYTES {
        return Err(io::Error::other("it is not the file of a key"));
    }
    fs::read_to_string(path)
}

/// Reads the public key, and the private key or the reason why it cannot be used.
fn read_keys(path: &Path) -> (Option<PublicKey>, Result<Arc<PrivateKey>, UnusableKey>) {
    let text = match read_bounded(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return (None, Err(UnusableKey::Missing));
        }
        Err(error) => return (None, Err(UnusableKey::Other(error.to_string()))),
    };
    // IdentityFile may name a public key whose private key is in the agent.
    if let Ok(public) = PublicKey::from_openssh(text.trim()) {
        let why = "a public key, and its private key is not in the agent".to_owned();
        return (Some(public), Err(UnusableKey::Other(why)));
    }
    let openssh = PrivateKey::from_openssh(&text).ok();
    let public = openssh.as_ref().map(|key| key.public_key().clone());
    let secret = if public.as_ref().is_some_and(|key| is_hardware(&key.algorithm())) {
        Err(UnusableKey::Hardware)
    } else if others_may_read(path) {
        let path = quoted(&path.to_string_lossy());
        Err(UnusableKey::Other(format!("other users may read it: chmod 600 {path}")))
    } else {
        match openssh {
            Some(key) if key.is_encrypted() => Err(UnusableKey::Encrypted),
            Some(key) => Ok(Arc::new(key)),
            None if text.contains("ENCRYPTED") => Err(UnusableKey::Encrypted),
            None => decode_secret_key(&text, None)
                .map(Arc::new)
                .map_err(|error| UnusableKey::Other(format!("no private key that can be read: {error}"))),
        }
    };
    let public = public.or_else(|| secret.as_ref().ok().map(|key| key.public_key().clone()));
    (public, secret)
}

/// Whether other users may read a file. OpenSSH does not use such a key.
fn others_may_read(path: &Path) -> bool {
    let uid = rustix::process::getuid().as_raw();
    fs::metadata(path).is_ok_and(|file| file.mode() & 0o077 != 0 && file.uid() == uid)
}

/// Whether the key is in hardware that a person has to touch.
pub(super) fn is_hardware(algorithm: &Algorithm) -> bool {
    matches!(algorithm, Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256)
}
