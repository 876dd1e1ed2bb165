//! The format of a web configuration file: keys, types, defaults, and allowed values.

use std::time::Duration;

use hyper::header::{
    CONTENT_SECURITY_POLICY, HeaderMap, HeaderValue, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS, X_XSS_PROTECTION,
};
use serde::Deserialize;
use serde::de::{self, Deserializer, IntoDeserializer};

use crate::basic_auth::{PasswordHash, Users};
use crate::rate_limit::parse_go_duration;

/// A web configuration file. As in Go, a null or blank value counts as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WebConfigFile {
    pub(super) tls_server_config: Option<TlsServerConfig>,
    pub(super) http_server_config: Option<HttpServerConfig>,
    #[serde(deserialize_with = "users")]
    pub(super) basic_auth_users: Users,
    pub(super) rate_limit: Option<RateLimit>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TlsServerConfig {
    #[serde(deserialize_with = "not_blank")]
    pub(super) cert: Option<String>,
    #[serde(deserialize_with = "not_blank")]
    pub(super) key: Option<String>,
    #[serde(deserialize_with = "not_blank")]
    pub(super) client_ca: Option<String>,
    #[serde(deserialize_with = "not_blank")]
    pub(super) cert_file: Option<String>,
    #[serde(deserialize_with = "not_blank")]
    pub(super) key_file: Option<String>,
    #[serde(deserialize_with = "not_blank")]
    pub(super) client_ca_file: Option<String>,
    #[serde(deserialize_with = "client_auth_type")]
    pub(super) client_auth_type: Option<ClientAuthType>,
    pub(super) client_allowed_sans: Option<Vec<String>>,
    pub(super) min_version: Option<TlsVersion>,
    pub(super) max_version: Option<TlsVersion>,
    pub(super) cipher_suites: Option<Vec<String>>,
    pub(super) prefer_server_cipher_suites: Option<bool>,
    pub(super) curve_preferences: Option<Vec<Curve>>,
}

/// Go's [`tls.ClientAuthType`](https://pkg.go.dev/crypto/tls#ClientAuthType).
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub(super) enum ClientAuthType {
    #[default]
    NoClientCert,
    RequestClientCert,
    #[serde(alias = "RequireClientCert")]
    RequireAnyClientCert,
    VerifyClientCertIfGiven,
    RequireAndVerifyClientCert,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum TlsVersion {
    Tls10,
    Tls11,
    Tls12,
    Tls13,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(super) enum Curve {
    CurveP256,
    CurveP384,
    CurveP521,
    X25519,
    X25519MLKEM768,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HttpServerConfig {
    pub(super) http2: Option<bool>,
    pub(super) headers: Option<Headers>,
}

/// All headers that the toolkit allows.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Headers {
    #[serde(rename = "Content-Security-Policy", deserialize_with = "header")]
    content_security_policy: Option<HeaderValue>,
    #[serde(rename = "X-Frame-Options", deserialize_with = "frame_options")]
    x_frame_options: Option<HeaderValue>,
    #[serde(rename = "X-Content-Type-Options", deserialize_with = "content_type_options")]
    x_content_type_options: Option<HeaderValue>,
    #[serde(rename = "X-XSS-Protection", deserialize_with = "header")]
    x_xss_protection: Option<HeaderValue>,
    #[serde(rename = "Strict-Transport-Security", deserialize_with = "header")]
    strict_transport_security: Option<HeaderValue>,
}

impl Headers {
    /// The headers to set on every response.
    pub(super) fn into_map(self) -> HeaderMap {
        [
            (CONTENT_SECURITY_POLICY, self.content_security_policy),
            (X_FRAME_OPTIONS, self.x_frame_options),
            (X_CONTENT_TYPE_OPTIONS, self.x_content_type_options),
            (X_XSS_PROTECTION, self.x_xss_protection),
            (STRICT_TRANSPORT_SECURITY, self.strict_transport_security),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateLimit {
    #[serde(default, deserialize_with = "go_duration")]
    pub(super) interval: Duration,
    #[serde(default)]
    pub(super) burst: u32,
}

fn users<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Users, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl<'de> Deserialize<'de> for PasswordHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            de::Error::custom("not a bcrypt hash; make one with 'htpasswd -nBC 10 \"\" | tr -d \":\\n\"'")
        })
    }
}

fn not_blank<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()))
}

fn header<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<HeaderValue>, D::Error> {
    match not_blank(deserializer)? {
        None => Ok(None),
        Some(text) => match HeaderValue::from_str(&text) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(de::Error::custom("the value of a header must be one line of text")),
        },
    }
}

fn one_of<'de, D: Deserializer<'de>>(
    deserializer: D,
    allowed: &[&'static str],
) -> Result<Option<HeaderValue>, D::Error> {
    match header(deserializer)? {
        Some(value) if !allowed.iter().any(|allowed| value == allowed) => {
            let allowed = allowed.join(" or ");
            Err(de::Error::custom(format!("the value must be {allowed}")))
        }
        value => Ok(value),
    }
}

fn frame_options<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<HeaderValue>, D::Error> {
    one_of(deserializer, &["deny", "sameorigin"])
}

fn content_type_options<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<HeaderValue>, D::Error> {
    one_of(deserializer, &["nosniff"])
}

fn client_auth_type<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ClientAuthType>, D::Error> {
    let name = not_blank(deserializer)?;
    name.map(|name| ClientAuthType::deserialize(name.into_deserializer())).transpose()
}

fn go_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    match text.as_deref() {
        None | Some("") => Ok(Duration::ZERO),
        Some(text) => parse_go_duration(text)
            .ok_or_else(|| de::Error::custom("not a duration; write a number and a unit, such as 1s, 100ms or 1m30s")),
    }
}
