//! Users, headers and rate limits of the web configuration file.

use std::fs;
use std::time::Duration;

use genv_web::Limits;

use crate::config_file::ConfigFile;
use crate::test_server::{patient, until};

fn users(users: &[(&str, &str)]) -> String {
    let line = |(user, password): &(&str, &str)| {
        // Cost 4 is the least that bcrypt has.
        format!("  {user}: {}\n", bcrypt::hash(password, 4).unwrap())
    };
    let lines: String = users.iter().map(line).collect();
    format!("basic_auth_users:\n{lines}")
}

/// The beginning of a hash that no check ends with: its cost is the greatest that bcrypt has.
const ENDLESS: &str = "$31$";

async fn until_checking() {
    let is_bcrypt = |task: std::io::Result<fs::DirEntry>| {
        let name = task.map(|task| fs::read_to_string(task.path().join("comm")));
        // Other threads of this program may end meanwhile.
        matches!(name, Ok(Ok(name)) if name == "bcrypt\n")
    };
    until(async || fs::read_dir("/proc/self/task").unwrap().any(is_bcrypt)).await;
}

fn authorization(user: &str, password: &str) -> String {
    use base64::Engine;
    let credentials = format!("{user}:{password}");
    let encoded = base64::engine::general_purpose::STANDARD.encode(credentials);
    format!("Authorization: Basic {encoded}\r\n")
}

#[tokio::test]
async fn only_users_with_the_right_password_are_answered() {
    let file = ConfigFile::new(&users(&[("alice", "secret"), ("bob", "a:b ü")]));
    let server = file.serve(patient()).await;
    let mut client = server.connect().await;
    for (headers, status) in [
        (String::new(), 401),
        (authorization("alice", "secret"), 200),
        (authorization("alice", "secret"), 200),
        (authorization("bob", "a:b ü"), 200),
        (authorization("alice", "Secret"), 401),
        (authorization("alice", ""), 401),
        (authorization("alice", "a:b ü"), 401),
        (authorization("carol", "secret"), 401),
        // The password of an unknown user is compared with the first user's hash, and must be refused even if it matches.
        (authorization("carol", "secret"), 401),
        (authorization("", ""), 401),
        ("Authorization: Basic %%%\r\n".to_owned(), 401),
        ("Authorization: Bearer secret\r\n".to_owned(), 401),
    ] {
        let response = client.get_with("/", &headers).await;
        assert_eq!(response.status, status, "{headers}");
        let challenge = response.headers.get("www-authenticate").map(String::as_str);
        let expected = (status == 401).then_some("Basic realm=\"genv\", charset=\"UTF-8\"");
        assert_eq!(challenge, expected);
    }
    assert_eq!(client.get("/-/healthy").await.status, 401);
    assert_eq!(server.handled(), 3);
}

#[tokio::test]
async fn a_changed_file_counts_from_the_next_request_on() {
    let file = ConfigFile::new(&users(&[("alice", "old")]));
    let server = file.serve(patient()).await;
    let mut client = server.connect().await;
    let (old, new) = (authorization("alice", "old"), authorization("alice", "new"));
    assert_eq!(client.get_with("/", &old).await.status, 200);
    assert_eq!(client.get_with("/", &new).await.status, 401);

    file.write("web.yml", &users(&[("alice", "new")]));
    until(async || client.get_with("/", &old).await.status == 401).await;
    assert_eq!(client.get_with("/", &new).await.status, 200);

    file.write("web.yml", "basic_auth_users: [");
    until(async || client.get_with("/", &new).await.status != 200).await;
    let broken = client.get_with("/", &new).await;
    assert_eq!(broken.status, 500);
    assert_eq!(broken.text(), "The web configuration file is broken: the log has the error.\n");

    fs::remove_file(file.path()).unwrap();
    assert_eq!(client.get_with("/", &new).await.status, 500);

    file.write("web.yml", "");
    until(async || client.get("/").await.status == 200).await;
}

#[tokio::test]
async fn a_password_check_delays_no_client_with_a_known_password() {
    let hash = bcrypt::hash("secret", 4).unwrap();
    let slow = hash.replacen("$04$", ENDLESS, 1);
    let file = ConfigFile::new(&format!("basic_auth_users: {{alice: {hash}, slow: {slow}}}"));
    let server = file.serve(patient()).await;
    let alice = authorization("alice", "secret");
    let mut client = server.connect().await;
    assert_eq!(client.get_with("/", &alice).await.status, 200);

    let mut flood = Vec::new();
    for n in 0..50 {
        let mut guesser = server.connect().await;
        let guess = authorization("slow", &n.to_string());
        guesser.request("/", &guess).await;
        flood.push(guesser);
    }
    until_checking().await;
    // No guess is ever answered: a client that waited for one would wait for ever.
    assert_eq!(client.get_with("/", &alice).await.status, 200);
}

#[tokio::test]
async fn configured_headers_are_set_on_every_answer() {
    let file = ConfigFile::new(
        "http_server_config:\n  headers:\n    X-Frame-Options: sameorigin\n    \
         X-Content-Type-Options: nosniff\n    Strict-Transport-Security: max-age=31536000\n    \
         X-XSS-Protection: 0\n    Content-Security-Policy: ''\n",
    );
    let server = file.serve(patient()).await;
    for path in ["/", "/nowhere"] {
        let headers = server.get(path).await.headers;
        assert_eq!(headers["x-frame-options"], "sameorigin");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["strict-transport-security"], "max-age=31536000");
        assert_eq!(headers["x-xss-protection"], "0");
        assert_eq!(headers.get("content-security-policy"), None);
    }
}

#[tokio::test]
async fn requests_beyond_the_rate_are_answered_429() {
    let file = ConfigFile::new("rate_limit: {interval: 1h, burst: 2}");
    let server = file.serve(patient()).await;
    let mut client = server.connect().await;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(client.get("/").await.status);
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
    file.write("web.yml", "rate_limit: {interval: 0, burst: 2}");
    until(async || client.get("/").await.status == 200).await;
}

#[tokio::test]
async fn a_password_check_does_not_keep_the_server_from_stopping() {
    let hash = bcrypt::hash("secret", 4).unwrap().replacen("$04$", ENDLESS, 1);
    let file = ConfigFile::new(&format!("basic_auth_users: {{alice: {hash}}}"));
    let mut server = file.serve(Limits { drain_timeout: Duration::from_millis(100), ..patient() }).await;
    let mut client = server.connect().await;
    client.request("/", &authorization("alice", "secret")).await;
    until_checking().await;
    server.stop().await.unwrap();
    assert!(client.rest().await.is_empty());
}
