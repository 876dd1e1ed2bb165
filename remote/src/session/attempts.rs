//! Attempts to sign in, spaced out.
//!
//! OpenSSH's server adds up a penalty for each connection that ends before it has signed in: 1 s, and 5 s after a refused key
//! (`PerSourcePenalties`, since 9.8). From 15 s on it refuses every connection from that address. So after a failed attempt
//! the server is left alone for the longest of these penalties, and all hosts behind a jump host share its attempts.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::{FailureKind, HostFailure};

/// The time after an attempt that ended before it had signed in, within which its error is that of every other attempt.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The same after an attempt that reached no server, which adds no penalty: for those that wait behind it.
const AFTER_NO_ANSWER: Duration = Duration::from_millis(500);

/// The time after a success within which attempts need not wait for each other.
const AFTER_SUCCESS: Duration = Duration::from_secs(10);

/// The last attempts to sign in at servers. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct LoginAttempts(Arc<Mutex<HashMap<String, Arc<Server>>>>);

/// The last attempt at a server. Whoever holds the lock makes the next one.
type Server = tokio::sync::Mutex<Option<LastAttempt>>;

#[derive(Debug)]
struct LastAttempt {
    ended: Instant,
    /// Absent after a success.
    failure: Option<HostFailure>,
}

impl LastAttempt {
    fn of<T>(result: &Result<T, HostFailure>) -> Self {
        Self { ended: Instant::now(), failure: result.as_ref().err().cloned() }
    }

    /// Whether the attempt tells how another one would end now.
    fn is_recent(&self) -> bool {
        let counts = match self.failure.as_ref().map(|failure| failure.kind) {
            None => AFTER_SUCCESS,
            Some(FailureKind::Unreachable | FailureKind::Unresolved) => AFTER_NO_ANSWER,
            Some(_) => AFTER_FAILURE,
        };
        self.ended.elapsed() < counts
    }
}

impl LoginAttempts {
    /// Connects and signs in at a server, unless the last attempt there failed just now: then its error is the result.
    /// `server` is the way to it, as this machine calls it.
    ///
    /// # Errors
    /// This attempt failed, or the last one.
    pub(super) async fn make<T>(
        &self,
        server: &str,
        attempt: impl Future<Output = Result<T, HostFailure>>,
    ) -> Result<T, HostFailure> {
        let server = {
            let mut servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(servers.entry(server.to_owned()).or_default())
        };
        let mut last = server.lock().await;
        let recent = last.as_ref().filter(|last| last.is_recent()).map(|last| last.failure.clone());
        match recent {
            Some(Some(failure)) => Err(failure),
            Some(None) => {
                drop(last);
                let result = attempt.await;
                *server.lock().await = Some(LastAttempt::of(&result));
                result
            }
            None => {
                let result = attempt.await;
                *last = Some(LastAttempt::of(&result));
                result
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::task::yield_now;
    use tokio::time::{advance, sleep};

    use super::*;

    /// Attempts of many at once; how many reached the server, and the errors.
    async fn many(attempts: &LoginAttempts, server: &str, kind: Option<FailureKind>) -> (u32, Vec<String>) {
        let made = Cell::new(0);
        let one = || async {
            let attempt = async {
                made.set(made.get() + 1);
                yield_now().await;
                kind.map_or(Ok(()), |kind| Err(HostFailure::new(kind, format!("no {}", made.get()))))
            };
            attempts.make(server, attempt).await.err().map(|failure| failure.message)
        };
        let ended = [tokio::join!(one(), one(), one(), one()), tokio::join!(one(), one(), one(), one())];
        let errors = ended.into_iter().flat_map(|(a, b, c, d)| [a, b, c, d]);
        let errors = errors.flatten().collect();
        (made.get(), errors)
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_refuses_is_asked_once_in_five_seconds_by_all() {
        let attempts = LoginAttempts::default();
        let refused = Some(FailureKind::Authentication);
        for _ in 0..3 {
            let (made, errors) = many(&attempts, "jump", refused).await;
            assert_eq!((made, errors), (1, vec!["no 1".to_owned(); 8]));
            advance(Duration::from_secs(4)).await;
            assert_eq!(many(&attempts.clone(), "jump", refused).await.0, 0);
            assert_eq!(many(&attempts, "jump other", None).await, (8, vec![]));
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!(many(&attempts, "jump", None).await, (8, vec![]));
        // Whoever waits behind an attempt without an answer shares its error; the next attempt is soon.
        advance(Duration::from_secs(10)).await;
        assert_eq!(many(&attempts, "jump", Some(FailureKind::Unreachable)).await.0, 1);
        advance(Duration::from_secs(1)).await;
        assert_eq!(many(&attempts, "jump", None).await.0, 8);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_success_nobody_waits_for_another() {
        let attempts = LoginAttempts::default();
        let attempt = || async {
            sleep(Duration::from_secs(1)).await;
            Ok(())
        };
        let one = || attempts.make("jump", attempt());
        let started = Instant::now();
        one().await.unwrap();
        let (first, second) = tokio::join!(one(), one());
        assert!(first.is_ok() && second.is_ok());
        // By the virtual clock.
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    }
}
