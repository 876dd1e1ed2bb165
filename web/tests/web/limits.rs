//! Clients beyond the limits.

use std::time::Duration;

use genv_web::Limits;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::test_server::{TestClient, TestServer, patient, until};

fn impatient() -> Limits {
    Limits { head_timeout: Duration::from_secs(2), ..patient() }
}

/// A connection with a request that was answered. A busy machine may take longer for that than a head may take.
async fn used(server: &TestServer) -> TestClient<TcpStream> {
    loop {
        let mut client = server.connect().await;
        if let Some(answer) = client.try_get("/").await {
            assert_eq!(answer.status, 200);
            return client;
        }
    }
}

/// So many clients that have asked for more than a connection holds, and read nothing.
async fn slow_clients(server: &TestServer, number: usize) -> Vec<TestClient<TcpStream>> {
    let mut slow = Vec::new();
    for _ in 0..number {
        let mut client = server.connect().await;
        client.request("/large", "").await;
        slow.push(client);
    }
    server.until_handled(number).await;
    slow
}

#[tokio::test]
async fn the_41st_request_in_flight_is_refused_until_one_is_read() {
    let server = TestServer::start(patient()).await;
    let mut slow = slow_clients(&server, 40).await;
    let refused = server.get("/").await;
    assert_eq!(refused.status, 503);
    assert_eq!(
        refused.text(),
        "Not answered: 40 requests are in flight, as many as --web.max-requests allows. Try again.\n"
    );
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(server.get("/-/healthy").await.status, 200);

    assert_eq!(slow[0].response().await.status, 200);
    until(async || server.get("/").await.status == 200).await;
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_permit() {
    let server = TestServer::start(Limits { max_requests: 1, ..patient() }).await;
    let slow = slow_clients(&server, 1).await;
    assert_eq!(server.get("/").await.status, 503);
    drop(slow);
    until(async || server.get("/").await.status == 200).await;
}

#[tokio::test]
async fn a_client_that_never_reads_loses_its_connection_and_its_permit() {
    let server =
        TestServer::start(Limits { response_timeout: Duration::from_secs(1), max_requests: 1, ..patient() }).await;
    let mut client = server.connect().await;
    client.request("/large", "").await;
    until(async || server.get("/").await.status == 200).await;
    assert!(client.rest().await.len() < 64 << 20);
}

#[tokio::test]
async fn without_a_maximum_any_number_is_in_flight() {
    let server = TestServer::start(Limits { max_requests: 0, ..patient() }).await;
    let _slow = slow_clients(&server, 60).await;
    assert_eq!(server.get("/").await.status, 200);
}

#[tokio::test]
async fn an_endless_head_is_dropped_at_the_timeout() {
    let server = TestServer::start(impatient()).await;
    let mut client = server.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: h\r\n").await;
    // Further headers do not extend the timeout.
    while client.try_send("X-More: 1\r\n").await.is_ok() {
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.handled(), 0);
}

#[tokio::test]
async fn a_silent_connection_and_a_slow_head_on_a_used_one_are_dropped_too() {
    let server = TestServer::start(impatient()).await;
    assert!(server.connect().await.rest().await.is_empty());
    let mut client = used(&server).await;
    let handled = server.handled();
    client.send("GET / HT").await;
    assert!(client.rest().await.is_empty());
    assert_eq!(server.handled(), handled);
}

#[tokio::test]
async fn an_idle_connection_outlives_the_time_for_a_head() {
    let server = TestServer::start(impatient()).await;
    let mut client = used(&server).await;
    sleep(impatient().head_timeout * 3 / 2).await;
    assert_eq!(client.get("/").await.status, 200);
}

#[tokio::test]
async fn an_idle_connection_is_closed_in_the_end() {
    let server = TestServer::start(Limits { idle_timeout: Duration::from_secs(1), ..patient() }).await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/").await.status, 200);
    assert!(client.rest().await.is_empty());
}

#[tokio::test]
async fn a_huge_head_is_answered_431_and_what_is_not_http_400() {
    let server = TestServer::start(patient()).await;
    for (bytes, status) in [
        (format!("GET / HTTP/1.1\r\nHost: h\r\nX-Huge: {}\r\n\r\n", "x".repeat(300_000)), 431),
        (format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "A: b\r\n".repeat(500)), 431),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n".to_owned(), 400),
    ] {
        let mut client = server.connect().await;
        client.send(bytes).await;
        assert_eq!(client.head().await.status, status);
        assert!(client.rest().await.is_empty());
    }
    assert_eq!(server.handled(), 0);
}

#[tokio::test]
async fn an_unexpected_body_is_never_read_into_memory() {
    let server = TestServer::start(patient()).await;
    let mut client = server.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000000\r\n\r\nbeginning").await;
    let response = client.response().await;
    assert_eq!((response.status, response.text()), (200, "hello\n"));
    assert!(client.rest().await.is_empty());
    // A small one costs nothing.
    let mut client = server.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody").await;
    assert_eq!(client.response().await.status, 200);
    assert_eq!(client.get("/").await.status, 200);
}

fn two_connections() -> Limits {
    Limits { max_connections: 2, ..patient() }
}

#[tokio::test]
async fn idle_connections_block_no_client() {
    let server = TestServer::start(two_connections()).await;
    let mut idle = Vec::new();
    for _ in 0..20 {
        let mut client = server.connect().await;
        assert_eq!(client.get("/").await.status, 200);
        idle.push(client);
    }
    let mut last = idle.pop().unwrap();
    assert_eq!(last.get("/").await.status, 200);
    // The connection that waited longest was closed.
    assert!(idle[0].rest().await.is_empty());
}

#[tokio::test]
async fn silent_clients_block_no_client() {
    let server = TestServer::start(two_connections()).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(server.connect().await);
    }
    assert_eq!(server.get("/").await.status, 200);
    assert!(silent[0].rest().await.is_empty());
}

#[tokio::test]
async fn connections_beyond_the_maximum_wait_while_all_are_being_answered() {
    let server = TestServer::start(two_connections()).await;
    let mut busy = slow_clients(&server, 2).await;
    let mut third = server.connect().await;
    third.request("/", "").await;
    {
        let mut response = std::pin::pin!(third.response());
        tokio::select! {
            biased;
            _ = &mut response => panic!("a third connection was accepted"),
            () = sleep(Duration::from_millis(300)) => {}
        }
    }
    assert_eq!(server.handled(), 2);
    // An answered, idle connection is closed for the new one.
    assert_eq!(busy[0].response().await.body.len(), 64 << 20);
    assert_eq!(third.response().await.status, 200);
}
