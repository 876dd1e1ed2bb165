//! Keys in files.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use russh::keys::{Algorithm, PrivateKey, PublicKey, decode_secret_key};

use crate::script::quoted;

/// A private key has fewer bytes than this.
const LONGEST_KEY_BYTES: u64 = 1 << 20;

/// What a file of a key holds.
pub(super) struct Identity {
    pub(super) path: PathBuf,
    pub(super) public: Option<PublicKey>,
    pub(super) secret: Result<Arc<PrivateKey>, Withheld>,
}

/// Why a key in a file cannot be used.
pub(super) enum Withheld {
    Missing,
    Encrypted,
    Hardware,
    Other(String),
}

impl Identity {
    /// Reads a file that IdentityFile names.
    pub(super) fn read(path: PathBuf) -> Self {
        let (public, secret) = read_keys(&path);
        // As OpenSSH does where the private key tells nothing.
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
        return Err(io::Error::other("it is not a file of a key"));
    }
    fs::read_to_string(path)
}

/// The public key of a file, and the private one or why it cannot be used.
fn read_keys(path: &Path) -> (Option<PublicKey>, Result<Arc<PrivateKey>, Withheld>) {
    let text = match read_bounded(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return (None, Err(Withheld::Missing));
        }
        Err(error) => return (None, Err(Withheld::Other(error.to_string()))),
    };
    // IdentityFile may name a public key whose private one is in the agent.
    if let Ok(public) = PublicKey::from_openssh(text.trim()) {
        let why = "a public key, whose private one is not in the agent".to_owned();
        return (Some(public), Err(Withheld::Other(why)));
    }
    let openssh = PrivateKey::from_openssh(&text).ok();
    let public = openssh.as_ref().map(|key| key.public_key().clone());
    let secret = if public.as_ref().is_some_and(|key| is_hardware(&key.algorithm())) {
        Err(Withheld::Hardware)
    } else if others_may_read(path) {
        let path = quoted(&path.to_string_lossy());
        Err(Withheld::Other(format!("others may read it: chmod 600 {path}")))
    } else if openssh.is_some_and(|key| key.is_encrypted()) || text.contains("ENCRYPTED") {
        Err(Withheld::Encrypted)
    } else {
        decode_secret_key(&text, None)
            .map(Arc::new)
            .map_err(|error| Withheld::Other(format!("no private key that can be read: {error}")))
    };
    let public = public.or_else(|| secret.as_ref().ok().map(|key| key.public_key().clone()));
    (public, secret)
}

/// OpenSSH does not use such a key either.
fn others_may_read(path: &Path) -> bool {
    let uid = rustix::process::getuid().as_raw();
    fs::metadata(path).is_ok_and(|file| file.mode() & 0o077 != 0 && file.uid() == uid)
}

/// Whether it is in hardware that somebody has to touch.
pub(super) fn is_hardware(algorithm: &Algorithm) -> bool {
    matches!(algorithm, Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256)
}
