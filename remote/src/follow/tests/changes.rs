//! Hosts that send changes.

use genv_core::model::Changes;

use tokio::time::sleep;

use super::*;
use crate::protocol::{ChangesReply, line};

/// The reply with the changes between two snapshots, as a client parses it.
pub(super) fn between(before: &Snapshot, now: &Snapshot) -> Reply {
    let changes = Changes::between(before, now);
    let line = line(&ChangesReply { changes }).unwrap();
    serde_json::from_slice(&line).unwrap()
}

#[tokio::test(start_paused = true)]
async fn changes_give_the_same_snapshots_as_whole_replies_in_each_session() {
    let lab = lab(&[("a", &[Behaviour::Change { snapshots: 12 }])]);
    let (mut stream, _fleet) = start(&lab, "a");
    let mut seen = Vec::new();
    for _ in 0..30 {
        let publication = stream.next().await.unwrap();
        let published = host(&publication, "a").snapshot.clone().unwrap();
        let number = published.timestamp_seconds as u64;
        let expected = Snapshot { hostname: "a".to_owned(), ..snapshot(number) };
        assert_eq!(*published, expected);
        seen.push(number);
    }
    let state = lab.0.lock().unwrap();
    assert_eq!((state.dialled["a"].len(), state.open["a"]), (3, 1));
    assert!(seen.contains(&11) && seen[20..].contains(&2), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn changes_that_do_not_fit_end_the_session_with_the_reason() {
    for (after, expected) in [
        (0, "changes of a snapshot that it never sent"),
        (2, "do not fit its last snapshot: environments: 7 items from number 0 on, of 2"),
    ] {
        let lab = lab(&[("a", &[Behaviour::InvalidChanges { after }, DELIVERS])]);
        let (mut stream, fleet) = start(&lab, "a");
        // The next attempt comes after three quarters of a second or later.
        sleep(INTERVAL * after as u32 + SECOND * 3 / 10).await;
        let NotEnforced { failure, .. } = fleet.enforce("a", json!(1)).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Protocol);
        assert!(failure.message.contains(expected), "{failure}");
        sleep(INTERVAL * 2).await;
        let publication = stream.next().await.unwrap();
        let a = host(&publication, "a");
        assert_eq!((a.up, error(a)), (true, ""));
        assert_eq!(lab.0.lock().unwrap().dialled["a"].len(), 2);
    }
}
