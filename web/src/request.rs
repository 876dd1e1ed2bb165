//! A request as handlers see it.

use hyper::header::{ACCEPT_ENCODING, HeaderMap};
use hyper::{Method, Uri};

/// How a body is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Without compression.
    Plain,
    /// By gzip.
    Gzip,
}

/// A `GET` or `HEAD` request; its body, if any, is never read.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
}

impl<'a> Request<'a> {
    /// A request from its parts.
    pub fn new(method: &'a Method, uri: &'a Uri, headers: &'a HeaderMap) -> Self {
        Self { method, uri, headers }
    }

    /// `GET` or `HEAD`. A handler may treat both alike: the server leaves out the body of a `HEAD`.
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// The path as the client sent it, percent-encoding included.
    pub fn path(&self) -> &'a str {
        self.uri.path()
    }

    /// The query string as the client sent it, without its question mark.
    pub fn query(&self) -> Option<&'a str> {
        self.uri.query()
    }

    /// The first value of one query parameter, decoded as an HTML form does: `%XX` and `+`.
    /// A parameter without `=` has the empty value. Bytes that are no UTF-8 become U+FFFD.
    pub fn query_value(&self, name: &str) -> Option<String> {
        self.query()?.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (form_decoded(key) == name).then(|| form_decoded(value))
        })
    }

    /// All headers.
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// The encoding for the client: gzip if the client accepts it.
    pub fn encoding(&self) -> Encoding {
        match self.accepts_gzip() {
            true => Encoding::Gzip,
            false => Encoding::Plain,
        }
    }

    /// Whether the client accepts a gzip body
    /// ([RFC 9110, 12.5.3](https://www.rfc-editor.org/rfc/rfc9110#section-12.5.3)): gzip or `*` is named, with a weight
    /// above 0.
    fn accepts_gzip(&self) -> bool {
        let mut wildcard = false;
        for value in self.headers.get_all(ACCEPT_ENCODING) {
            let Ok(value) = value.to_str() else { continue };
            for coding in value.split(',') {
                let mut parts = coding.split(';').map(str::trim);
                let name = parts.next().unwrap_or("");
                let refused = parts
                    .filter_map(|parameter| parameter.split_once('='))
                    .filter(|(key, _)| key.trim().eq_ignore_ascii_case("q"))
                    .any(|(_, weight)| weight.trim().parse().is_ok_and(|q: f32| q <= 0.0));
                if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") {
                    return !refused;
                }
                wildcard |= name == "*" && !refused;
            }
        }
        wildcard
    }
}

fn form_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escaped = (byte == b'%')
            .then(|| bytes.get(at + 1..at + 3))
            .flatten()
            .and_then(|hex| Some((hex_digit(hex[0])? << 4) | hex_digit(hex[1])?));
        decoded.push(match (byte, escaped) {
            (_, Some(escaped)) => escaped,
            (b'+', None) => b' ',
            (byte, None) => byte,
        });
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8(decoded).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts_gzip(values: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(ACCEPT_ENCODING, value.parse().unwrap());
        }
        Request::new(&Method::GET, &Uri::from_static("/"), &headers).accepts_gzip()
    }

    #[test]
    fn gzip_is_sent_only_to_clients_that_accept_it() {
        for (values, accepted) in [
            (&[][..], false),
            (&["gzip"], true),
            (&["GZIP"], true),
            (&["deflate, gzip;q=1.0, *;q=0.5"], true),
            (&["deflate", "gzip"], true),
            (&["gzip;q=0"], false),
            (&["gzip; q=0.000"], false),
            (&["*"], true),
            (&["*;q=0"], false),
            (&["*, gzip;q=0"], false),
            (&["gzip;q=0, *"], false),
            (&["identity"], false),
            (&["gzipped"], false),
            (&[""], false),
        ] {
            assert_eq!(accepts_gzip(values), accepted, "{values:?}");
        }
    }

    #[test]
    fn a_query_parameter_is_decoded() {
        for (uri, value) in [
            ("/metrics", None),
            ("/metrics?host=gpu01", Some("gpu01")),
            ("/metrics?a=b&host=gpu%3A01+x&host=second", Some("gpu:01 x")),
            ("/metrics?%68ost=gpu01", Some("gpu01")),
            ("/metrics?host", Some("")),
            ("/metrics?host=%zz%4", Some("%zz%4")),
            ("/metrics?host=%ff", Some("\u{fffd}")),
            ("/metrics?hosts=x", None),
        ] {
            let uri = Uri::from_static(uri);
            let headers = HeaderMap::new();
            let request = Request::new(&Method::GET, &uri, &headers);
            assert_eq!(request.query_value("host").as_deref(), value, "{uri}");
        }
    }

    proptest::proptest! {
        #[test]
        fn form_encoded_values_are_decoded(value in r"\PC{0,16}") {
            let encoded: String = value.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let uri: Uri = format!("/?a=1&value={encoded}").parse().unwrap();
            let headers = HeaderMap::new();
            let request = Request::new(&Method::GET, &uri, &headers);
            proptest::prop_assert_eq!(request.query_value("value"), Some(value));
        }

        #[test]
        fn any_query_is_decoded_without_panic(text in r"[%&=+0-9a-f]{0,24}") {
            form_decoded(&text);
        }
    }
}
