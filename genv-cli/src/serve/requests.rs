//! Bytes that come as they like, as lines.

use genv_remote::protocol::LONGEST_LINE_BYTES;

/// One line, without the byte that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    Whole(&'a [u8]),
    /// It was passed over.
    TooLong,
}

/// The line that has begun; never more of it than a line may have.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    begun: Vec<u8>,
    too_long: bool,
}

impl Lines {
    /// Takes what was read, and hands on each line that ends in it.
    pub(crate) fn take(&mut self, mut bytes: &[u8], mut each: impl FnMut(Line<'_>)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.keep(&bytes[..end]);
            bytes = &bytes[end + 1..];
            if std::mem::take(&mut self.too_long) {
                each(Line::TooLong);
            } else {
                each(Line::Whole(&self.begun));
            }
            self.begun.clear();
        }
        self.keep(bytes);
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.too_long || self.begun.len() + bytes.len() > LONGEST_LINE_BYTES {
            self.too_long = true;
            // Its memory too is given back.
            self.begun = Vec::new();
        } else {
            self.begun.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut all = Vec::new();
        for piece in pieces {
            lines.take(piece, |line| {
                all.push(match line {
                    Line::Whole(line) => String::from_utf8_lossy(line).into_owned(),
                    Line::TooLong => "TOO LONG".to_owned(),
                });
            });
        }
        all
    }

    #[test]
    fn lines_are_whole_however_they_come() {
        assert_eq!(lines(&[b"one\ntw", b"", b"o\n\nthree"]), ["one", "two", ""]);
    }

    #[test]
    fn a_line_that_is_too_long_is_told_once_and_the_next_one_is_read() {
        let longest = vec![b'a'; LONGEST_LINE_BYTES];
        let read = lines(&[&longest, b"\n", &longest, b"b", &longest, b"\nnext\n"]);
        assert_eq!(read[0].len(), LONGEST_LINE_BYTES);
        assert_eq!(read[1..], ["TOO LONG", "next"]);
    }
}
