//! What is asked and what is answered.

use genv_web::{Limits, ListenAddress, Server};

use crate::site::Site;

#[tokio::test]
async fn a_connection_answers_one_request_after_another() {
    let site = Site::start(Limits::default()).await;
    let mut client = site.connect().await;
    for _ in 0..3 {
        let answer = client.get("/").await;
        assert_eq!((answer.status, answer.text()), (200, "hello\n"));
        assert_eq!(answer.headers["content-type"], "text/plain; charset=utf-8");
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let site = Site::start(Limits::new(1)).await;
    let mut client = site.connect().await;
    let requests: String = (0..20).map(|n| format!("GET /echo?text={n} HTTP/1.1\r\nHost: h\r\n\r\n")).collect();
    client.send(requests).await;
    for n in 0..20 {
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.text()), (200, format!("{n}\n").as_str()));
    }
}

#[tokio::test]
async fn head_tells_the_length_and_sends_no_body() {
    let site = Site::start(Limits::default()).await;
    let mut client = site.connect().await;
    client.send("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n").await;
    let head = client.head().await;
    assert_eq!((head.status, head.headers["content-length"].as_str()), (200, "6"));
    // Were there a body, it would stand before the next head.
    assert_eq!(client.get("/").await.text(), "hello\n");
}

#[tokio::test]
async fn only_get_and_head_are_allowed() {
    let site = Site::start(Limits::default()).await;
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"] {
        let mut client = site.connect().await;
        client.send(format!("{method} / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.headers["allow"].as_str()), (405, "GET, HEAD"));
    }
    assert_eq!(site.handled(), 0);
}

#[tokio::test]
async fn an_unknown_path_is_not_found() {
    let site = Site::start(Limits::default()).await;
    assert_eq!(site.get("/metrics/../nowhere").await.status, 404);
}

#[tokio::test]
async fn gzip_goes_to_those_who_ask_and_caches_are_told_so() {
    let site = Site::start(Limits::default()).await;
    let mut client = site.connect().await;
    let plain = client.get("/gzip").await;
    assert_eq!((plain.text(), plain.headers.get("content-encoding")), ("plain", None));
    let gzip = client.get_with("/gzip", "Accept-Encoding: gzip\r\n").await;
    assert_eq!((gzip.text(), gzip.headers["content-encoding"].as_str()), ("gzip", "gzip"));
    for answer in [plain, gzip] {
        assert_eq!(answer.headers["vary"], "Accept-Encoding");
    }
}

#[tokio::test]
async fn a_client_that_closes_its_sending_side_is_still_answered() {
    let site = Site::start(Limits::default()).await;
    let mut client = site.connect().await;
    client.request("/", "").await;
    client.end_sending().await;
    assert_eq!(client.answer().await.text(), "hello\n");
    assert!(client.rest().await.is_empty());
}

#[tokio::test]
async fn a_handler_that_panics_costs_one_connection_and_no_place_in_flight() {
    let site = Site::start(Limits::new(1)).await;
    for _ in 0..3 {
        let mut client = site.connect().await;
        client.request("/panic", "").await;
        assert!(client.rest().await.is_empty());
    }
    assert_eq!(site.get("/").await.status, 200);
}

#[tokio::test]
async fn a_port_in_use_says_what_why_and_what_to_do() {
    let site = Site::start(Limits::default()).await;
    let taken: ListenAddress = site.address.to_string().parse().unwrap();
    let error = Server::bind(&[taken], None, Limits::default()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot listen on {}: Address already in use (os error 98). Another program holds this port \
             ('ss -ltnp' tells which): stop it, or choose another port with --web.listen-address.",
            site.address
        )
    );
}

#[tokio::test]
async fn no_host_means_all_addresses_of_both_families() {
    let all = ":0".parse().unwrap();
    let server = Server::bind(&[all], None, Limits::default()).await.unwrap();
    let port = server.local_addresses()[0].port();
    for host in ["127.0.0.1", "::1"] {
        tokio::net::TcpStream::connect((host, port)).await.unwrap();
    }
}

#[tokio::test]
async fn a_host_name_and_several_addresses_are_listened_on() {
    let addresses = ["localhost:0", "[::1]:0"].map(|text| text.parse().unwrap());
    let server = Server::bind(&addresses, None, Limits::default()).await.unwrap();
    let bound = server.local_addresses();
    assert!(bound[0].ip().is_loopback() && bound[0].is_ipv4(), "{bound:?}");
    assert!(bound[1].ip().is_loopback() && bound[1].is_ipv6(), "{bound:?}");
}

#[tokio::test]
async fn an_address_of_another_machine_cannot_be_listened_on() {
    let elsewhere = "192.0.2.1:9820".parse().unwrap();
    let error = Server::bind(&[elsewhere], None, Limits::default()).await.unwrap_err();
    assert!(error.to_string().starts_with("cannot listen on 192.0.2.1:9820: "), "{error}");
}
