//! Clients of a server that stops.

use std::time::Duration;

use genv_web::Limits;
use tokio::net::TcpStream;

use crate::test_server::{TestServer, patient};

#[tokio::test]
async fn a_response_that_is_being_read_is_finished_and_idle_connections_end_at_once() {
    let mut server = TestServer::start(patient()).await;
    let mut idle = server.connect().await;
    assert_eq!(idle.get("/").await.status, 200);
    let mut half = server.connect().await;
    half.send("GET / HT").await;
    let mut silent = server.connect().await;
    let mut reading = server.connect().await;
    reading.request("/large", "").await;
    server.until_handled(2).await;

    let stopped = server.stop();
    // If the server waited for these, they would last an hour.
    assert!(idle.rest().await.is_empty());
    assert!(half.rest().await.is_empty());
    assert!(silent.rest().await.is_empty());
    assert!(!stopped.is_finished());
    assert!(TcpStream::connect(server.address).await.is_err());

    let response = reading.response().await;
    assert_eq!((response.status, response.body.len()), (200, 64 << 20));
    assert!(reading.rest().await.is_empty());
    drop(reading);
    stopped.await.unwrap();
}

#[tokio::test]
async fn a_client_that_never_reads_does_not_keep_the_server_from_stopping() {
    let mut server = TestServer::start(Limits { drain_timeout: Duration::from_millis(100), ..patient() }).await;
    let mut client = server.connect().await;
    client.request("/large", "").await;
    server.until_handled(1).await;
    server.stop().await.unwrap();
    assert!(client.rest().await.len() < 64 << 20);
    // The address is free again.
    let address = server.address.to_string().parse().unwrap();
    genv_web::Server::bind(&[address], None, patient()).await.unwrap();
}
