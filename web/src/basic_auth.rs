//! Basic authentication of requests.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, HeaderMap};
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, oneshot};

/// The number of verdicts kept of each kind: more than there are users. A verdict takes 32 bytes.
const VERDICTS_KEPT: usize = 1024;

/// A well-formed bcrypt hash.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PasswordHash(String);

/// Users and their passwords' hashes.
pub(crate) type Users = BTreeMap<String, PasswordHash>;

impl PasswordHash {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.parse::<bcrypt::HashParts>().ok()?;
        Some(Self(text.to_owned()))
    }
}

impl std::fmt::Debug for PasswordHash {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("PasswordHash(…)")
    }
}

/// Checks passwords, each only once.
///
/// bcrypt is slow on purpose. It runs on its own thread, one check at a time: a flood of wrong passwords costs at most
/// one core, and no client with a known password waits for bcrypt. Verdicts are kept by a digest of user, hash and
/// password, so that a changed hash makes a new check.
#[derive(Debug)]
pub(crate) struct PasswordChecker {
    running: Arc<Semaphore>,
    verdicts: Arc<Mutex<Verdicts>>,
}

#[derive(Debug, Default)]
struct Verdicts {
    /// Apart from the refused ones, so that wrong guesses do not displace accepted passwords.
    accepted: HashSet<[u8; 32]>,
    refused: HashSet<[u8; 32]>,
}

impl Verdicts {
    fn get(&self, key: &[u8; 32]) -> Option<bool> {
        let accepted = self.accepted.contains(key);
        (accepted || self.refused.contains(key)).then_some(accepted)
    }

    fn keep(&mut self, key: [u8; 32], accepted: bool) {
        let kept = if accepted { &mut self.accepted } else { &mut self.refused };
        if kept.len() >= VERDICTS_KEPT {
            kept.clear();
        }
        kept.insert(key);
    }
}

impl PasswordChecker {
    pub(crate) fn new() -> Self {
        Self { running: Arc::new(Semaphore::new(1)), verdicts: Arc::default() }
    }

    /// Whether a request's `Authorization` has one of the users and that user's password. The check of an unknown user
    /// takes as long as that of a known user with a wrong password.
    pub(crate) async fn admits(&self, users: &Users, headers: &HeaderMap) -> bool {
        let Some((user, password)) = credentials(headers) else {
            return false;
        };
        let known = std::str::from_utf8(&user).ok().and_then(|user| users.get(user));
        let Some(hash) = known.or_else(|| users.values().next()) else {
            return false;
        };
        let key = digest(&[&user, hash.0.as_bytes(), &password]);
        let kept = lock(&self.verdicts).get(&key);
        match kept {
            Some(verdict) => verdict,
            None => self.check(key, hash, password, known.is_some()).await,
        }
    }

    async fn check(&self, key: [u8; 32], hash: &PasswordHash, password: Vec<u8>, known: bool) -> bool {
        let Ok(permit) = Arc::clone(&self.running).acquire_owned().await else {
            return false;
        };
        // The check before may have been of the same password.
        if let Some(verdict) = lock(&self.verdicts).get(&key) {
            return verdict;
        }
        let hash = hash.clone();
        let verdicts = Arc::clone(&self.verdicts);
        let (sender, receiver) = oneshot::channel();
        // Not a thread of the runtime: the end of the runtime would wait for the hash, which may take hours.
        let started = thread::Builder::new().name("bcrypt".to_owned()).spawn(move || {
            let right = bcrypt::verify(&password, &hash.0).unwrap_or(false);
            let verdict = right && known;
            lock(&verdicts).keep(key, verdict);
            // The thread owns the permit, so that the next check starts after this one even if the client has left.
            drop(permit);
            let _ = sender.send(verdict);
        });
        if let Err(error) = started {
            tracing::warn!(%error, "cannot start a thread to check a password");
            return false;
        }
        receiver.await.unwrap_or(false)
    }
}

fn lock(verdicts: &Mutex<Verdicts>) -> MutexGuard<'_, Verdicts> {
    // After a panic at most one verdict is missing, and its password is checked again.
    verdicts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// User and password ([RFC 7617](https://www.rfc-editor.org/rfc/rfc7617#section-2)).
fn credentials(headers: &HeaderMap) -> Option<(Vec<u8>, Vec<u8>)> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, encoded) = value.split_at_checked("Basic ".len())?;
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return None;
    }
    let mut user = STANDARD.decode(encoded.trim_ascii()).ok()?;
    let colon = user.iter().position(|&byte| byte == b':')?;
    let password = user.split_off(colon + 1);
    user.pop();
    Some((user, password))
}

fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        // The length keeps ("ab", "c") apart from ("a", "bc").
        digest.update(part.len().to_le_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_from_the_authorization_header() {
        for (value, expected) in [
            ("Basic YWxpY2U6c2VjcmV0", Some(("alice", "secret"))),
            ("basic YWxpY2U6c2VjcmV0", Some(("alice", "secret"))),
            ("Basic YTpiOmM=", Some(("a", "b:c"))),
            ("Basic Og==", Some(("", ""))),
            ("Basic YWxpY2U=", None),
            ("Basic !", None),
            ("Basic", None),
            ("Bearer YWxpY2U6c2VjcmV0", None),
        ] {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
            let expected = expected.map(|(user, password)| (user.into(), password.into()));
            assert_eq!(credentials(&headers), expected, "{value}");
        }
        assert_eq!(credentials(&HeaderMap::new()), None);
    }

    #[test]
    fn verdicts_are_bounded_and_guesses_do_not_displace_accepted_passwords() {
        let mut verdicts = Verdicts::default();
        let key = |n: u64| digest(&[&n.to_le_bytes()]);
        verdicts.keep(key(0), true);
        for n in 1..3000 {
            verdicts.keep(key(n), false);
        }
        assert_eq!(verdicts.get(&key(0)), Some(true));
        assert_eq!(verdicts.get(&key(2999)), Some(false));
        assert!(verdicts.refused.len() <= VERDICTS_KEPT);
    }

    #[test]
    fn only_bcrypt_hashes_are_accepted() {
        assert!(PasswordHash::parse(&bcrypt::hash("x", 4).unwrap()).is_some());
        assert!(PasswordHash::parse("$2y$10$short").is_none());
        assert!(PasswordHash::parse("secret").is_none());
    }
}
