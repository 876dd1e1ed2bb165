//! Attempts to sign in, spaced out.
//!
//! OpenSSH's server adds up a penalty for each connection that ends before it has signed in: 1 s, and 5 s after a refused key
//! (`PerSourcePenalties`, since 9.8). From 15 s on it refuses every connection from that address. So after a failed attempt
//! the server is left alone for the longest of these penalties, and for longer where only a person can mend the cause. All hosts
//! behind a jump host share its attempts.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::{FailureKind, HostFailure};

/// The time after an attempt that ended before it had signed in, within which its error is that of every other attempt.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The same after an error that only a person can correct: less than the least wait of a host before its next attempt.
const AFTER_REFUSAL: Duration = Duration::from_secs(40);

/// The same after an attempt that reached no server, which adds no penalty: for those that wait behind it.
const AFTER_NO_ANSWER: Duration = Duration::from_millis(500);

/// The time after a success within which attempts need not wait for each other.
const AFTER_SUCCESS: Duration = Duration::from_secs(10);

/// Attempts at one server at once after a success: fewer than sshd allows before it has signed them in (`MaxStartups`, 10).
const AT_ONCE: u32 = 4;

/// The last attempts to sign in at servers. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct LoginAttempts(Arc<Mutex<HashMap<String, Arc<Server>>>>);

/// A server: its last attempt, and the permits for the next ones. An attempt after a success takes one permit, any other all.
#[derive(Debug)]
struct Server {
    last: Mutex<Option<LastAttempt>>,
    permits: Semaphore,
}

impl Default for Server {
    fn default() -> Self {
        Self { last: Mutex::default(), permits: Semaphore::new(AT_ONCE as usize) }
    }
}

impl Server {
    /// How an attempt would end now, as the last one tells; absent if it does not.
    fn recent(&self) -> Option<Result<(), HostFailure>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last.as_ref().filter(|last| last.is_recent())?;
        Some(last.failure.clone().map_or(Ok(()), Err))
    }

    /// Notes the end of an attempt. A success that began beside a failure tells nothing of the next attempt.
    fn note<T>(&self, result: &Result<T, HostFailure>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let has_failed = last.as_ref().is_some_and(|last| last.failure.is_some() && last.is_recent());
        if result.is_err() || !has_failed {
            *last = Some(LastAttempt { ended: Instant::now(), failure: result.as_ref().err().cloned() });
        }
    }
}

#[derive(Debug)]
struct LastAttempt {
    ended: Instant,
    /// Absent after a success.
    failure: Option<HostFailure>,
}

impl LastAttempt {
    /// Whether the attempt tells how another one would end now.
    fn is_recent(&self) -> bool {
        let counts = match self.failure.as_ref().map(|failure| failure.kind) {
            None => AFTER_SUCCESS,
            Some(FailureKind::Unreachable | FailureKind::Unresolved) => AFTER_NO_ANSWER,
            Some(FailureKind::Authentication | FailureKind::HostKey | FailureKind::Unsupported) => AFTER_REFUSAL,
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
        loop {
            let permits = if matches!(server.recent(), Some(Ok(()))) { 1 } else { AT_ONCE };
            // The semaphore is never closed.
            let _permit = server.permits.acquire_many(permits).await;
            // An attempt may have ended during the wait.
            let takes_right_number = match server.recent() {
                Some(Err(failure)) => return Err(failure),
                Some(Ok(())) => permits == 1,
                None => permits == AT_ONCE,
            };
            if takes_right_number {
                let result = attempt.await;
                server.note(&result);
                return result;
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
        let ended = tokio::join!(one(), one(), one(), one(), one(), one(), one(), one());
        let (a, b, c, d, e, f, g, h) = ended;
        let errors = [a, b, c, d, e, f, g, h].into_iter().flatten().collect();
        (made.get(), errors)
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_fails_is_asked_once_in_a_while_by_all() {
        for (kind, seconds) in [(FailureKind::Disconnected, 5), (FailureKind::Authentication, 40)] {
            let attempts = LoginAttempts::default();
            for _ in 0..3 {
                let (made, errors) = many(&attempts, "jump", Some(kind)).await;
                assert_eq!((made, errors), (1, vec!["no 1".to_owned(); 8]));
                advance(Duration::from_secs(seconds - 1)).await;
                assert_eq!(many(&attempts.clone(), "jump", Some(kind)).await.0, 0);
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
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_after_a_success_stops_those_that_wait() {
        let attempts = LoginAttempts::default();
        assert_eq!(many(&attempts, "jump", None).await.0, 8);
        let (made, errors) = many(&attempts, "jump", Some(FailureKind::Disconnected)).await;
        assert_eq!((made, errors.len()), (AT_ONCE, 8));

        advance(Duration::from_secs(10)).await;
        assert_eq!(many(&attempts, "jump", None).await.0, 8);
        let after = |seconds: u64, result: Result<(), HostFailure>| async move {
            sleep(Duration::from_secs(seconds)).await;
            result
        };
        let failure = HostFailure::new(FailureKind::Disconnected, "no");
        let failing = attempts.make("jump", after(1, Err(failure)));
        let ended = tokio::join!(failing, attempts.make("jump", after(2, Ok(()))));
        assert!(ended.0.is_err() && ended.1.is_ok());
        assert!(attempts.make("jump", after(0, Ok(()))).await.is_err());
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
