//! Splits a stream of bytes into lines.

use crate::protocol::LONGEST_LINE_BYTES;
use crate::{FailureKind, HostFailure};

/// The number of bytes that are kept of a line that is too long: an error quotes them.
const BEGINNING_BYTES: usize = 1 << 10;

/// The received part of an incomplete line.
#[derive(Debug, Default)]
pub(crate) struct PartialLine(Vec<u8>);

impl PartialLine {
    /// Takes the bytes up to the next line feed from the front of a piece. Returns their number, with the line feed, and the
    /// line if it is complete.
    ///
    /// # Errors
    /// [`FailureKind::Protocol`]: the line is longer than `max_bytes`.
    pub(crate) fn take(&mut self, piece: &[u8], max_bytes: usize) -> Result<(usize, Option<Vec<u8>>), HostFailure> {
        let end = memchr::memchr(b'\n', piece);
        let part = &piece[..end.unwrap_or(piece.len())];
        if self.0.len() + part.len() > max_bytes {
            self.0.extend(part.iter().take(BEGINNING_BYTES));
            self.0.truncate(BEGINNING_BYTES);
            self.0.shrink_to_fit();
            return Err(HostFailure::new(
                FailureKind::Protocol,
                format_args!("it sent a line of more than {max_bytes} bytes. See what answers there"),
            ));
        }
        self.0.extend_from_slice(part);
        let line = end.map(|_| std::mem::take(&mut self.0));
        Ok((part.len() + usize::from(line.is_some()), line))
    }

    /// Takes the last line, which has no line feed; `None` if there is no such line.
    pub(crate) fn last(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.0)).filter(|line| !line.is_empty())
    }

    /// The received bytes.
    pub(crate) fn partial_line(&self) -> &[u8] {
        &self.0
    }
}

/// One line, without its line feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputLine<'a> {
    Whole(&'a [u8]),
    /// It had more than [`LONGEST_LINE_BYTES`] and was skipped.
    TooLong,
}

/// Splits a stream that continues after a line that is too long.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    partial: PartialLine,
    is_skipping: bool,
}

impl LineSplitter {
    /// Calls `each` with every line that ends in this piece.
    pub(crate) fn split(&mut self, mut piece: &[u8], mut each: impl FnMut(InputLine<'_>)) {
        while !piece.is_empty() {
            if self.is_skipping {
                let Some(end) = memchr::memchr(b'\n', piece) else { return };
                piece = &piece[end + 1..];
                self.is_skipping = false;
                each(InputLine::TooLong);
                continue;
            }
            match self.partial.take(piece, LONGEST_LINE_BYTES) {
                Ok((length, line)) => {
                    piece = &piece[length..];
                    if let Some(line) = line {
                        each(InputLine::Whole(&line));
                    }
                }
                Err(_) => {
                    self.partial = PartialLine::default();
                    self.is_skipping = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let mut lines = LineSplitter::default();
        let mut all = Vec::new();
        for piece in pieces {
            lines.split(piece, |line| {
                all.push(match line {
                    InputLine::Whole(line) => String::from_utf8_lossy(line).into_owned(),
                    InputLine::TooLong => "TOO LONG".to_owned(),
                });
            });
        }
        all
    }

    #[test]
    fn lines_are_whole_however_the_pieces_are_cut() {
        assert_eq!(lines(&[b"one\ntw", b"", b"o\n\nthree"]), ["one", "two", ""]);
    }

    #[test]
    fn a_line_that_is_too_long_is_reported_once_and_the_next_line_is_read() {
        let longest = vec![b'a'; LONGEST_LINE_BYTES];
        let read = lines(&[&longest, b"\n", &longest, b"b", &longest, b"\nnext\n"]);
        assert_eq!(read[0].len(), LONGEST_LINE_BYTES);
        assert_eq!(read[1..], ["TOO LONG", "next"]);
    }
}
