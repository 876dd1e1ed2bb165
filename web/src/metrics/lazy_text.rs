//! A text that is made at the first request for it, and kept for the next requests.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::header::HeaderValue;

use crate::Encoding;

/// The type of Prometheus' text format 0.0.4.
pub const METRICS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Texts are so repetitive that the fastest level already reduces them to a tenth.
pub(super) const LEVEL: Compression = Compression::fast();

/// The receiver of a text in pieces.
pub type TextSink<'a> = &'a mut dyn FnMut(&[u8]);

/// One text in the requested encodings. An encoding that is not requested costs nothing: if all clients take gzip, the
/// plain text is never kept, which is 15 times as large for a thousand hosts.
#[derive(Debug, Default)]
pub struct LazyText {
    plain: EncodedBytes,
    gzip: EncodedBytes,
}

#[derive(Debug, Default)]
struct EncodedBytes {
    bytes: OnceLock<Bytes>,
    was_requested: AtomicBool,
}

impl LazyText {
    /// The text in an encoding. The first call makes it with `write`, which must write the same text each time.
    pub fn encoded(&self, encoding: Encoding, write: impl FnOnce(TextSink<'_>)) -> Bytes {
        self.made(encoding, || encode(encoding, 0, write))
    }

    /// The text in an encoding. The first call makes it with `make`, which must encode the same text in each encoding.
    pub fn made(&self, encoding: Encoding, make: impl FnOnce() -> Bytes) -> Bytes {
        let encoded = self.of(encoding);
        encoded.was_requested.store(true, Ordering::Relaxed);
        encoded.bytes.get_or_init(make).clone()
    }

    /// Makes the text in the encodings in which the previous text was requested, so that the next requests need not wait.
    /// `make` also gets the length of the previous text in this encoding, in bytes; 0 if it was not made.
    pub fn prepare(&self, before: &Self, mut make: impl FnMut(Encoding, usize) -> Bytes) {
        for encoding in [Encoding::Plain, Encoding::Gzip] {
            let before = before.of(encoding);
            if before.was_requested.load(Ordering::Relaxed) {
                let length = before.bytes.get().map_or(0, Bytes::len);
                self.of(encoding).bytes.get_or_init(|| make(encoding, length));
            }
        }
    }

    const fn of(&self, encoding: Encoding) -> &EncodedBytes {
        match encoding {
            Encoding::Plain => &self.plain,
            Encoding::Gzip => &self.gzip,
        }
    }
}

/// The text that `write` writes. `expected_bytes` is about its encoded length, so that the memory need not grow; 0 if that is
/// unknown.
pub fn encode(encoding: Encoding, expected_bytes: usize, write: impl FnOnce(TextSink<'_>)) -> Bytes {
    let mut memory = Vec::with_capacity(expected_bytes + expected_bytes / 8);
    match encoding {
        Encoding::Plain => write(&mut |piece| memory.extend_from_slice(piece)),
        Encoding::Gzip => {
            let mut encoder = GzEncoder::new(&mut memory, LEVEL);
            let in_memory = "writing to memory does not fail";
            write(&mut |piece| encoder.write_all(piece).expect(in_memory));
            encoder.finish().expect(in_memory);
        }
    }
    memory.into()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    const PIECES: [&str; 2] = ["one\n", "two\n"];

    fn write(out: TextSink<'_>) {
        PIECES.iter().for_each(|piece| out(piece.as_bytes()));
    }

    fn unpacked(gzip: &[u8]) -> String {
        let mut unpacked = String::new();
        GzDecoder::new(gzip).read_to_string(&mut unpacked).unwrap();
        unpacked
    }

    #[test]
    fn each_encoding_is_made_once_and_only_on_request() {
        let (text, made) = (LazyText::default(), Cell::new(0));
        let encoded = |encoding| {
            text.encoded(encoding, |out| {
                made.set(made.get() + 1);
                write(out);
            })
        };
        for _ in 0..2 {
            let gzip = encoded(Encoding::Gzip);
            assert_eq!((unpacked(&gzip), made.get()), (PIECES.concat(), 1));
        }
        for _ in 0..2 {
            assert_eq!(encoded(Encoding::Plain), PIECES.concat());
            assert_eq!(made.get(), 2);
        }
    }

    #[test]
    fn requested_encodings_are_prepared_for_the_next_text() {
        let prepared = |before: &LazyText| {
            let text = LazyText::default();
            text.prepare(before, |encoding, _| encode(encoding, 0, write));
            let made = [&text.plain, &text.gzip].map(|it| it.bytes.get().is_some());
            (text, made)
        };
        let first = LazyText::default();
        first.encoded(Encoding::Gzip, write);
        let (second, made) = prepared(&first);
        assert_eq!(made, [false, true]);
        let gzip = second.gzip.bytes.get().unwrap();
        assert_eq!(unpacked(gzip), PIECES.concat());
        assert_eq!(prepared(&second).1, [false, false], "no request since");
    }
}
