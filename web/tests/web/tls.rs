//! HTTPS and client certificates.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, io};

use genv_web::Limits;
use rcgen::SanType;
use tokio::net::TcpStream;
use tokio_rustls::rustls::{HandshakeKind, version};

use crate::certificates::{Authority, TestCertificate, TlsClient, dns, shake_hands};
use crate::config_file::ConfigFile;
use crate::test_server::{TestClient, TestServer, patient, until};

const SERVER: &str = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n";
const VERIFIED: &str = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n";

/// A configuration that serves a certificate for `localhost`, with more lines about TLS.
fn config(authority: &Authority, more: &str) -> ConfigFile {
    let file = ConfigFile::new(&format!("{SERVER}{more}"));
    install(&file, &authority.issue_for_host("localhost"));
    file.write("ca.crt", &authority.pem());
    file
}

async fn served(more: &str) -> (Authority, ConfigFile, TestServer) {
    let authority = Authority::new("the lab");
    let file = config(&authority, more);
    let server = file.serve(patient()).await;
    (authority, file, server)
}

fn install(file: &ConfigFile, identity: &TestCertificate) {
    file.write("server.crt", &identity.certificate);
    file.write("server.key", &identity.key);
}

#[tokio::test]
async fn requests_are_answered_over_tls_1_2_and_1_3() {
    let (authority, _file, server) = served("").await;
    for version in [&version::TLS12, &version::TLS13] {
        let client = TlsClient::trusting(&authority).speaking(version);
        let mut client = client.connect(&server).await.unwrap();
        for _ in 0..3 {
            assert_eq!(client.get("/").await.text(), "hello\n");
        }
    }
}

#[tokio::test]
async fn plain_http_on_the_https_port_is_answered_400() {
    let (_, _file, server) = served("").await;
    let mut client = server.connect().await;
    client.request("/", "").await;
    let response = String::from_utf8(client.rest().await).unwrap();
    assert!(response.starts_with("HTTP/1.0 400 Bad Request\r\n"), "{response}");
    assert!(response.ends_with("This port serves HTTPS: use https://.\n"), "{response}");
}

#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_failed_handshake_is_logged_with_its_client_once_a_minute() {
    let lines = LogBuffer::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    let _logging = tracing::subscriber::set_default(log);
    // With one subscriber, tracing asks that of the thread which logs a line first, and other tests have none. With two it
    // asks both.
    let _other = tracing::Dispatch::new(tracing_subscriber::registry());

    let began = Instant::now();
    let (_, _file, mut server) = served("").await;
    // A check whether the port is open is not a failed handshake.
    server.connect().await.end_sending().await;
    let stranger = Authority::new("another authority");
    for _ in 0..5 {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let handshake = TlsClient::trusting(&stranger).connector().connect("localhost".try_into().unwrap(), stream);
        let (_, stream) = handshake.into_fallible().await.unwrap_err();
        // The server reads the reason, and closes the connection.
        TestClient::new(stream).rest().await;
    }
    let minutes = usize::try_from(began.elapsed().as_secs() / 60).unwrap();
    server.stop().await.unwrap();
    let log = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!((1..=1 + minutes).contains(&log.matches("a TLS handshake failed").count()), "{log}");
    assert!(log.contains("WARN") && log.contains("client=127.0.0.1:"), "{log}");
    assert!(log.contains("UnknownCA"), "{log}");
}

#[tokio::test]
async fn a_handshake_that_is_never_finished_is_not_waited_for() {
    let authority = Authority::new("the lab");
    let limits = Limits { head_timeout: Duration::from_millis(200), ..patient() };
    let file = config(&authority, "");
    let server = file.serve(limits).await;
    let mut silent = server.connect().await;
    let mut half = server.connect().await;
    half.send(b"\x16\x03\x01").await;
    assert!(silent.rest().await.is_empty());
    assert!(half.rest().await.is_empty());
}

#[tokio::test]
async fn stopping_finishes_a_response_over_tls() {
    let (authority, _file, mut server) = served("").await;
    let trusting = TlsClient::trusting(&authority);
    let mut reading = trusting.connect(&server).await.unwrap();
    let mut idle = trusting.connect(&server).await.unwrap();
    assert_eq!(idle.get("/").await.status, 200);
    reading.request("/large", "").await;
    server.until_handled(2).await;
    let stopped = server.stop();
    assert!(idle.rest().await.is_empty());
    assert_eq!(reading.response().await.body.len(), 64 << 20);
    stopped.await.unwrap();
}

#[tokio::test]
async fn each_client_auth_type_accepts_its_certificates() {
    let (authority, stranger) = (Authority::new("the lab"), Authority::new("elsewhere"));
    let known = authority.issue_for_host("prometheus");
    let unknown = stranger.issue_for_host("prometheus");
    // Whether a client is accepted without a certificate, with a known one, with an unknown one.
    for (kind, expected) in [
        ("NoClientCert", [true, true, true]),
        ("RequestClientCert", [true, true, true]),
        ("RequireAnyClientCert", [false, true, true]),
        ("RequireClientCert", [false, true, true]),
        ("VerifyClientCertIfGiven", [true, true, false]),
        ("RequireAndVerifyClientCert", [false, true, false]),
    ] {
        let verifies = kind.contains("Verify");
        let ca = if verifies { "  client_ca_file: ca.crt\n" } else { "" };
        let file = config(&authority, &format!("  client_auth_type: {kind}\n{ca}"));
        let server = file.serve(patient()).await;
        let client = || TlsClient::trusting(&authority);
        for version in [&version::TLS12, &version::TLS13] {
            let clients = [client(), client().with(&known), client().with(&unknown)];
            for (client, expected) in clients.into_iter().zip(expected) {
                let status = client.speaking(version).status(&server).await;
                assert_eq!(status, expected.then_some(200), "{kind}");
            }
        }
        assert_eq!(server.handled(), 2 * expected.iter().filter(|accepted| **accepted).count());
    }
}

#[tokio::test]
async fn a_client_needs_one_of_the_allowed_names() {
    let names = "[prometheus, 10.1.2.3, 'fd00::1', ops@lab.example, 'spiffe://lab/p']";
    let (authority, _file, server) = served(&format!("{VERIFIED}  client_allowed_sans: {names}\n")).await;
    let uri = |text: &str| SanType::URI(text.try_into().unwrap());
    let email = |text: &str| SanType::Rfc822Name(text.try_into().unwrap());
    for (names, allowed) in [
        (vec![dns("prometheus")], true),
        (vec![dns("other"), dns("prometheus")], true),
        (vec![SanType::IpAddress("10.1.2.3".parse().unwrap())], true),
        (vec![SanType::IpAddress("fd00::1".parse().unwrap())], true),
        (vec![email("ops@lab.example")], true),
        (vec![uri("spiffe://lab/p")], true),
        (vec![], false),
        (vec![dns("prometheus.example")], false),
        (vec![dns("*"), dns("10.1.2.4")], false),
        (vec![uri("spiffe://lab/p/q")], false),
    ] {
        let shown = format!("{names:?}");
        let client = TlsClient::trusting(&authority).with(&authority.issue(names));
        let status = client.status(&server).await;
        assert_eq!(status, allowed.then_some(200), "{shown}");
    }
    // An allowed name in a certificate of another authority is refused.
    let forged = Authority::new("elsewhere").issue_for_host("prometheus");
    assert_eq!(TlsClient::trusting(&authority).with(&forged).status(&server).await, None);
}

#[tokio::test]
async fn a_renewed_certificate_is_served_from_the_next_connection_on() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let file = config(&old, "");
    let server = file.serve(patient()).await;
    let mut open = TlsClient::trusting(&old).connect(&server).await.unwrap();
    assert_eq!(open.get("/").await.status, 200);
    assert_eq!(TlsClient::trusting(&new).status(&server).await, None);

    install(&file, &new.issue_for_host("localhost"));
    until(async || TlsClient::trusting(&new).status(&server).await == Some(200)).await;
    assert_eq!(TlsClient::trusting(&old).status(&server).await, None);
    assert_eq!(open.get("/").await.status, 200);
}

#[tokio::test]
async fn a_broken_certificate_refuses_connections_until_it_is_mended() {
    let (authority, file, server) = served("").await;
    let client = TlsClient::trusting(&authority);
    assert_eq!(client.status(&server).await, Some(200));
    let other = authority.issue_for_host("localhost");
    file.write("server.crt", &other.certificate);
    until(async || client.status(&server).await.is_none()).await;
    file.write("server.key", &other.key);
    until(async || client.status(&server).await == Some(200)).await;
    fs::remove_file(file.folder().join("server.key")).unwrap();
    until(async || client.status(&server).await.is_none()).await;
}

#[tokio::test]
async fn tls_is_not_dropped_when_its_configuration_is() {
    let (authority, file, server) = served("").await;
    file.write("web.yml", "");
    until(async || TlsClient::trusting(&authority).status(&server).await.is_none()).await;
    let mut client = server.connect().await;
    client.request("/", "").await;
    let response = String::from_utf8(client.rest().await).unwrap();
    assert!(response.starts_with("HTTP/1.0 400 "), "{response}");
}

#[tokio::test]
async fn a_client_certificate_is_verified_on_every_connection() {
    for (more, second_handshake) in [("", HandshakeKind::Resumed), (VERIFIED, HandshakeKind::Full)] {
        let (authority, _file, server) = served(more).await;
        let client = TlsClient::trusting(&authority).with(&authority.issue_for_host("prometheus"));
        let connector = client.connector();
        for expected in [HandshakeKind::Full, second_handshake] {
            let stream = shake_hands(&connector, &server).await.unwrap();
            let kind = stream.get_ref().1.handshake_kind();
            let mut client = TestClient::new(stream);
            assert_eq!(client.get("/").await.status, 200);
            assert_eq!(kind, Some(expected), "{more}");
        }
    }
}

#[tokio::test]
async fn a_client_whose_authority_is_replaced_is_refused() {
    let (authority, file, server) = served(VERIFIED).await;
    let client = TlsClient::trusting(&authority).with(&authority.issue_for_host("prometheus"));
    assert_eq!(client.status(&server).await, Some(200));
    file.write("ca.crt", &Authority::new("the next").pem());
    until(async || client.status(&server).await.is_none()).await;
}

#[tokio::test]
async fn versions_suites_and_curves_are_as_configured() {
    // Whether TLS 1.2 and TLS 1.3 clients are accepted.
    for (more, expected) in [
        ("  min_version: TLS13\n", [false, true]),
        ("  max_version: TLS12\n", [true, false]),
        ("  min_version: TLS10\n  prefer_server_cipher_suites: false\n", [true, true]),
        // The test's key is on an elliptic curve, so that an RSA suite leaves no suite of TLS 1.2.
        ("  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]\n", [false, true]),
        ("  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_RSA_WITH_AES_128_CBC_SHA]\n", [true, true]),
        ("  curve_preferences: [CurveP384, CurveP521]\n", [true, true]),
    ] {
        let (authority, _file, server) = served(more).await;
        for (version, expected) in [&version::TLS12, &version::TLS13].into_iter().zip(expected) {
            let client = TlsClient::trusting(&authority).speaking(version);
            assert_eq!(client.status(&server).await, expected.then_some(200), "{more}");
        }
    }
}

#[tokio::test]
async fn certificates_may_be_in_the_configuration_file() {
    let authority = Authority::new("the lab");
    let indented = |pem: &str| pem.replace('\n', "\n    ");
    let text = |identity: &TestCertificate| {
        format!(
            "tls_server_config:\n  cert: |\n    {}\n  key: |\n    {}\n  client_ca: |\n    {}\n  \
             client_auth_type: RequireAndVerifyClientCert\n",
            indented(&identity.certificate),
            indented(&identity.key),
            indented(&authority.pem()),
        )
    };
    let file = ConfigFile::new(&text(&authority.issue_for_host("localhost")));
    let server = file.serve(patient()).await;
    let client = TlsClient::trusting(&authority);
    assert_eq!(client.status(&server).await, None);
    let client = client.with(&authority.issue_for_host("prometheus"));
    assert_eq!(client.status(&server).await, Some(200));

    file.write("web.yml", &text(&authority.issue_for_host("elsewhere")));
    until(async || client.status(&server).await.is_none()).await;
}
