//! The publications of a start.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_publication_follows_as_soon_as_each_host_has_delivered_or_failed() {
    // Four connect at once, and each fails after 5 s.
    let names: Vec<String> = (1..=12).map(|number| format!("silent{number}")).collect();
    let behaviours: Vec<(&str, &[Behaviour])> =
        names.iter().map(|name| (name.as_str(), &[Behaviour::NeverConnects][..])).collect();
    let lab = lab(&behaviours);
    let started = Instant::now();
    let (mut stream, _fleet) = start(&lab, &names.join(","));
    for seconds in [10, 15, 25] {
        stream.next().await.unwrap();
        assert_eq!(started.elapsed().as_secs(), seconds);
    }
}
