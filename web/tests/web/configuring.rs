//! Errors of web configuration files.

use std::fmt::Write;

use crate::certificates::Authority;
use crate::config_file::ConfigFile;

const SECRET: &str = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ";

#[test]
fn a_mistake_is_located_and_no_value_is_shown() {
    let mut refusals = String::new();
    for text in [
        "tls_server_config:\n  cert_fil: server.crt\n".to_owned(),
        format!("basic_auth_users:\n  alice: {SECRET}\n"),
        format!("basic_auth_users:\n  alice: secret:{SECRET}\n bob: x\n"),
        format!("tls_server_config:\n  key: |\n    {SECRET}\n  keys: x\n"),
        "http_server_config:\n  headers:\n    Server: mine\n".to_owned(),
        "http_server_config:\n  headers:\n    X-Frame-Options: allow\n".to_owned(),
        "http_server_config:\n  headers:\n    X-XSS-Protection: \"a\\nb\"\n".to_owned(),
        "http_server_config:\n  http2: yes\n".to_owned(),
        "rate_limit: {interval: 5, burst: 1}\n".to_owned(),
        "rate_limit: {interval: 5s, burst: -1}\n".to_owned(),
        "tls_server_config:\n  client_auth_type: Always\n".to_owned(),
        "tls_server_config:\n  min_version: TLS14\n".to_owned(),
        "tls_server_config:\n  curve_preferences: [Curve25519]\n".to_owned(),
        "tls_server_config: [\n".to_owned(),
        "- a\n- list\n".to_owned(),
    ] {
        let refusal = ConfigFile::new(&text).refusal();
        assert!(!refusal.contains(SECRET), "{refusal}");
        let (refusal, format) = refusal.rsplit_once('\n').unwrap();
        assert!(format.starts_with("Its format: https://github.com/prometheus/exporter-toolkit/"));
        writeln!(refusals, "{refusal}\n").unwrap();
    }
    insta::assert_snapshot!(refusals);
}

#[test]
fn contradictions_are_refused() {
    let pair = "cert_file: server.crt\n  key_file: server.key";
    let mut refusals = String::new();
    for lines in [
        "min_version: TLS13".to_owned(),
        "key_file: server.key".to_owned(),
        "cert_file: server.crt".to_owned(),
        format!("{pair}\n  cert: inline"),
        format!("{pair}\n  client_ca_file: ca.crt"),
        format!("{pair}\n  client_allowed_sans: [prometheus]"),
        format!("{pair}\n  client_auth_type: VerifyClientCertIfGiven\n  client_allowed_sans: [p]"),
        format!("{pair}\n  client_auth_type: RequireAndVerifyClientCert"),
        format!("{pair}\n  max_version: TLS11"),
        format!("{pair}\n  min_version: TLS13\n  max_version: TLS12"),
        format!("{pair}\n  cipher_suites: [RC4]"),
        format!("{pair}\n  curve_preferences: [CurveP521]"),
    ] {
        let refusal = ConfigFile::new(&format!("tls_server_config:\n  {lines}\n")).refusal();
        writeln!(refusals, "{}", refusal.lines().next().unwrap()).unwrap();
    }
    let no_burst = ConfigFile::new("rate_limit: {interval: 5s}\n").refusal();
    writeln!(refusals, "{}", no_burst.lines().next().unwrap()).unwrap();
    insta::assert_snapshot!(refusals);
}

#[test]
fn certificates_that_cannot_be_used_are_named() {
    let authority = Authority::new("the lab");
    let (one, other) = (authority.issue_for_host("a"), authority.issue_for_host("b"));
    let mut refusals = String::new();
    for (certificate, key, ca) in [
        (None, Some(one.key.as_str()), Some(authority.pem())),
        (Some(one.certificate.as_str()), None, Some(authority.pem())),
        (Some(&one.certificate), Some(&one.key), None),
        (Some("nothing"), Some(&one.key), Some(authority.pem())),
        (Some(&one.certificate), Some("nothing"), Some(authority.pem())),
        (Some(&one.certificate), Some(&one.key), Some("nothing".to_owned())),
        (Some(&one.certificate), Some(&other.key), Some(authority.pem())),
    ] {
        let file = ConfigFile::new(
            "tls_server_config: {cert_file: server.crt, key_file: server.key, client_ca_file: ca.crt, \
             client_auth_type: RequireAndVerifyClientCert}",
        );
        let files = [("server.crt", certificate), ("server.key", key), ("ca.crt", ca.as_deref())];
        for (name, content) in files {
            if let Some(content) = content {
                file.write(name, content);
            }
        }
        writeln!(refusals, "{}", file.refusal()).unwrap();
    }
    insta::assert_snapshot!(refusals);
}

#[test]
fn an_empty_file_and_empty_sections_set_nothing() {
    for text in [
        "",
        "# nothing\n",
        "tls_server_config: {}\nhttp_server_config:\nbasic_auth_users:\n",
        "tls_server_config:\n  cert_file: ''\n  client_auth_type: ''\nrate_limit: {interval: 0}\n",
        "http_server_config: {http2: true, headers: {X-Frame-Options: ''}}\n",
    ] {
        let file = ConfigFile::new(text);
        assert!(!file.open().speaks_tls(), "{text}");
    }
}
