//! Requests and their answers.

use genv_web::{Limits, Server};

use crate::test_server::{TestServer, patient};

#[tokio::test]
async fn head_has_the_length_and_no_body() {
    let server = TestServer::start(patient()).await;
    let mut client = server.connect().await;
    client.send("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n").await;
    let head = client.head().await;
    assert_eq!((head.status, head.headers["content-length"].as_str()), (200, "6"));
    // Were there a body, it would stand before the next head.
    assert_eq!(client.get("/").await.text(), "hello\n");
}

#[tokio::test]
async fn only_get_and_head_are_allowed() {
    let server = TestServer::start(patient()).await;
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"] {
        let mut client = server.connect().await;
        client.send(format!("{method} / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")).await;
        let response = client.response().await;
        assert_eq!((response.status, response.headers["allow"].as_str()), (405, "GET, HEAD"));
    }
    assert_eq!(server.handled(), 0);
}

#[tokio::test]
async fn gzip_is_sent_on_request_and_vary_informs_caches() {
    let server = TestServer::start(patient()).await;
    let mut client = server.connect().await;
    let plain = client.get("/gzip").await;
    assert_eq!((plain.text(), plain.headers.get("content-encoding")), ("plain", None));
    let gzip = client.get_with("/gzip", "Accept-Encoding: gzip\r\n").await;
    assert_eq!((gzip.text(), gzip.headers["content-encoding"].as_str()), ("gzip", "gzip"));
    for response in [plain, gzip] {
        assert_eq!(response.headers["vary"], "Accept-Encoding");
    }
}

#[tokio::test]
async fn a_client_that_closes_its_sending_side_is_still_answered() {
    let server = TestServer::start(patient()).await;
    let mut client = server.connect().await;
    client.request("/", "").await;
    client.end_sending().await;
    assert_eq!(client.response().await.text(), "hello\n");
    assert!(client.rest().await.is_empty());
}

#[tokio::test]
async fn a_handler_that_panics_costs_one_connection_and_no_place_in_flight() {
    let server = TestServer::start(Limits { max_requests: 1, ..patient() }).await;
    for _ in 0..3 {
        let mut client = server.connect().await;
        client.request("/panic", "").await;
        assert!(client.rest().await.is_empty());
    }
    assert_eq!(server.get("/").await.status, 200);
}

#[tokio::test]
async fn addresses_of_this_machine_are_listened_on_and_others_refused() {
    let bind = async |addresses: &[&str]| {
        let addresses: Vec<_> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        Server::bind(&addresses, None, patient()).await
    };
    // No host means all addresses of both families.
    let server = bind(&[":0"]).await.unwrap();
    let port = server.local_addresses()[0].port();
    for host in ["127.0.0.1", "::1"] {
        tokio::net::TcpStream::connect((host, port)).await.unwrap();
    }
    let server = bind(&["localhost:0", "[::1]:0"]).await.unwrap();
    let bound = server.local_addresses();
    assert!(bound[0].ip().is_loopback() && bound[0].is_ipv4(), "{bound:?}");
    assert!(bound[1].ip().is_loopback() && bound[1].is_ipv6(), "{bound:?}");
    let error = bind(&["192.0.2.1:9820"]).await.unwrap_err();
    assert!(error.to_string().starts_with("cannot listen on 192.0.2.1:9820: "), "{error}");
}
