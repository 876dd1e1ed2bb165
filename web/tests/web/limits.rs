//! Clients that ask for more than their share.

use std::time::Duration;

use genv_web::Limits;
use tokio::time::sleep;

use crate::site::Site;

fn impatient() -> Limits {
    Limits { head_timeout: Duration::from_secs(2), ..Limits::default() }
}

#[tokio::test]
async fn the_41st_request_in_flight_is_refused_until_one_is_read() {
    let site = Site::start(Limits::default()).await;
    let mut slow = Vec::new();
    for _ in 0..40 {
        let mut client = site.connect().await;
        client.request("/large", "").await;
        slow.push(client);
    }
    site.until_handled(40).await;

    let refused = site.get("/").await;
    assert_eq!(refused.status, 503);
    assert_eq!(
        refused.text(),
        "Not answered: 40 requests are in flight, as many as --web.max-requests allows. Try again.\n"
    );
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(site.get("/-/healthy").await.status, 200);

    assert_eq!(slow[0].answer().await.status, 200);
    while site.get("/").await.status != 200 {
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_gives_its_place_back() {
    let site = Site::start(Limits::new(1)).await;
    let mut client = site.connect().await;
    client.request("/large", "").await;
    site.until_handled(1).await;
    assert_eq!(site.get("/").await.status, 503);
    drop(client);
    while site.get("/").await.status != 200 {
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_client_that_never_reads_loses_its_connection_and_its_place() {
    let site = Site::start(Limits { response_timeout: Duration::from_secs(1), ..Limits::new(1) }).await;
    let mut client = site.connect().await;
    client.request("/large", "").await;
    while site.get("/").await.status != 200 {
        sleep(Duration::from_millis(2)).await;
    }
    assert!(client.rest().await.len() < 64 << 20);
}

#[tokio::test]
async fn without_a_maximum_any_number_is_in_flight() {
    let site = Site::start(Limits::new(0)).await;
    let mut slow = Vec::new();
    for _ in 0..60 {
        let mut client = site.connect().await;
        client.request("/large", "").await;
        slow.push(client);
    }
    site.until_handled(60).await;
    assert_eq!(site.get("/").await.status, 200);
}

#[tokio::test]
async fn a_head_that_never_ends_is_not_waited_for() {
    let site = Site::start(impatient()).await;
    let mut client = site.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: h\r\n").await;
    // One more header every now and then does not help.
    while client.try_send("X-More: 1\r\n").await.is_ok() {
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(site.handled(), 0);
}

#[tokio::test]
async fn a_slow_head_on_a_used_connection_is_not_waited_for_either() {
    let site = Site::start(impatient()).await;
    let mut client = site.connect().await;
    assert_eq!(client.get("/").await.status, 200);
    client.send("GET / HT").await;
    assert!(client.rest().await.is_empty());
    assert_eq!(site.handled(), 1);
}

#[tokio::test]
async fn a_connection_that_never_says_anything_is_closed() {
    let site = Site::start(impatient()).await;
    assert!(site.connect().await.rest().await.is_empty());
}

#[tokio::test]
async fn an_idle_connection_outlives_the_time_for_a_head_but_not_for_ever() {
    let site = Site::start(Limits {
        head_timeout: Duration::from_secs(2),
        idle_timeout: Duration::from_secs(8),
        ..Limits::default()
    })
    .await;
    let mut client = site.connect().await;
    assert_eq!(client.get("/").await.status, 200);
    sleep(Duration::from_secs(3)).await;
    assert_eq!(client.get("/").await.status, 200);
    assert!(client.rest().await.is_empty());
}

#[tokio::test]
async fn a_huge_head_is_refused_and_the_client_learns_why() {
    let site = Site::start(Limits::default()).await;
    let mut client = site.connect().await;
    let huge = format!("GET / HTTP/1.1\r\nHost: h\r\nX-Huge: {}\r\n\r\n", "x".repeat(300_000));
    client.send(huge).await;
    assert_eq!(client.head().await.status, 431);
    assert!(client.rest().await.is_empty());
    assert_eq!(site.handled(), 0);
}

#[tokio::test]
async fn too_many_headers_are_refused() {
    let site = Site::start(Limits::default()).await;
    let mut client = site.connect().await;
    client.request("/", &"A: b\r\n".repeat(500)).await;
    assert_eq!(client.head().await.status, 431);
}

#[tokio::test]
async fn what_is_no_http_is_refused() {
    let site = Site::start(Limits::default()).await;
    let mut client = site.connect().await;
    client.send("\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n").await;
    assert_eq!(client.head().await.status, 400);
}

#[tokio::test]
async fn an_unexpected_body_is_never_read_into_memory() {
    let site = Site::start(Limits::default()).await;
    let mut client = site.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000000\r\n\r\nbeginning").await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.text()), (200, "hello\n"));
    assert!(client.rest().await.is_empty());
}

#[tokio::test]
async fn a_small_unexpected_body_costs_nothing() {
    let site = Site::start(Limits::default()).await;
    let mut client = site.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody").await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(client.get("/").await.status, 200);
}

fn two_connections() -> Limits {
    Limits { max_connections: 2, ..Limits::default() }
}

#[tokio::test]
async fn clients_that_keep_idle_connections_keep_nobody_out() {
    let site = Site::start(two_connections()).await;
    let mut idle = Vec::new();
    for _ in 0..20 {
        let mut client = site.connect().await;
        assert_eq!(client.get("/").await.status, 200);
        idle.push(client);
    }
    let mut last = idle.pop().unwrap();
    assert_eq!(last.get("/").await.status, 200);
    // Whoever waited longest made room.
    assert!(idle[0].rest().await.is_empty());
}

#[tokio::test]
async fn clients_that_never_say_anything_keep_nobody_out() {
    let site = Site::start(two_connections()).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(site.connect().await);
    }
    assert_eq!(site.get("/").await.status, 200);
    assert!(silent[0].rest().await.is_empty());
}

#[tokio::test]
async fn connections_beyond_the_maximum_wait_while_all_are_being_answered() {
    let site = Site::start(two_connections()).await;
    let mut busy = Vec::new();
    for _ in 0..2 {
        let mut client = site.connect().await;
        client.request("/large", "").await;
        busy.push(client);
    }
    site.until_handled(2).await;
    let mut third = site.connect().await;
    third.request("/", "").await;
    {
        let mut answer = std::pin::pin!(third.answer());
        tokio::select! {
            biased;
            _ = &mut answer => panic!("a third connection was accepted"),
            () = sleep(Duration::from_millis(300)) => {}
        }
    }
    assert_eq!(site.handled(), 2);
    // As soon as one is answered and idle, it makes room.
    assert_eq!(busy[0].answer().await.body.len(), 64 << 20);
    assert_eq!(third.answer().await.status, 200);
}
