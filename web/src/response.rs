//! The response of a handler.

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};

use crate::Encoding;

/// A whole response. Its bytes are shared and not copied, so a rendering can be served any number of times.
#[derive(Clone, Debug)]
pub struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Response {
    /// A response with a body of the given type.
    pub fn new(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Self {
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(CONTENT_TYPE, content_type);
        Self { status, headers, body: body.into() }
    }

    /// A line of plain text.
    pub fn text(status: StatusCode, words: &str) -> Self {
        Self::new(status, HeaderValue::from_static("text/plain; charset=utf-8"), format!("{words}\n"))
            .with_header(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
    }

    /// A page in an encoding. It takes style, script and answers to the script only from its own server, runs no script
    /// of its text, and may not be framed.
    pub fn html(encoding: Encoding, body: impl Into<Bytes>) -> Self {
        let policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
        Self::encoded(encoding, HeaderValue::from_static("text/html; charset=utf-8"), body.into())
            .with_header(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy))
            .with_header(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
            .with_header(X_FRAME_OPTIONS, HeaderValue::from_static("deny"))
            .with_header(REFERRER_POLICY, HeaderValue::from_static("no-referrer"))
            .uncached()
    }

    /// A body in [`Request::encoding`](crate::Request::encoding).
    pub fn encoded(encoding: Encoding, content_type: HeaderValue, body: Bytes) -> Self {
        let mut response = Self::new(StatusCode::OK, content_type, body);
        let headers = &mut response.headers;
        headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        if encoding == Encoding::Gzip {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }

    /// 404, with a pointer to the page that links all others.
    pub fn not_found() -> Self {
        Self::text(StatusCode::NOT_FOUND, "This page does not exist. The page / lists all pages.")
    }

    /// The status code.
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The headers; the server adds the date and the length.
    pub const fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body.
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// The same response with one more header, replacing any of that name.
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// The same response with another status code.
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// The same response with a prohibition of caching, for contents that change all the time.
    pub fn uncached(self) -> Self {
        self.with_header(CACHE_CONTROL, HeaderValue::from_static("no-store"))
    }
}
