//! A text that is made if somebody asks for it, and then served as often as it is asked for.

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

/// Where a text is written to, piece by piece.
pub type Out<'a> = &'a mut dyn FnMut(&[u8]);

/// One text in the encodings that were asked for: what nobody asks for costs nothing, and who only takes it compressed
/// does not have it kept as it is, which for a thousand hosts is 15 times as much.
#[derive(Debug, Default)]
pub struct Text {
    plain: Encoded,
    gzip: Encoded,
}

#[derive(Debug, Default)]
struct Encoded {
    bytes: OnceLock<Bytes>,
    was_asked_for: AtomicBool,
}

impl Text {
    /// The text in an encoding. Whoever asks first makes it, of what `write` writes, which must be the same each time.
    pub fn encoded(&self, encoding: Encoding, write: impl FnOnce(Out<'_>)) -> Bytes {
        let encoded = self.of(encoding);
        encoded.was_asked_for.store(true, Ordering::Relaxed);
        encoded.made(encoding, 0, write).clone()
    }

    /// Makes it in the encodings in which the text of before was asked for, as it probably will be again: those who ask then
    /// need not wait.
    pub fn prepare(&self, before: &Self, mut write: impl FnMut(Out<'_>)) {
        for encoding in [Encoding::Plain, Encoding::Gzip] {
            let before = before.of(encoding);
            if before.was_asked_for.load(Ordering::Relaxed) {
                let length = before.bytes.get().map_or(0, Bytes::len);
                // It will be about as long, and is not copied from place to place while it grows.
                let capacity = length + length / 8;
                self.of(encoding).made(encoding, capacity, &mut write);
            }
        }
    }

    const fn of(&self, encoding: Encoding) -> &Encoded {
        match encoding {
            Encoding::Plain => &self.plain,
            Encoding::Gzip => &self.gzip,
        }
    }
}

impl Encoded {
    fn made(&self, encoding: Encoding, capacity: usize, write: impl FnOnce(Out<'_>)) -> &Bytes {
        self.bytes.get_or_init(|| {
            let memory = Vec::with_capacity(capacity);
            match encoding {
                Encoding::Plain => joined(memory, write).into(),
                Encoding::Gzip => compressed(memory, write).into(),
            }
        })
    }
}

fn joined(mut joined: Vec<u8>, write: impl FnOnce(Out<'_>)) -> Vec<u8> {
    write(&mut |piece| joined.extend_from_slice(piece));
    joined
}

fn compressed(memory: Vec<u8>, write: impl FnOnce(Out<'_>)) -> Vec<u8> {
    // The text repeats itself so much that the fastest level already leaves a tenth of it.
    let mut encoder = GzEncoder::new(memory, Compression::fast());
    let in_memory = "writing to memory does not fail";
    write(&mut |piece| encoder.write_all(piece).expect(in_memory));
    encoder.finish().expect(in_memory)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    const PIECES: [&str; 2] = ["one\n", "two\n"];

    fn write(out: Out<'_>) {
        PIECES.iter().for_each(|piece| out(piece.as_bytes()));
    }

    fn unpacked(gzip: &[u8]) -> String {
        let mut unpacked = String::new();
        GzDecoder::new(gzip).read_to_string(&mut unpacked).unwrap();
        unpacked
    }

    #[test]
    fn each_encoding_is_made_once_and_only_when_it_is_asked_for() {
        let (text, made) = (Text::default(), Cell::new(0));
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
    fn what_was_asked_for_last_time_is_made_before_it_is_asked_for() {
        let prepared = |before: &Text| {
            let text = Text::default();
            text.prepare(before, write);
            let made = [&text.plain, &text.gzip].map(|it| it.bytes.get().is_some());
            (text, made)
        };
        let first = Text::default();
        first.encoded(Encoding::Gzip, write);
        let (second, made) = prepared(&first);
        assert_eq!(made, [false, true]);
        let gzip = second.gzip.bytes.get().unwrap();
        assert_eq!(unpacked(gzip), PIECES.concat());
        assert_eq!(prepared(&second).1, [false, false], "nobody asked since");
    }
}
