//! The page of many hosts, compressed in pieces, of which those that stay equal are not made again.
//!
//! Most facts of a host, and whole families, stay the same from one snapshot to the next. A piece is the text of one family for
//! a group of hosts. It is compressed again only if its text has changed. If the text was equal in two pages, it is not written
//! either until a hash of its labels and values differs.

use std::hash::BuildHasher as _;

use bytes::Bytes;
use flate2::{Compress, Crc, FlushCompress};
use foldhash::fast::RandomState;

use super::lazy_text::LEVEL;
use super::{Family, Samples};

/// Magic number, deflate, no flags, no time, compressed fast, by an unknown system.
/// <https://www.rfc-editor.org/rfc/rfc1952#page-5>
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];

/// An empty last block of deflate: <https://www.rfc-editor.org/rfc/rfc1951#page-12>.
const LAST_BLOCK: [u8; 2] = [3, 0];

/// Checksum and length of the text.
const TRAILER_BYTES: usize = 8;

/// The last page in pieces, as one member of gzip: many clients read no second one.
#[derive(Debug, Default)]
pub struct GzipPieces {
    hasher: RandomState,
    /// First by group of hosts, then by family.
    pieces: Vec<Vec<Piece>>,
}

/// The samples of a family of a group of hosts.
#[derive(Debug)]
struct Piece {
    /// Whether the text begins with name, help and type of the family.
    has_header: bool,
    /// [`Samples::fingerprint`], once the text was equal in two pages. Other pieces probably change again, so none is computed.
    fingerprint: Option<u64>,
    /// A hash of the text.
    hash: u64,
    crc: Crc,
    /// The text as blocks of deflate that end at a byte and refer to no text before. Nothing for an empty text.
    deflated: Bytes,
}

impl GzipPieces {
    /// The page: `first`, the families of all hosts as [`Samples::of_each`] writes them, `last`. `add` adds the samples of one
    /// host to `samples`, whose memory is reused. A piece is compared with the one at its place in the page before, so that hosts
    /// should stay in their group.
    pub fn page<S, H>(
        &mut self,
        samples: &mut Samples,
        first: &str,
        families: &[&Family<S>],
        groups: impl ExactSizeIterator<Item = Vec<H>>,
        add: impl Fn(&Family<S>, &H, &mut Samples),
        last: &str,
    ) -> Bytes {
        let mut maker = Maker { hasher: &self.hasher, samples, compress: Compress::new(LEVEL, false) };
        let mut before = std::mem::take(&mut self.pieces).into_iter();
        let mut has_samples = vec![false; families.len()];
        let mut pieces = Vec::with_capacity(groups.len());
        for hosts in groups {
            let mut before = before.next().unwrap_or_default().into_iter();
            let of_family = |(family, has_samples): (&&Family<S>, &mut bool)| {
                let add = |host: &H, samples: &mut Samples| add(family, host, samples);
                let piece = maker.piece(family, &hosts, !*has_samples, before.next(), add);
                *has_samples |= !piece.deflated.is_empty();
                piece
            };
            pieces.push(families.iter().zip(&mut has_samples).map(of_family).collect());
        }
        let [first, last] = [first, last].map(|text| deflated(&mut maker.compress, text));
        self.pieces = pieces;
        joined(&first, &mut self.pieces, &last)
    }
}

/// What makes pieces, and its memory.
struct Maker<'a> {
    hasher: &'a RandomState,
    samples: &'a mut Samples,
    compress: Compress,
}

impl Maker<'_> {
    fn piece<S, H>(
        &mut self,
        family: &Family<S>,
        hosts: &[H],
        has_header: bool,
        before: Option<Piece>,
        add: impl Fn(&H, &mut Samples),
    ) -> Piece {
        let mut before = before.filter(|before| before.has_header == has_header);
        let mut is_equal = |known| self.samples.fingerprint(self.hasher, family, hosts, &add) == known;
        if let Some(before) = before.take_if(|before| before.fingerprint.is_some_and(&mut is_equal)) {
            return before;
        }
        let text = self.samples.text(family, hosts, has_header, &add);
        let hash = self.hasher.hash_one(text);
        match before {
            Some(before) if before.hash == hash => {
                let fingerprint = self.samples.fingerprint(self.hasher, family, hosts, add);
                Piece { fingerprint: Some(fingerprint), ..before }
            }
            _ => {
                let (crc, deflated) = deflated(&mut self.compress, text);
                Piece { has_header, fingerprint: None, hash, crc, deflated }
            }
        }
    }
}

/// A text as blocks of deflate that end at a byte and refer to no text before, and its checksum.
fn deflated(compress: &mut Compress, text: &str) -> (Crc, Bytes) {
    let mut crc = Crc::new();
    let mut deflated = Vec::new();
    if !text.is_empty() {
        crc.update(text.as_bytes());
        compress.reset();
        // All is written when there is room left.
        while deflated.len() == deflated.capacity() {
            deflated.reserve(text.len() / 8 + 64);
            let rest = &text.as_bytes()[compress.total_in() as usize..];
            let written = compress.compress_vec(rest, &mut deflated, FlushCompress::Sync);
            written.expect("compressing in memory does not fail");
        }
    }
    (crc, deflated.into())
}

/// Joins the page, and makes each piece a slice of it.
fn joined(first: &(Crc, Bytes), pieces: &mut [Vec<Piece>], last: &(Crc, Bytes)) -> Bytes {
    let families = pieces.first().map_or(0, Vec::len);
    let of_pieces = pieces.iter().flatten().map(|piece| piece.deflated.len()).sum::<usize>();
    let length = HEADER.len() + first.1.len() + of_pieces + last.1.len() + LAST_BLOCK.len() + TRAILER_BYTES;
    let mut page = Vec::with_capacity(length);
    let mut crc = Crc::new();
    page.extend(HEADER);
    let mut append = |(of_text, deflated): (&Crc, &Bytes)| {
        crc.combine(of_text);
        page.extend_from_slice(deflated);
    };
    append((&first.0, &first.1));
    for family in 0..families {
        pieces.iter().for_each(|group| append((&group[family].crc, &group[family].deflated)));
    }
    append((&last.0, &last.1));
    page.extend(LAST_BLOCK);
    page.extend(crc.sum().to_le_bytes());
    page.extend(crc.amount().to_le_bytes());
    let page = Bytes::from(page);
    let mut at = HEADER.len() + first.1.len();
    for family in 0..families {
        for group in &mut *pieces {
            let piece = &mut group[family].deflated;
            *piece = page.slice(at..at + piece.len());
            at += piece.len();
        }
    }
    page
}

#[cfg(test)]
mod tests;
