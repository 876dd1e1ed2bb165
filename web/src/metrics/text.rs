//! A text that is rendered once and served as often as it is asked for.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::header::HeaderValue;

use crate::{Request, Response};

/// The type of Prometheus' text format 0.0.4.
pub const METRICS: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// One text, as it is and compressed.
#[derive(Clone, Debug)]
pub struct Text {
    /// As it is.
    pub plain: Bytes,
    /// The same text, gzip.
    pub gzip: Bytes,
}

impl Text {
    /// Both forms of a text.
    #[must_use]
    pub fn new(text: impl Into<Bytes>) -> Self {
        let plain = text.into();
        // The text repeats itself so much that the fastest level already leaves a tenth of it.
        let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 8), Compression::fast());
        let gzip = encoder
            .write_all(&plain)
            .and_then(|()| encoder.finish())
            .expect("writing to memory does not fail");
        Self {
            plain,
            gzip: gzip.into(),
        }
    }

    /// The form that the client takes.
    #[must_use]
    pub fn served(&self, request: &Request<'_>, content_type: HeaderValue) -> Response {
        Response::negotiated(request, content_type, self.plain.clone(), self.gzip.clone())
    }
}
