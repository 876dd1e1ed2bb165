//! What a thousand cycles leave behind.

use tokio::runtime::Handle;

use super::*;

/// The most tasks that lived at any of so many cycles.
async fn most_tasks(stream: &mut SnapshotStream, play: &Play, cycles: usize) -> usize {
    let mut most = 0;
    for _ in 0..cycles {
        stream.next().await.unwrap();
        most = most.max(Handle::current().metrics().num_alive_tasks());
        let stage = play.0.lock().unwrap();
        assert!(stage.open.values().all(|open| *open <= 1), "{stage:?}");
    }
    most
}

#[tokio::test(start_paused = true)]
async fn hosts_in_trouble_leave_no_task_and_no_connection_behind_in_a_thousand_cycles() {
    let ends = |snapshots| Act::Deliver { snapshots, hangs: false };
    let hangs = |snapshots| Act::Deliver { snapshots, hangs: true };
    let refuses = Act::Refuse(FailureKind::Unreachable);
    let again = |acts: &[Act]| acts.iter().cycle().take(1500).cloned().collect::<Vec<_>>();
    let play = play(&[
        ("ends", &again(&[ends(20)])),
        ("hangs", &again(&[hangs(3), ends(5)])),
        ("refuses", &again(&[refuses.clone(), ends(2)])),
        ("silent", &again(&[Act::Silence, refuses, ends(1)])),
        ("mistaken", &again(&[Act::Mistake { after: 3 }])),
    ]);
    let (mut stream, _fleet) = start(&play, "ends,hangs,refuses,silent,mistaken");
    let first = most_tasks(&mut stream, &play, 100).await;
    most_tasks(&mut stream, &play, 800).await;
    let last = most_tasks(&mut stream, &play, 100).await;
    assert!(last <= first, "{first} tasks became {last}");
    let stage = play.0.lock().unwrap();
    for (name, dialled) in &stage.dialled {
        assert!(dialled.len() > 20, "{name}: {}", dialled.len());
    }
}
