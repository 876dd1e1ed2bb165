//! What becomes of clients when the server stops.

use std::time::Duration;

use genv_web::Limits;
use tokio::net::TcpStream;

use crate::site::Site;

#[tokio::test]
async fn a_response_that_is_being_read_is_finished_and_idle_connections_end_at_once() {
    let mut site = Site::start(Limits { drain_timeout: Duration::from_secs(600), ..Limits::default() }).await;
    let mut idle = site.connect().await;
    assert_eq!(idle.get("/").await.status, 200);
    let mut half = site.connect().await;
    half.send("GET / HT").await;
    let mut silent = site.connect().await;
    let mut reading = site.connect().await;
    reading.request("/large", "").await;
    site.until_handled(2).await;

    let stopped = site.stop();
    // None of these would end before the ten minutes are over if they were waited for.
    assert!(idle.rest().await.is_empty());
    assert!(half.rest().await.is_empty());
    assert!(silent.rest().await.is_empty());
    assert!(!stopped.is_finished());
    assert!(TcpStream::connect(site.address).await.is_err());

    let answer = reading.answer().await;
    assert_eq!((answer.status, answer.body.len()), (200, 64 << 20));
    assert!(reading.rest().await.is_empty());
    drop(reading);
    stopped.await.unwrap();
}

#[tokio::test]
async fn a_client_that_never_reads_does_not_keep_the_server_from_stopping() {
    let mut site = Site::start(Limits { drain_timeout: Duration::from_millis(100), ..Limits::default() }).await;
    let mut client = site.connect().await;
    client.request("/large", "").await;
    site.until_handled(1).await;
    site.stop().await.unwrap();
    assert!(client.rest().await.len() < 64 << 20);
}

#[tokio::test]
async fn an_address_is_free_again_as_soon_as_the_server_has_stopped() {
    let mut site = Site::start(Limits::default()).await;
    let mut client = site.connect().await;
    assert_eq!(client.get("/").await.status, 200);
    site.stop().await.unwrap();
    let address = site.address.to_string().parse().unwrap();
    genv_web::Server::bind(&[address], None, Limits::default()).await.unwrap();
}
