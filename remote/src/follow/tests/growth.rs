//! The number of tasks and connections after a thousand cycles.

use tokio::runtime::Handle;

use super::*;

/// The largest number of tasks during this many cycles.
async fn most_tasks(stream: &mut SnapshotStream, lab: &Lab, cycles: usize) -> usize {
    let mut max = 0;
    for _ in 0..cycles {
        stream.next().await.unwrap();
        max = max.max(Handle::current().metrics().num_alive_tasks());
        let state = lab.0.lock().unwrap();
        assert!(state.open.values().all(|open| *open <= 1), "{state:?}");
    }
    max
}

#[tokio::test(start_paused = true)]
async fn failing_hosts_leave_no_task_and_no_connection_behind_in_a_thousand_cycles() {
    let ends = |snapshots| Behaviour::Deliver { snapshots, hangs: false };
    let hangs = |snapshots| Behaviour::Deliver { snapshots, hangs: true };
    let refuses = Behaviour::Refuse(FailureKind::Unreachable);
    let again = |behaviours: &[Behaviour]| behaviours.iter().cycle().take(1500).cloned().collect::<Vec<_>>();
    let lab = lab(&[
        ("ends", &again(&[ends(20)])),
        ("hangs", &again(&[hangs(3), ends(5)])),
        ("refuses", &again(&[refuses.clone(), ends(2)])),
        ("silent", &again(&[Behaviour::NeverConnects, refuses, ends(1)])),
        ("mistaken", &again(&[Behaviour::InvalidChanges { after: 3 }])),
    ]);
    let (mut stream, _fleet) = start(&lab, "ends,hangs,refuses,silent,mistaken");
    let first = most_tasks(&mut stream, &lab, 100).await;
    most_tasks(&mut stream, &lab, 800).await;
    let last = most_tasks(&mut stream, &lab, 100).await;
    assert!(last <= first, "{first} tasks grew to {last}");
    let state = lab.0.lock().unwrap();
    for (name, dialled) in &state.dialled {
        assert!(dialled.len() > 20, "{name}: {}", dialled.len());
    }
}
