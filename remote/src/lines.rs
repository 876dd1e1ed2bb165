//! Lines, out of what comes in pieces.

use crate::{FailureKind, HostFailure};

/// Of a line that is too long, so much is kept: it tells what came.
const BEGINNING_BYTES: usize = 1 << 10;

/// The beginning of a line, until its end comes.
#[derive(Debug, Default)]
pub(crate) struct PartialLine(Vec<u8>);

impl PartialLine {
    /// Takes what belongs to the line from the front of a piece: how many bytes, its end included, and the line if that
    /// was in the piece.
    ///
    /// # Errors
    /// [`FailureKind::Protocol`]: it is longer than this.
    pub(crate) fn take(&mut self, piece: &[u8], most_bytes: usize) -> Result<(usize, Option<Vec<u8>>), HostFailure> {
        let end = memchr::memchr(b'\n', piece);
        let part = &piece[..end.unwrap_or(piece.len())];
        if self.0.len() + part.len() > most_bytes {
            self.0.extend(part.iter().take(BEGINNING_BYTES));
            self.0.truncate(BEGINNING_BYTES);
            self.0.shrink_to_fit();
            return Err(HostFailure::new(
                FailureKind::Protocol,
                format_args!("it sent a line of more than {most_bytes} bytes. Look at what answers there"),
            ));
        }
        self.0.extend_from_slice(part);
        let line = end.map(|_| std::mem::take(&mut self.0));
        Ok((part.len() + usize::from(line.is_some()), line))
    }

    /// The last line of all, which has no end; nothing if there is none.
    pub(crate) fn last(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.0)).filter(|line| !line.is_empty())
    }

    /// What came of it so far.
    pub(crate) fn begun(&self) -> &[u8] {
        &self.0
    }
}
