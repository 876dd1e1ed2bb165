//! Users, headers and rates: what the web configuration file says of requests.

use std::fs;
use std::time::Duration;

use genv_web::Limits;
use tokio::time::sleep;

use crate::config_file::ConfigFile;

fn users(users: &[(&str, &str)]) -> String {
    let line = |(user, password): &(&str, &str)| {
        // Cost 4 is the least that bcrypt has.
        format!("  {user}: {}\n", bcrypt::hash(password, 4).unwrap())
    };
    let lines: String = users.iter().map(line).collect();
    format!("basic_auth_users:\n{lines}")
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
    let site = file.serve(Limits::default()).await;
    let mut client = site.connect().await;
    for (headers, status) in [
        (String::new(), 401),
        (authorization("alice", "secret"), 200),
        (authorization("alice", "secret"), 200),
        (authorization("bob", "a:b ü"), 200),
        (authorization("alice", "Secret"), 401),
        (authorization("alice", ""), 401),
        (authorization("alice", "a:b ü"), 401),
        (authorization("carol", "secret"), 401),
        // An unknown user is compared with somebody's hash: that password must not do.
        (authorization("carol", "secret"), 401),
        (authorization("", ""), 401),
        ("Authorization: Basic %%%\r\n".to_owned(), 401),
        ("Authorization: Bearer secret\r\n".to_owned(), 401),
    ] {
        let answer = client.get_with("/", &headers).await;
        assert_eq!(answer.status, status, "{headers}");
        let challenge = answer.headers.get("www-authenticate").map(String::as_str);
        let expected = (status == 401).then_some("Basic realm=\"genv\", charset=\"UTF-8\"");
        assert_eq!(challenge, expected);
    }
    assert_eq!(client.get("/-/healthy").await.status, 401);
    assert_eq!(site.handled(), 3);
}

#[tokio::test]
async fn a_changed_file_counts_from_the_next_request_on() {
    let file = ConfigFile::new(&users(&[("alice", "old")]));
    let site = file.serve(Limits::default()).await;
    let mut client = site.connect().await;
    let (old, new) = (authorization("alice", "old"), authorization("alice", "new"));
    assert_eq!(client.get_with("/", &old).await.status, 200);
    assert_eq!(client.get_with("/", &new).await.status, 401);

    file.write("web.yml", &users(&[("alice", "new")]));
    assert_eq!(client.get_with("/", &old).await.status, 401);
    assert_eq!(client.get_with("/", &new).await.status, 200);

    file.write("web.yml", "basic_auth_users: [");
    let broken = client.get_with("/", &new).await;
    assert_eq!(broken.status, 500);
    assert_eq!(broken.text(), "The web configuration file is broken: the log says where.\n");

    fs::remove_file(file.path()).unwrap();
    assert_eq!(client.get_with("/", &new).await.status, 500);

    file.write("web.yml", "");
    assert_eq!(client.get("/").await.status, 200);
}

#[tokio::test]
async fn checking_a_password_delays_nobody_whose_password_is_known() {
    // A cost of 14 takes about a second, that of 4 none to speak of.
    let hash = bcrypt::hash("secret", 4).unwrap();
    let slow = hash.replacen("$04$", "$14$", 1);
    let file = ConfigFile::new(&format!("basic_auth_users: {{alice: {hash}, slow: {slow}}}"));
    let site = file.serve(Limits::default()).await;
    let alice = authorization("alice", "secret");
    let mut client = site.connect().await;
    assert_eq!(client.get_with("/", &alice).await.status, 200);

    let mut flood = Vec::new();
    for n in 0..50 {
        let mut guesser = site.connect().await;
        let guess = authorization("slow", &n.to_string());
        guesser.request("/", &guess).await;
        flood.push(guesser);
    }
    let mut guesser = flood.swap_remove(0);
    let mut first = std::pin::pin!(guesser.answer());
    tokio::select! {
        biased;
        guessed = &mut first => panic!("a guess was faster: {guessed:?}"),
        known = client.get_with("/", &alice) => assert_eq!(known.status, 200),
    }
    assert_eq!(first.await.status, 401);
}

#[tokio::test]
async fn configured_headers_are_set_on_every_answer() {
    let file = ConfigFile::new(
        "http_server_config:\n  headers:\n    X-Frame-Options: sameorigin\n    \
         X-Content-Type-Options: nosniff\n    Strict-Transport-Security: max-age=31536000\n    \
         X-XSS-Protection: 0\n    Content-Security-Policy: ''\n",
    );
    let site = file.serve(Limits::default()).await;
    for path in ["/", "/nowhere"] {
        let headers = site.get(path).await.headers;
        assert_eq!(headers["x-frame-options"], "sameorigin");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["strict-transport-security"], "max-age=31536000");
        assert_eq!(headers["x-xss-protection"], "0");
        assert_eq!(headers.get("content-security-policy"), None);
    }
}

#[tokio::test]
async fn requests_beyond_the_rate_are_told_so() {
    let file = ConfigFile::new("rate_limit: {interval: 1h, burst: 2}");
    let site = file.serve(Limits::default()).await;
    let mut client = site.connect().await;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(client.get("/").await.status);
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
    file.write("web.yml", "rate_limit: {interval: 0, burst: 2}");
    assert_eq!(client.get("/").await.status, 200);
}

#[tokio::test]
async fn a_password_check_does_not_keep_the_server_from_stopping() {
    // A cost of 16 takes seconds.
    let hash = bcrypt::hash("secret", 4).unwrap().replacen("$04$", "$16$", 1);
    let file = ConfigFile::new(&format!("basic_auth_users: {{alice: {hash}}}"));
    let mut site = file.serve(Limits { drain_timeout: Duration::from_millis(100), ..Limits::default() }).await;
    let mut client = site.connect().await;
    client.request("/", &authorization("alice", "secret")).await;
    sleep(Duration::from_millis(50)).await;
    site.stop().await.unwrap();
    assert!(client.rest().await.is_empty());
}
