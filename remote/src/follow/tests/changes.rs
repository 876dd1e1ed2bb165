//! Hosts that send what changed.

use genv_core::model::Changes;

use tokio::time::sleep;

use super::*;
use crate::protocol::{ChangesReply, line};

/// What makes one snapshot into another, as it comes out of a session.
pub(super) fn between(before: &Snapshot, now: &Snapshot) -> Reply {
    let changes = Changes::between(before, now);
    let line = line(&ChangesReply { changes }).unwrap();
    serde_json::from_slice(&line).unwrap()
}

#[tokio::test(start_paused = true)]
async fn changes_are_followed_as_whole_snapshots_are_and_begin_anew_with_each_session() {
    let play = play(&[("a", &[Act::Change { snapshots: 12 }])]);
    let (mut stream, _fleet) = start(&play, "a");
    let mut seen = Vec::new();
    for _ in 0..30 {
        let publication = stream.next().await.unwrap();
        let published = host(&publication, "a").snapshot.clone().unwrap();
        let number = published.timestamp_seconds as u64;
        let expected = Snapshot { hostname: "a".to_owned(), ..snapshot(number) };
        assert_eq!(*published, expected);
        seen.push(number);
    }
    let stage = play.0.lock().unwrap();
    assert_eq!((stage.dialled["a"].len(), stage.open["a"]), (3, 1));
    assert!(seen.contains(&11) && seen[20..].contains(&2), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn changes_of_what_was_not_sent_end_the_session_with_the_reason() {
    for (after, expected) in [
        (0, "changes of a snapshot that it never sent"),
        (2, "does not fit to what it sent before: 9 environments from number 0 on, of 2"),
    ] {
        let play = play(&[("a", &[Act::Mistake { after }, WELL])]);
        let (mut stream, fleet) = start(&play, "a");
        // It is not dialled again before three quarters of a second have passed.
        sleep(INTERVAL * after as u32 + SECOND * 3 / 10).await;
        let NotEnforced { failure, .. } = fleet.enforce("a", json!(1)).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Protocol);
        assert!(failure.message.contains(expected), "{failure}");
        sleep(INTERVAL * 2).await;
        let publication = stream.next().await.unwrap();
        let a = host(&publication, "a");
        assert_eq!((a.up, error(a)), (true, ""));
        assert_eq!(play.0.lock().unwrap().dialled["a"].len(), 2);
    }
}
